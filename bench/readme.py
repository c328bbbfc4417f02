"""The README's tables, made from results files and from nothing else.

`python -m bench NAME --keep` leaves what it found in bench/results/NAME.json, `python -m bench table` makes the tables.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.report import Report, Run, machine, markdown

RESULTS: Final = Path(__file__).with_name("results")
README: Final = Path(__file__).resolve().parents[1] / "README.md"

Judge = Callable[[str, list[Run]], Report]
"""Makes the report of a bench, by its name, from runs of it."""


def keep(report: Report, folder: Path = RESULTS) -> Path:
    """Leave a bench's runs for the table."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"bench": report.name, "date": _today(), "machine": machine(), "runs": report.runs}
    file = folder / f"{report.name}.json"
    file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return file


def write(set_name: str, names: Sequence[str], judge: Judge, page: Path = README, folder: Path = RESULTS) -> None:
    """Put the table of a set of benches between its markers. Raises LookupError where a file or a marker is missing."""
    begin, end = f"<!-- bench {set_name} -->", f"<!-- /bench {set_name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise LookupError(f"{page.name} has no place for the table: write {begin!r} and {end!r} into it")
    page.write_text(
        f"{before}{begin}\n{_table(set_name, [_load(name, folder) for name in names], judge)}\n{end}{after}"
    )


def _load(name: str, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}.json"
    if not file.exists():
        raise LookupError(f"{name} was not kept: python -m bench {name} --keep")
    told: dict[str, Any] = json.loads(file.read_text())
    return told


def _table(set_name: str, kept: Sequence[dict[str, Any]], judge: Judge) -> str:
    reports = [judge(told["bench"], told["runs"]) for told in kept]
    dates = sorted({told["date"] for told in kept})
    where = kept[0]["machine"]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    head = f"`python -m bench {set_name} --keep`; {where['cores']} shared cores, Python {where['python']}, {when}:"
    return f"{head}\n\n{markdown(reports)}"


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()
