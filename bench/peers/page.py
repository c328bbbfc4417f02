"""What a run has found, for people: a table, and the part of docs/peers.md between its markers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers import faults, rate, roster
from bench.peers.findings import IDEAL, RATIO
from bench.report import Run

BEGIN: Final = "<!-- python -m bench peers writes from here -->"
QUIET_CORES: Final = 0.3
END: Final = "<!-- to here -->"
_WAYS: Final = {"async": "async", "sync": "sync", "blocked": "loop blocked", "sigstop": "paused (SIGSTOP)"}


def tables(runs: Sequence[Run]) -> str:
    """Rates and faults, in Markdown."""
    parts = []
    if any("msgs_per_s" in run for run in runs):
        parts.append(_rates(sorted(runs, key=lambda run: -run.get("msgs_per_s", 0))))
    if any("fastest_late_s" in run for run in runs):
        parts.append(_faults(runs))
    return "\n\n".join([*parts, *_errors(runs)])


def _rates(runs: Sequence[Run]) -> str:
    head = (
        *("", "on", "empty handler, messages/s", "Headrace is", "CPU µs a message", "commands in the server a message"),
        *("requests to the server a message", f"5 ms handler, messages/s (ideal {IDEAL:,})"),
    )
    return _table(head, [_rate_row(run) for run in runs])


def _rate_row(run: Run) -> list[str]:
    times = run.get("headrace_is_times")
    return [
        f"{run['peer']} {run['peer_version']}",
        run["on"],
        _number(run.get("msgs_per_s")),
        f"{times:.1f} ×" if times else "",
        _number(run.get("cpu_us_per_message")),
        _number(run.get("server_calls_per_message")),
        _number(run.get("requests_per_message")),
        _number(run.get("pause_msgs_per_s")),
    ]


def _faults(runs: Sequence[Run]) -> str:
    head = ("", "killed: starts elsewhere, by default", "at its fastest", *(f"live: {way}" for way in _WAYS.values()))
    return _table(head, [_fault_row(run) for run in runs])


def _fault_row(run: Run) -> list[str]:
    late = [_seconds(run.get(f"{name}_late_s")) for name in ("default", "fastest")]
    return [f"{run['peer']} {run['peer_version']}", *late, *(_live(run, way) for way in faults.LIVE)]


def _seconds(value: Any) -> str:
    return "?" if value is None else f"{value} s"


def _live(run: Run, way: str) -> str:
    if way not in run:
        return "?"
    found: Mapping[str, Any] | None = run[f"{way}_tally"]
    if found is None:
        return "has none"
    text, unfinished = f"{found['executions']} for {found['messages']}", found["messages"] - found["ended"]
    if unfinished:
        return f"**{text}, {unfinished} never finished**"
    return f"**{text}**" if found["executions"] != found["messages"] and way != "sigstop" else text


def _errors(runs: Sequence[Run]) -> list[str]:
    lines = [f"- {run['peer']}: {why}" for run in runs for why in run["errors"]]
    return ["What went wrong:\n\n" + "\n".join(lines)] if lines else []


def _number(value: Any) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ── the page ──


def write(path: Path, told: Mapping[str, Any], chart: str | None) -> None:
    """Put the findings between the markers; everything else on the page stays. Raises ValueError without markers."""
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} has no place for the findings: it needs the lines {BEGIN!r} and {END!r}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{_findings(told, chart)}\n{END}{after}")


def _findings(told: Mapping[str, Any], chart: str | None) -> str:
    runs, machine = told["runs"], told["machine"]
    where = f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}, {runs[0]['version']}"
    rounds = max(len(run.get("all_msgs_per_s", ())) for run in runs)
    counts = "**Ratios count, not absolute figures**: all were taken in the same run."
    lines = [f"Measured on {told['date']}: {where}; rounds of rates: {rounds}. {counts}"]
    lines += [_busy(runs), *(_verdict(run, runs) for run in runs if "ratio" in run)]
    lines += [f"![Messages a second with an empty handler]({chart})"] if chart else []
    return "\n\n".join([*filter(None, lines), tables(runs), "### Settings", _settings(runs)])


def _busy(runs: Sequence[Run]) -> str:
    """A warning if the machine had other things to do while rates were measured."""
    cores = max((run.get("others_cores", 0.0) for run in runs), default=0.0)
    return f"The machine was not quiet: other things took up to {cores:.1f} cores." if cores > QUIET_CORES else ""


def _verdict(run: Run, runs: Sequence[Run]) -> str:
    """The criterion goes by rounds, the table by medians: the two need not name the same peer."""
    word = "reached" if run["ratio"] >= RATIO else "**not reached**"
    rivals = [one for one in runs if one["on"] == "streams" and one is not run and one.get("msgs_per_s")]
    quickest = max(rivals, key=lambda one: float(one["msgs_per_s"]))
    return (
        f"With an empty handler at {rate.SLOTS} slots Headrace does {run['ratio']:g} times what "
        f"{run['best_on_streams']} does, the closest of the peers on Redis Streams where round is compared with round "
        f"(the aim is {RATIO}: {word}). By the medians of the table {quickest['peer']} is the closest of them: "
        f"{run['msgs_per_s'] / quickest['msgs_per_s']:.1f} times."
    )


def _settings(runs: Sequence[Run]) -> str:
    measured = {run["peer"] for run in runs}
    return "\n".join(f"- {_words(peer)}" for peer in roster.EVERYBODY if peer.name in measured)


def _words(peer: roster.Peer) -> str:
    about = re.sub(r"\s+", " ", peer.about)
    return f"{about} (`{' '.join(peer.pins)}`)" if peer.pins else about
