"""What is promised, as data (promises.toml): sentences, and the tests and benches that prove them.

python -m chaos.promises       the tests that promises name, one a line
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).with_name("promises.toml")
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Promise:
    """One sentence. `tests` are names of tests, files of tests, or folders of them."""

    says: str
    tests: tuple[str, ...] = ()
    benches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the page: words, promises, and behind them the table of the faults where it is wanted."""

    title: str
    text: str = ""
    promises: tuple[Promise, ...] = ()
    faults: bool = False


@dataclass(frozen=True, slots=True)
class Promises:
    """All that GUARANTEES.md says by itself; the rest are results."""

    head: str
    sections: tuple[Section, ...]

    def all(self) -> Iterable[Promise]:
        return (promise for section in self.sections for promise in section.promises)

    def wanted(self) -> set[str]:
        """The tests that a run has to tell about: `tests/crash/test_poison.py::test_...`."""
        return {test for promise in self.all() for named in promise.tests for test in meant_by(named)}


def load(source: Path = SOURCE) -> Promises:
    """Raises LookupError for a word that no section or promise has."""
    told = tomllib.loads(source.read_text())
    return Promises(told["head"].strip(), tuple(_section(one) for one in told["section"]))


def meant_by(named: str) -> Sequence[str]:
    """The tests that a promise means by a name: none if there is none of it."""
    if "/" in named:
        return [test for test in _tests() if test.startswith(named)]
    return [test for test in _tests() if test.endswith(f"::{named}")]


def _section(told: Mapping[str, Any]) -> Section:
    _known(told, ("title", "text", "promise", "faults"))
    promises = tuple(_promise(one) for one in told.get("promise", ()))
    return Section(told["title"], told.get("text", "").strip(), promises, told.get("faults", False))


def _promise(told: Mapping[str, Any]) -> Promise:
    _known(told, ("says", "tests", "benches"))
    return Promise(told["says"], tuple(told.get("tests", ())), tuple(told.get("benches", ())))


def _known(told: Mapping[str, Any], words: Sequence[str]) -> None:
    if unknown := told.keys() - set(words):
        raise LookupError(f"{SOURCE.name}: no such word: {', '.join(sorted(unknown))}; there are {', '.join(words)}")


@cache
def _tests() -> Sequence[str]:
    """Every test of the tree. Read and not collected: that needs no pytest, and takes no time."""
    return [
        f"{file.relative_to(ROOT).as_posix()}::{name}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.M)
    ]


if __name__ == "__main__":
    print("\n".join(sorted(load().wanted())))
