"""GUARANTEES.md: what is promised (promises.toml), how the tests of it ended, and the faults that were survived."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.__main__ import load as bench_of
from bench.readme import RESULTS as BENCHES
from chaos import versions
from chaos.outcomes import NONE, Outcomes
from chaos.promises import Promise, Promises, Section, meant_by

NOTE: Final = (
    "<!-- written by `python -m chaos table` from chaos/promises.toml and results: edit that one, not this -->"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What stands behind one name in a promise: the days on which it was seen, and what is wrong with it."""

    text: str
    days: tuple[str, ...] = ()
    wrong: str = ""


def render(promises: Promises, outcomes: Outcomes, faults: str) -> str:
    """The whole page. `faults` is what the fault programme tells."""
    parts = [NOTE, promises.head, _state(promises, outcomes)]
    for section in promises.sections:
        parts += _section(section, outcomes, faults)
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def proofs(promise: Promise, outcomes: Outcomes) -> list[Proof]:
    """One for each name that the promise gives."""
    return [*(_of_tests(named, outcomes) for named in promise.tests), *map(_of_bench, promise.benches)]


def _section(section: Section, outcomes: Outcomes, faults: str) -> Iterable[str]:
    yield f"## {section.title}"
    yield section.text
    if section.promises:
        rows = [_row(promise, proofs(promise, outcomes)) for promise in section.promises]
        yield "\n".join(["| promise | proof | passed |", "|---|---|---|", *rows])
    if section.faults:
        yield faults


def _row(promise: Promise, found: Sequence[Proof]) -> str:
    shown = "<br>".join(proof.text + (f" **{proof.wrong}**" if proof.wrong else "") for proof in found)
    days = sorted({day for proof in found for day in proof.days})
    return f"| {promise.says} | {shown or '**no proof**'} | {_span(days) if days else '**not run**'} |"


def _state(promises: Promises, outcomes: Outcomes) -> str:
    """How many tests there are, and how to read the rows."""
    wanted = promises.wanted()
    passed = wanted & outcomes.passed.keys() - outcomes.failed.keys()
    count = f"All {len(wanted)}" if passed == wanted else f"{len(passed)} of the {len(wanted)}"
    by = f" ({'; '.join(_runs(wanted, outcomes))})" if passed else ""
    names = _every(outcomes)
    servers = ", ".join(f"`{versions.short(each)}` ({each})" for each in names)
    behind = (
        f"Behind it stand the servers on which it passed: {servers}; `all` are these {len(names)}." if names else ""
    )
    return (
        f"{count} tests behind the promises have passed{by}. A proof is a test, whose name is a sentence, or a bench. "
        f"{behind} Where none stands it starts what it needs itself, or needs no server."
    )


def _runs(wanted: set[str], outcomes: Outcomes) -> Iterable[str]:
    """Which code the tests were run with: `2026-11-18, code 1a2b3c4d5e`, with their number where there are several."""
    told = Counter(run for test in wanted for run in {*outcomes.passed.get(test, {}).values()})
    for run, count in sorted(told.items()):
        day, _, code = run.partition(" ")
        yield f"{day}, code {code}" + (f": {count} of them" if len(told) > 1 else "")


def _every(outcomes: Outcomes) -> list[str]:
    return versions.in_order(each for run in outcomes.runs.values() for each in versions.of(run["servers"]))


# ── proofs ──


def _of_tests(named: str, outcomes: Outcomes) -> Proof:
    """A test, or all those of a file or a folder."""
    tests = meant_by(named)
    passed = [test for test in tests if outcomes.passed.get(test)]
    seen = {
        (server, run)
        for test in passed
        for server, run in outcomes.passed[test].items()
        if server not in outcomes.failed.get(test, {})
    }
    servers = {versions.full(key, outcomes.runs[run]["servers"][key]) for key, run in seen if key != NONE}
    days = tuple(sorted({run.partition(" ")[0] for _, run in seen}))
    behind = versions.joined(servers, _every(outcomes))
    return Proof(_link(named, tests, passed) + (f": {behind}" if behind else ""), days, _wrong(tests, passed, outcomes))


def _link(named: str, tests: Sequence[str], passed: Sequence[str]) -> str:
    """A test's name is a sentence, which a table can wrap; it leads to the test's file."""
    if "/" in named:
        number = f"{len(passed)} of {len(tests)}" if len(passed) < len(tests) else len(tests)
        return f"[{named}]({named.rstrip('/')}) ({number} tests)"
    files = [test.partition("::")[0] for test in tests]
    words = named.removeprefix("test_").replace("_", " ")
    return ", ".join([f"[{words if file == files[0] else 'and here'}]({file})" for file in files]) or f"`{named}`"


def _wrong(tests: Sequence[str], passed: Sequence[str], outcomes: Outcomes) -> str:
    """Of a folder some may not have been run yet: that is in its number, and who adds one need not run all of them."""
    failed = [(server, test) for test in tests for server in outcomes.failed.get(test, {})]
    if not tests:
        return "there is no such test"
    if failed:
        return "failed" + "".join(f" on {server}" for server in sorted({key for key, _ in failed} - {NONE}))
    return "" if passed else "not run"


def _of_bench(name: str) -> Proof:
    """A bench that was kept, and whether it reached what it must."""
    text, file = f"`python -m bench {name}`", BENCHES / f"{name}.json"
    if not file.exists():
        return Proof(text, (), "not run")
    told: Mapping[str, Any] = json.loads(file.read_text())
    behind = versions.joined(run["version"] for run in told["runs"])
    wrong = "" if bench_of(name).report(told["runs"]).reached else "not reached"
    return Proof(f"{text}: {behind}", (told["date"],), wrong)


def _span(days: Sequence[str]) -> str:
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
