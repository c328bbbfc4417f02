"""Handlers five times as long as the lease, in live processes that are busy in five ways: is any message run twice?

    async      the handler awaits                          sync       the handler blocks a thread
    blocked    others block the event loop, 60 ms at a time, all the time
    gil        native code holds the GIL for three leases, under the supervisor
    sigstop    the process is paused for one and a half leases: taken over, so a second execution is right, but of
               its two outcomes only one counts

Three processes each time, so that there is always a sibling that would take over.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.arena import Arena
from bench.crew import Crew, crew
from bench.report import Criterion, Report, Run, highest

LEASE_S: Final = 2.0
HANDLER_LEASES: Final = 5
GIL_LEASES: Final = 3
PAUSE_LEASES: Final = 1.5
BLOCK_S: Final = 0.06
PROCESSES: Final = 3
MESSAGES: Final = {"async": 20, "sync": 12, "blocked": 4, "gil": 2, "sigstop": 9}

CRITERIA: Final = (
    *(Criterion("extra_executions", "=", 0, {"kind": kind}) for kind in ("async", "sync", "blocked", "gil")),
    *(Criterion("wrong_outcomes", "=", 0, {"kind": kind}) for kind in MESSAGES),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "alive",
        f"handlers of {LEASE_S * HANDLER_LEASES:g} s at a lease of {LEASE_S:g} s: async, sync, loop blocked 60 ms at a "
        f"time, GIL held {LEASE_S * GIL_LEASES:g} s, SIGSTOP {LEASE_S * PAUSE_LEASES:g} s",
        "executions = messages; SIGSTOP: one outcome each",
        runs,
        CRITERIA,
        ("version", "kind", "messages", "executions", "outcomes", "wrong_outcomes", "refused"),
        highest("unwanted"),
        _summary,
    )


def _summary(runs: Sequence[Run]) -> str:
    live = [run for run in runs if run["kind"] != "sigstop"]
    text = f"{sum(run['executions'] for run in live)} of {sum(run['messages'] for run in live)}"
    return text + "".join(
        f"; SIGSTOP: {run['outcomes']} outcomes of {run['messages']}, {run['refused']} refused"
        for run in runs
        if run["kind"] == "sigstop"
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    lease_s = LEASE_S if scale >= 1 else LEASE_S / 4
    runs = []
    for kind, messages in MESSAGES.items():
        found = _run(arena, kind, messages, lease_s)
        say(f"{kind}: {messages} messages, {found['executions']} executions, {found['outcomes']} outcomes")
        runs.append({**arena.words, "kind": kind, "lease_s": lease_s, "messages": messages, **found})
    return runs


def _run(arena: Arena, kind: str, messages: int, lease_s: float) -> Run:
    settings: dict[str, Any] = {"lease_s": lease_s, "concurrency": 1 if kind == "gil" else 24}
    handler_s = lease_s * HANDLER_LEASES
    with crew(arena, processes=PROCESSES, supervised=kind == "gil", **settings) as workers:
        time.sleep(lease_s)  # from here on every sibling may rescue
        stream = "plain" if kind == "sync" else "tasks"
        payload = {"s": handler_s} | ({"gil_s": lease_s * GIL_LEASES} if kind == "gil" else {})
        if kind == "blocked":
            workers.add("blocks", int(handler_s / BLOCK_S) * PROCESSES, s=BLOCK_S)
        ids = workers.add(stream, messages, **payload)
        starts = workers.started(ids)
        if kind == "sigstop":
            _pause(workers.pick(starts, random.Random(7)), lease_s)
        workers.settled(stream, ids, 4 * handler_s)
        time.sleep(handler_s / 2 if kind == "sigstop" else lease_s / 2)  # what a former owner would say comes by then
        found = _tally(workers, stream, ids)
    allowed = found["extra_executions"] if kind == "sigstop" else 0
    return {**found, "unwanted": found["extra_executions"] - allowed + found["wrong_outcomes"]}


def _pause(pid: int, lease_s: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(lease_s * PAUSE_LEASES)
    os.kill(pid, signal.SIGCONT)


def _tally(workers: Crew, stream: str, ids: list[str]) -> Run:
    wanted = set(ids)
    executions = sum(event.id in wanted for event in workers.history.starts())
    outcomes = workers.outcomes(stream, ids)
    return {
        "executions": executions,
        "extra_executions": executions - len(ids),
        "outcomes": sum(outcomes),
        "wrong_outcomes": sum(count != 1 for count in outcomes),  # none, or more than one
        "refused": len(workers.history.events("refused")),
    }
