"""What a bench found: runs, and for each thing it must reach whether it did."""

from __future__ import annotations

import math
import operator
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Run = dict[str, Any]
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "≤": operator.le,
    "≥": operator.ge,
    "<": operator.lt,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Criterion:
    """``key`` of every run that has the words of ``where`` must stand in a relation to ``limit``."""

    key: str
    relation: str
    limit: float
    where: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""

    def judge(self, runs: Iterable[Run]) -> list[dict[str, Any]]:
        """One verdict for each run that the criterion speaks of."""
        fitting = [run for run in runs if self.key in run and self.where.items() <= run.items()]
        return [self._verdict(run) for run in fitting]

    def _verdict(self, run: Run) -> dict[str, Any]:
        value = run[self.key]
        return {
            "server": run["server"],
            **self.where,
            "key": self.key,
            "value": value,
            "must": f"{self.relation} {self.limit:g}{self.unit}",
            "reached": value is not None and _COMPARE[self.relation](value, self.limit),
        }


@dataclass(slots=True)
class Report:
    """One bench on one or more servers.

    ``shown`` are the columns for people. ``worst`` picks the run that speaks for the bench at the top of the JSON: that
    with the lowest (or highest) value of a key. ``must`` and ``summary`` fill its row of the README's table: what is to
    be reached, and what the runs on one server have shown.
    """

    name: str
    what: str
    must: str
    runs: list[Run]
    criteria: Sequence[Criterion]
    shown: Sequence[str]
    worst: Callable[[Sequence[Run]], Run]
    summary: Callable[[Sequence[Run]], str]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return [verdict for criterion in self.criteria for verdict in criterion.judge(self.runs)]

    @property
    def reached(self) -> bool:
        return all(verdict["reached"] for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """The worst run's figures on top, then all runs and verdicts, then the machine."""
        return {
            "bench": self.name,
            **self.worst(self.runs),
            "reached": self.reached,
            "criteria": self.verdicts,
            "runs": self.runs,
            "machine": machine(),
        }

    def as_text(self) -> str:
        """A table of the runs and a line for each verdict, for people."""
        rows = [list(self.shown), *([_cell(run.get(key)) for key in self.shown] for run in self.runs)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(self.shown))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"{self.name}: {self.what}", *lines, *map(_line, self.verdicts)])

    def as_markdown(self) -> str:
        """The bench's row of the README's table: one cell for each server."""
        cells = []
        for server in dict.fromkeys(run["server"] for run in self.runs):
            missed = any(verdict["server"] == server and not verdict["reached"] for verdict in self.verdicts)
            found = self.summary([run for run in self.runs if run["server"] == server])
            cells.append(f"{found} (**not reached**)" if missed else found)
        return f"| `{self.name}` | {self.what} | {self.must} | {' | '.join(cells)} |"


def markdown(reports: Sequence[Report]) -> str:
    """The README's table: a row for each bench, a column for each server."""
    servers = dict.fromkeys(str(run["version"]) for report in reports for run in report.runs)
    head = ["bench", "what", "must reach", *servers]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(report.as_markdown() for report in reports)]
    return "\n".join(lines)


def lowest(key: str, **where: Any) -> Callable[[Sequence[Run]], Run]:
    """Speak with the run that has the lowest value, of those with the words of ``where`` if there are any."""
    return lambda runs: min(_fitting(runs, where), key=lambda run: run[key])


def highest(key: str, **where: Any) -> Callable[[Sequence[Run]], Run]:
    """The same with the highest value."""
    return lambda runs: max(_fitting(runs, where), key=lambda run: run[key])


def _fitting(runs: Sequence[Run], where: Mapping[str, Any]) -> Sequence[Run]:
    return [run for run in runs if where.items() <= run.items()] or runs


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: a value that was really measured."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _line(verdict: Mapping[str, Any]) -> str:
    where = " ".join(
        f"{key}={value}" for key, value in verdict.items() if key not in ("key", "value", "must", "reached")
    )
    word = "reached" if verdict["reached"] else "NOT REACHED"
    return f"  {word}: {where} {verdict['key']} {_cell(verdict['value'])}, must be {verdict['must']}"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
