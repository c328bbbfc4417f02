"""How the tests that promises name have ended: on which servers, when, and with which code.

A file of them adds up. What a run did not play keeps what an earlier one said of it, with that one's date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("results") / "promises.json"
NONE: Final = ""
"""In a server's place, for a test that is not played once for each of the matrix."""

Ends = dict[str, dict[str, str]]
"""test -> server -> run"""


@dataclass(slots=True)
class Outcomes:
    """`runs` are named after their day and code, and tell Python's version and the servers'."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    passed: Ends = field(default_factory=dict)
    failed: Ends = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path = FILE) -> Outcomes:
        if not file.exists():
            return cls()
        told = json.loads(file.read_text())
        return cls(told["runs"], _by_server(told["passed"]), _by_server(told["failed"]))

    def add(self, run: str, about: dict[str, Any], found: Mapping[tuple[str, str], bool]) -> None:
        """What one run has found: whether a test passed on a server. It replaces what was known of the two."""
        self.runs[run] = about
        for (test, server), good in found.items():
            now, before = (self.passed, self.failed) if good else (self.failed, self.passed)
            now.setdefault(test, {})[server] = run
            for gone in (server, NONE):  # where a process of xdist dies nobody says on which server
                if before.get(test, {}).pop(gone, None) and not before[test]:
                    del before[test]

    def keep(self, wanted: set[str]) -> None:
        """Forget tests that no promise names any more, and runs that nothing is left of."""
        for ends in (self.passed, self.failed):
            for test in ends.keys() - wanted:
                del ends[test]
        left = {run for ends in (self.passed, self.failed) for by_server in ends.values() for run in by_server.values()}
        self.runs = {run: about for run, about in self.runs.items() if run in left}

    def write(self, file: Path = FILE) -> None:
        """A line for each test, in order, so that a difference can be read."""
        parts = {"runs": self.runs, "passed": _by_run(self.passed), "failed": _by_run(self.failed)}
        text = ",\n".join(f" {json.dumps(name)}: {{{_lines(part)}}}" for name, part in parts.items())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{{\n{text}\n}}\n")


def _by_run(ends: Ends) -> dict[str, dict[str, list[str]]]:
    """As it stands in the file, for most tests were last run on all their servers at once."""
    return {
        test: {run: sorted(key for key, its in by_server.items() if its == run) for run in by_server.values()}
        for test, by_server in ends.items()
    }


def _by_server(told: Mapping[str, Mapping[str, list[str]]]) -> Ends:
    return {test: {key: run for run, keys in runs.items() for key in keys} for test, runs in told.items()}


def _lines(part: Mapping[str, Any]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(part[name], sort_keys=True)}" for name in sorted(part)]
    return "\n" + ",\n".join(lines) + "\n " if lines else ""
