"""Runs that broke something: those of mutants, which the judge must catch, and those that found bugs and were kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from chaos import checker, versions

MUTANTS: Final = "mutants.json"
KEPT: Final = {
    "before-fixes": "became a fix",
    "without-fix": "cause not proven",
}
"""Folders of results, and what became of what is in them."""

_INVARIANTS: Final = dict(re.findall(r"^([A-Z]\d*) +(.+)$", checker.__doc__ or "", re.M))


def text(folder: Path) -> str:
    """Two tables, each where there is something in it."""
    parts = [_mutants(folder / MUTANTS), _kept(folder)]
    return "".join(f"\n{part}\n" for part in parts if part)


def _mutants(file: Path) -> str:
    if not file.exists():
        return ""
    told = json.loads(file.read_text())
    mutants = told["mutants"]
    caught = [mutant for mutant in mutants if mutant["caught_by"]]
    about = [told["date"][:10], *versions.of(told["servers"]), *([versions.code_of(told)] if "code" in told else [])]
    head = (
        f"The judge is tested by broken versions of the core (`python -m chaos mutants`; {', '.join(about)}): "
        f"it caught {len(caught)} of {len(mutants)}."
    )
    by = sorted({name for mutant in mutants for name in mutant["caught_by"]})
    legend = [f"- {name}: {_INVARIANTS[name]}" for name in by if name in _INVARIANTS]
    table = ["| mistake | mutant | in row | caught by |", "|---|---|---|---|", *map(_mutant, mutants)]
    return "\n".join([head, "", *table, "", *legend])


def _mutant(told: Mapping[str, Any]) -> str:
    caught = ", ".join(told["caught_by"]) or "**not caught**"
    return f"| {told['mistake']} | `{told['name']}` | `{told['scenario']}` on {told['server']} | {caught} |"


def _kept(folder: Path) -> str:
    """Of the runs that found something those that were kept; their code is not that of the table."""
    rows = [
        _row(run, place, became)
        for place, became in KEPT.items()
        for run in sorted(_runs(folder / place), key=lambda run: str(run["date"]))
    ]
    if not rows:
        return ""
    head = (
        "Of the earlier runs that broke an invariant these are kept; they are not in the tables above. Of most that "
        'found a bug only the bug was noted: [CHANGELOG.md](CHANGELOG.md), under "found by the fault programme".'
    )
    return "\n".join([head, "", "| # | fault | run | broken | since then |", "|---|---|---|---|---|", *rows])


def _runs(folder: Path) -> Sequence[Mapping[str, Any]]:
    return [json.loads(file.read_text()) for file in folder.glob("*.json")]


def _row(run: Mapping[str, Any], place: str, became: str) -> str:
    found = ", ".join(
        f"{name} ({breach['count']}: {breach['examples'][0]})" for name, breach in run["breaches"].items()
    )
    where = f"{run['version']}, {run['topology']}, seed {run['seed']}, {run['date'][:10]}"
    return f"| {run['row']} | {run['what']} | {where} | {found} | {became} (`chaos/results/{place}`) |"
