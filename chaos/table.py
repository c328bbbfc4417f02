"""The table of GUARANTEES.md, made from results files and from nothing else."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any, Final

from chaos import long
from chaos.scenarios import ROWS
from chaos.topology import KINDS

BEGIN: Final = "<!-- chaos: written by `python -m chaos table`, do not edit -->"
END: Final = "<!-- chaos: end -->"
GUARANTEES: Final = Path(__file__).resolve().parents[1] / "GUARANTEES.md"
COLUMNS: Final = (
    *("#", "fault", "servers", "topology", "runs (seeds)", "messages", "faults", "lost", "twice", "exactness judged"),
    *("refused", "burnt", "ended", "rescue p50/p99/max ms", "gap s", "drain s", "adds confirmed", "fsync", "held"),
)
Run = Mapping[str, Any]


def load(folder: Path) -> list[Run]:
    """Every results file, the oldest first."""
    return sorted((json.loads(file.read_text()) for file in folder.glob("*.json")), key=lambda run: str(run["date"]))


def text(runs: Sequence[Run], more: Sequence[str] = ()) -> str:
    """What stands between the markers. `more` are lines for the head, made elsewhere."""
    played = [run for run in runs if not run["skipped"]]
    if not played:
        return "Nothing has been run yet: `make chaos`.\n"
    lines = [_summary(played), *more, "", *_rows(runs)]
    return "\n".join(lines) + "\n"


def write(folder: Path, page: Path = GUARANTEES) -> None:
    """Put the table into the page, between its markers."""
    old = page.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LookupError(f"{page.name} has no place for the table: write {BEGIN!r} and {END!r} into it")
    page.write_text(f"{before}{BEGIN}\n{text(load(folder), long.sentences(folder))}{END}{after}")


def bound(n: int) -> str:
    """What nothing seen in n tries says: with 95 % it happens less often than this. Rounded up: a bound that is rounded
    down is none."""
    if not n:
        return "0 of 0"
    rule, up = Decimal(3) / n, Context(prec=2, rounding=ROUND_CEILING)
    return f"0 of {n:,} (below {float(up.plus(rule)):g} with 95 %)"


def _summary(played: Sequence[Run]) -> str:
    messages = _total(played, "messages")
    fenced = [run for run in played if _is_fenced(run)]
    lost, twice, once = _total(played, "lost"), _total(fenced, "duplicates"), _total(fenced, "messages")
    broken = [f"{run['name']} on {run['version']}, seed {run['seed']}" for run in played if not run["holds"]]
    which = f" ({'; '.join(broken)})" if broken else ""
    versions = sorted({run["version"] for run in played})
    dates = sorted({run["date"][:10] for run in played})
    seeds = sorted({run["seed"] for run in played})
    killed = [run for run in played if run["name"] == "kill" and "rescue_p99_ms" in run]
    rescue = "; ".join(_rescue(version, killed) for version in sorted({run["version"] for run in killed}))
    head = (
        f"{len(played):,} runs on {', '.join(versions)}, {dates[0]} to {dates[-1]}, seeds {_shown(seeds)}, "
        f"{played[-1]['machine']}: {messages:,} messages, "
        f"{_total(played, 'deaths') - _total(played, 'ended_by_themselves'):,} processes killed."
    )
    forgets = (
        "without the rows in which the server itself forgets, by power loss, failover or XGROUP DESTROY: see below"
    )
    return "\n".join(
        [
            head,
            "",
            f"- lost: {bound(messages) if not lost else f'**{lost:,}** of {messages:,}'}",
            f"- committed twice: {bound(once) if not twice else f'**{twice:,}** of {once:,}'} ({forgets})",
            f"- runs that broke an invariant: {len(broken)} of {len(played)}{which}",
            f"- outcomes of zombies refused: {_total(played, 'refused'):,}",
            *([f"- rescue after kill -9, lease {killed[-1]['lease_s']:g} s, worst run: {rescue}"] if killed else []),
        ]
    )


def _rows(runs: Sequence[Run]) -> Iterable[str]:
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run["name"]].append(run)
    for scenario in ROWS:
        yield _row(scenario.row, scenario.what, by_name.get(scenario.name, []))


def _row(row: int, what: str, runs: Sequence[Run]) -> str:
    played = [run for run in runs if not run["skipped"]]
    if not played:
        why = runs[-1]["skipped"] if runs else "not run yet"
        return f"| {row} | {what} | " + " | ".join(["-"] * (len(COLUMNS) - 3)) + f" | skipped: {why} |"
    faults: dict[str, int] = defaultdict(int)
    for run in played:
        for name, times in run.get("faults", {}).items():
            # The same tests, however often they were run.
            faults[name] = max(faults[name], times) if "tests_passed" in run else faults[name] + times
        if "reached" in run:
            faults["killed at a point"] += run["reached"]
    rescue = [f"{max(run.get(f'rescue_{word}_ms', 0) for run in played):,.0f}" for word in ("p50", "p99", "max")]
    broken = sorted({name for run in played for name in run["breaches"]})
    cells = [
        str(row),
        what,
        ", ".join(sorted({run["version"] for run in played})),
        ", ".join(kind for kind in KINDS if kind in {run["topology"] for run in played}),
        f"{len(played)} ({_shown(sorted({run['seed'] for run in played}))})",
        f"{_total(played, 'messages'):,}" if _total(played, "messages") else "-",
        ", ".join(f"{times} {name}" for name, times in faults.items()) or "-",
        *(_counted(played, name) for name in ("lost", "duplicates")),
        _judged(played),
        *(_counted(played, name) for name in ("refused", "burnt", "ended_by_themselves")),
        "/".join(rescue) if any(run.get("rescued") for run in played) else "-",
        _longest(played, "longest_gap_s"),
        _longest(played, "drain_s"),
        played[-1]["durability"],
        played[-1]["fsync"],
        "yes" if not broken else f"**no: {', '.join(broken)}**",
    ]
    return "| " + " | ".join(cells) + " |"


def _counted(runs: Sequence[Run], name: str) -> str:
    """A sum, or that nobody counted: no message went through, or the figure is not one of these runs."""
    found = [run[name] for run in runs if name in run and run.get("messages")]
    return f"{sum(found):,}" if found else "-"


def _longest(runs: Sequence[Run], name: str) -> str:
    found = [run[name] for run in runs if name in run]
    return f"{max(found):.1f}" if found else "-"


def _judged(runs: Sequence[Run]) -> str:
    """Of how many messages it was judged that they were done once: the least of the runs. The others were touched when
    their server forgot what it had answered."""
    found = [run["judged_share"] for run in runs if "judged_share" in run]
    return f"{math.floor(100 * min(found))} %" if found else "-"


def _is_fenced(run: Run) -> bool:
    """Whether the server kept what it answered, so that an effect may be committed once only."""
    return next(scenario.promise.keeps for scenario in ROWS if scenario.name == run["name"])


def _rescue(version: str, runs: Sequence[Run]) -> str:
    """The worst of all runs on one version, each word by itself."""
    there = [run for run in runs if run["version"] == version]
    worst = {word: max(run[f"rescue_{word}_ms"] for run in there) for word in ("p50", "p99", "max")}
    return f"{version} " + ", ".join(f"{word} {ms:,.0f}" for word, ms in worst.items()) + " ms"


def _total(runs: Sequence[Run], name: str) -> int:
    return sum(int(run.get(name, 0)) for run in runs)


def _shown(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 4 else ", ".join(map(str, numbers))
