"""The table of GUARANTEES.md, made from results files and from nothing else."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any, Final

from chaos import broken, long, page, promises, versions
from chaos.outcomes import Outcomes
from chaos.scenarios import ROWS
from chaos.topology import KINDS

GUARANTEES: Final = Path(__file__).resolve().parents[1] / "GUARANTEES.md"
COLUMNS: Final = (
    *("#", "fault", "servers", "topology", "runs (seeds)", "messages", "faults", "lost", "twice", "held"),
)
MORE: Final = (
    *("#", "name", "judged", "refused", "burnt", "ended", "excused", "rescue p50/p99/max ms", "gap s", "drain s"),
    *("adds confirmed", "fsync"),
)
EXCUSED: Final = MORE.index("excused")
LEGEND: Final = """`lost` counts adds that were confirmed at their level, `twice` messages with two committed outcomes.

What the judge counted beside that, by the names that `python -m chaos NAME` takes. `judged`: the share of the messages
of which it can say that they were done once; what the server itself forgot is not in it. `refused`: outcomes of
zombies. `burnt`: attempts that went with killed workers. `ended`: processes that ended by themselves. `excused`:
messages that live owners lost where a fault excuses it (where that was counted). `gap`: how long nothing was handled at
most. `drain`: from healing to the last message."""
Run = Mapping[str, Any]


def load(folder: Path) -> list[Run]:
    """Every results file of a row, the oldest first."""
    files = folder.glob("[0-9][0-9]-*.json")
    return sorted((json.loads(file.read_text()) for file in files), key=lambda run: str(run["date"]))


def text(runs: Sequence[Run], more: Sequence[str] = ()) -> str:
    """What the runs tell. `more` are lines for the head, made elsewhere."""
    played = [run for run in runs if not run["skipped"]]
    if not played:
        return "Nothing has been run yet: `make chaos`.\n"
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run["name"]].append(run)
    rows = [COLUMNS, *(_row(one.row, one.what, by_name[one.name]) for one in ROWS)]
    counted = [MORE, *(_more(one.row, one.name, by_name[one.name]) for one in ROWS)]
    if not any("excused" in run for run in played):
        counted = [(*row[:EXCUSED], *row[EXCUSED + 1 :]) for row in counted]
    return "\n".join([_summary(played), *more, "", *_table(rows), "", LEGEND, "", *_table(counted), ""])


def write(folder: Path, file: Path = GUARANTEES) -> None:
    """Write the page anew, with what a folder says of the faults."""
    faults = text(load(folder), long.sentences(folder)) + broken.text(folder)
    file.write_text(page.render(promises.load(), Outcomes.load(), faults))


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
    failed = [f"{_called(run)} on {run['version']}, seed {run['seed']}" for run in played if not run["holds"]]
    which = f" ({'; '.join(failed)})" if failed else ""
    dates = sorted({run["date"][:10] for run in played})
    seeds = sorted({run["seed"] for run in played})
    head = (
        f"{len(played):,} runs on {', '.join(versions.in_order(run['version'] for run in played))}, "
        f"{dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}, seeds {_shown(seeds)}, "
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
            f"- {_codes(played)}",
            f"- lost: {bound(messages) if not lost else f'**{lost:,}** of {messages:,}'}",
            f"- committed twice: {bound(once) if not twice else f'**{twice:,}** of {once:,}'} ({forgets})",
            f"- runs that broke an invariant: {len(failed)} of {len(played)}{which}",
            f"- outcomes of zombies refused: {_total(played, 'refused'):,}",
            *_rescues(played),
            *_points(played),
        ]
    )


def _codes(played: Sequence[Run]) -> str:
    """How many runs were made with which code (a digest of src/headrace), the newest first. Where there are several,
    the runs of each but the commonest are named."""
    by_code: dict[str, list[Run]] = defaultdict(list)
    for run in reversed(played):
        by_code[versions.code_of(run)].append(run)
    commonest = max(by_code, key=lambda code: len(by_code[code]), default="")
    told = []
    for code, runs in by_code.items():
        names = sorted({_called(run) for run in runs}, key=lambda name: (int(name.split()[0]), name))
        about = "" if code == commonest else f" ({', '.join(names)})"
        told.append(f"{code}: {len(runs):,} run{'s' * (len(runs) > 1)}{about}")
    return "; ".join(told)


def _points(played: Sequence[Run]) -> Iterable[str]:
    """Row 2: in how many cases somebody was killed at the point. Every point was come to, or the row is broken; its
    second and third time may not have come."""
    runs = [run for run in played if "cases" in run]
    if not runs:
        return
    missed = sorted({str(case) for run in runs for case in run.get("missed", ())})
    yield f"- killed at a crash point: in {_total(runs, 'reached'):,} of {_total(runs, 'cases'):,} cases" + (
        f"; nobody came to {', '.join(missed)}" if missed else ""
    )


def _called(run: Run) -> str:
    return f"{run['row']} {run['name']}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in Markdown, the first of them the head. Empty ones are left out."""
    head = rows[0]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows[1:]) if row]


def _row(row: int, what: str, runs: Sequence[Run]) -> list[str]:
    played = [run for run in runs if not run["skipped"]]
    if not played:
        why = runs[-1]["skipped"] if runs else "not run yet"
        return [str(row), what, *["-"] * (len(COLUMNS) - 3), f"skipped: {why}"]
    breaches = sorted({name for run in played for name in run["breaches"]})
    return [
        str(row),
        what,
        versions.joined(run["version"] for run in played),
        ", ".join(kind for kind in KINDS if kind in {run["topology"] for run in played}),
        f"{len(played)} ({_shown(sorted({run['seed'] for run in played}))})",
        f"{_total(played, 'messages'):,}" if _total(played, "messages") else "-",
        ", ".join(f"{times} {name}" for name, times in _faults(played).items()) or "-",
        *(_counted(played, name) for name in ("lost", "duplicates")),
        "yes" if not breaches else f"**no: {', '.join(breaches)}**",
    ]


def _faults(played: Sequence[Run]) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for run in played:
        for name, times in run.get("faults", {}).items():
            # The same tests, however often they were run.
            found[name] = max(found[name], times) if "tests_passed" in run else found[name] + times
        if "reached" in run:
            found["killed at a point"] += run["reached"]
    return found


def _more(row: int, name: str, runs: Sequence[Run]) -> list[str]:
    """What the judge counted. Nothing where nothing was counted."""
    played = [run for run in runs if not run["skipped"] and run.get("messages")]
    if not played:
        return []
    rescue = [f"{max(run.get(f'rescue_{word}_ms', 0) for run in played):,.0f}" for word in ("p50", "p99", "max")]
    return [
        str(row),
        f"`{name}`",
        _judged(played),
        *(_counted(played, counted) for counted in ("refused", "burnt", "ended_by_themselves", "excused")),
        "/".join(rescue) if any(run.get("rescued") for run in played) else "-",
        _longest(played, "longest_gap_s"),
        _longest(played, "drain_s"),
        played[-1]["durability"],
        played[-1]["fsync"],
    ]


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


def _rescues(played: Sequence[Run]) -> Iterable[str]:
    killed = [run for run in played if run["name"] == "kill" and "rescue_p99_ms" in run]
    if killed:
        worst = "; ".join(_rescue(version, killed) for version in versions.in_order(run["version"] for run in killed))
        yield f"- rescue after kill -9, lease {killed[-1]['lease_s']:g} s, worst run: {worst}"


def _rescue(version: str, runs: Sequence[Run]) -> str:
    """The worst of all runs on one version, each word by itself."""
    there = [run for run in runs if run["version"] == version]
    worst = {word: max(run[f"rescue_{word}_ms"] for run in there) for word in ("p50", "p99", "max")}
    return f"{version} " + ", ".join(f"{word} {ms:,.0f}" for word, ms in worst.items()) + " ms"


def _total(runs: Sequence[Run], name: str) -> int:
    return sum(int(run.get(name, 0)) for run in runs)


def _shown(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 4 else ", ".join(map(str, numbers))
