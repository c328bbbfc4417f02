"""Measure everybody in one run: rates in turn, round by round; faults some at a time, for they are mostly waiting.

What a peer cannot do, or did not do in time, is said in its run under ``errors``; the others are measured all the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import redis

from bench.arena import Arena, arena
from bench.peers import faults, rate, venvs
from bench.peers.roster import OURS, Peer
from bench.peers.stage import Trouble
from bench.report import Criterion, Report, Run
from headrace import __version__

SERVER: Final = "redis8"
RATIO: Final = 15
PARTS: Final = ("rates", "faults")
IDEAL: Final = rate.SLOTS * 1000 // 5
KINDS: Final = {"empty": "", "pause": "pause_"}  # of handlers, and what their figures' names begin with

CRITERIA: Final = (Criterion("ratio", "≥", RATIO, {"peer": OURS.name}),)
SHOWN: Final = (
    *("peer", "peer_version", "on", "msgs_per_s", "cpu_us_per_message", "server_calls_per_message"),
    *("requests_per_message", "others_cores", "pause_msgs_per_s", "default_late_s", "fastest_late_s"),
    *faults.LIVE,
)

Say = Callable[[str], None]
Found = dict[tuple[str, str], dict[int, Run]]
"""(peer, kind of handler) -> round -> what was measured. A round that failed is missing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    parts: Sequence[str] = PARTS
    rounds: int = 3
    seconds: float = rate.SECONDS
    wait_s: float = 75.0
    at_once: int = 2  # peers in trouble at the same time; twice as many where a peer's defaults are waited for


def measure(peers: Sequence[Peer], plan: Plan, say: Say, server: str = SERVER) -> list[Run]:
    """One run a peer, in the order of the roster."""
    with arena(server) as one:
        words = one.words
    runs = {peer.name: {**words, **_words(peer), "errors": []} for peer in peers}
    able = [peer for peer in peers if _installed(peer, runs[peer.name], say)]
    if "rates" in plan.parts:
        _rates(able, runs, plan, say, server)
    if "faults" in plan.parts:
        _faults(able, runs, plan, say, server)
    _compare(runs)
    return list(runs.values())


def report(runs: list[Run]) -> Report:
    return Report(
        "peers",
        f"an empty handler at {rate.SLOTS} slots, beside the peers",
        f"≥ {RATIO} × the best peer on Redis Streams",
        runs,
        CRITERIA,
        SHOWN,
        lambda runs: next((run for run in runs if run["peer"] == OURS.name), runs[0]),
        lambda runs: "; ".join(f"{run['ratio']:.1f} × {run['best_on_streams']}" for run in runs if "ratio" in run),
    )


def _words(peer: Peer) -> Run:
    return {"peer": peer.name, "peer_version": peer.version or __version__, "on": peer.on}


def _installed(peer: Peer, run: Run, say: Say) -> bool:
    with _forgiving(run, "install", say):
        if venvs.at_hand(peer) is None:
            say(f"installing {' '.join(peer.pins)}")
        venvs.python_of(peer)
    return not run["errors"]


@contextmanager
def _forgiving(run: Run, what: str, say: Say) -> Iterator[None]:
    """A peer's trouble is noted in its run, and ends nothing else."""
    try:
        yield
    except (Trouble, venvs.NotInstalled, redis.RedisError, subprocess.SubprocessError, OSError) as why:
        run["errors"].append(f"{what}: {why}")
        say(f"{run['peer']}: {what}: {why}")


# ── rates ──


def _rates(peers: Sequence[Peer], runs: dict[str, Run], plan: Plan, say: Say, server: str) -> None:
    found: Found = {}
    counts: dict[tuple[str, str], int] = {}
    with arena(server, tcp=True) as one:
        for number in range(plan.rounds):
            for peer in peers:
                for kind in KINDS:
                    with _forgiving(runs[peer.name], f"rate of {kind} handlers", say):
                        per_s = _one_rate(peer, one, kind, plan, number, counts, found)
                        say(f"round {number + 1}: {peer.name}: {per_s:,} messages/s with {kind} handlers")
    for (name, kind), rounds in found.items():
        some = [*rounds.values()]
        runs[name] |= {KINDS[kind] + key: _middle(some, key) for key in some[0]}
        every = [rounds[number]["msgs_per_s"] if number in rounds else None for number in range(plan.rounds)]
        runs[name][f"{KINDS[kind]}all_msgs_per_s"] = every


def _one_rate(
    peer: Peer,
    one: Arena,
    kind: str,
    plan: Plan,
    number: int,
    counts: dict[tuple[str, str], int],
    found: Found,
) -> int:
    which = (peer.name, kind)
    if which not in counts:
        counts[which] = rate.probe(peer, one, kind, plan.seconds)
    run = rate.measure(peer, one, kind, counts[which])
    found.setdefault(which, {})[number] = run
    return int(run["msgs_per_s"])


def _middle(some: Sequence[Run], key: str) -> Any:
    value = median(one[key] for one in some)
    return round(value) if key == "msgs_per_s" else value


def _compare(runs: dict[str, Run]) -> None:
    """How many times each peer, and the best one on streams, we are: in the middle of the rounds.

    What else runs on the machine comes and goes; within a round all had about the same of it.
    """
    ours = runs.get(OURS.name, {})
    rivals = [run for name, run in runs.items() if name != OURS.name and "msgs_per_s" in run]
    if "msgs_per_s" not in ours:
        return
    for run in rivals:
        pairs = zip(ours["all_msgs_per_s"], run["all_msgs_per_s"], strict=True)
        if ratios := [our / their for our, their in pairs if our and their]:  # None where a round failed
            run["headrace_is_times"] = round(median(ratios), 2)
    on_streams = [run for run in rivals if run["on"] == "streams" and "headrace_is_times" in run]
    if on_streams:
        best = min(on_streams, key=lambda run: float(run["headrace_is_times"]))
        ours |= {"best_on_streams": best["peer"], "ratio": best["headrace_is_times"]}


# ── faults ──


def _faults(peers: Sequence[Peer], runs: dict[str, Run], plan: Plan, say: Say, server: str) -> None:
    slowest_first = sorted(peers, key=lambda peer: -peer.idle_s)
    _in_turns(slowest_first, 2 * plan.at_once, lambda peer: _default_recovery(peer, runs[peer.name], plan, say, server))
    _in_turns(slowest_first, plan.at_once, lambda peer: _fastest(peer, runs[peer.name], plan, say, server))


def _in_turns(peers: Sequence[Peer], at_once: int, work: Callable[[Peer], None]) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        waiting: list[Future[None]] = [pool.submit(work, peer) for peer in peers]
        for one in waiting:
            one.result()


def _default_recovery(peer: Peer, run: Run, plan: Plan, say: Say, server: str) -> None:
    with _forgiving(run, "recovery at its defaults", say), arena(server, tcp=True) as one:
        _note_recovery(run, "default", faults.recovery(peer, one, fastest=False, wait_s=plan.wait_s), plan.wait_s)
        say(f"{peer.name}: recovery at its defaults {run['default_late_s']}")


def _fastest(peer: Peer, run: Run, plan: Plan, say: Say, server: str) -> None:
    wait_s = max(plan.wait_s, peer.idle_s + 30)
    with _forgiving(run, "fastest recovery", say), arena(server, tcp=True) as one:
        _note_recovery(run, "fastest", faults.recovery(peer, one, fastest=True, wait_s=wait_s), wait_s)
        say(f"{peer.name}: fastest recovery {run['fastest_late_s']}")
    for way in faults.LIVE:
        with _forgiving(run, f"live handlers, {way}", say), arena(server, tcp=True) as one:
            found = faults.live(peer, one, way)
            run[way] = "none" if found is None else f"{found['executions']} of {found['messages']}"
            run[f"{way}_tally"] = found
            say(f"{peer.name}: {way} handlers started {run[way]}")


def _note_recovery(run: Run, name: str, found: Run, wait_s: float) -> None:
    late_s = found["late_s"]
    run[f"{name}_late_s"] = f"> {wait_s:g}" if late_s is None else round(late_s, 2)
    run |= {f"{name}_{key}": found[key] for key in ("held", "came_back")}
