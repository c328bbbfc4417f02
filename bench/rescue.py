"""30 × SIGKILL of a worker process that holds messages: how long until they are started elsewhere.

Three processes; in every round twelve messages are handed out, and one process is killed while its handlers run. The
time is measured from the kill to the start in another process, on the clock that all processes share. Under the
supervisor the parent hands the dead child's deliveries back; without it a sibling takes them over when their lease has
run out, which is counted from their last renewal and not from the kill.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.arena import Arena
from bench.crew import Crew, crew
from bench.report import Criterion, Report, Run, highest, quantile

KILLS: Final = 30
LEASE_S: Final = 1.0
PROCESSES: Final = 3
AT_ONCE: Final = 12  # messages in the hands of all processes when one is killed
HANDLER_S: Final = 0.4
SEED: Final = 7
WAYS: Final = {"supervised": True, "unsupervised": False}

CRITERIA: Final = (
    Criterion("supervised_p99_ms", "≤", 250, {}, " ms"),
    Criterion("unsupervised_p99_ms", "≤", LEASE_S * 1000 + 250, {}, " ms"),
    Criterion("lost", "=", 0),
    Criterion("duplicates", "=", 0),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "rescue",
        f"{KILLS} × SIGKILL of a worker that holds messages, lease {LEASE_S:g} s: from the kill to the start elsewhere",
        "p99 supervised ≤ 250 ms, unsupervised ≤ 1,250 ms; lost 0, twice 0",
        runs,
        CRITERIA,
        ("version", *(f"{who}_{what}_ms" for who in WAYS for what in ("p50", "p99")), "rescued", "lost", "duplicates"),
        highest("supervised_p99_ms"),
        _summary,
    )


def _summary(runs: Sequence[Run]) -> str:
    (run,) = runs
    late = f"supervised {run['supervised_p99_ms']:,.0f} ms, unsupervised {run['unsupervised_p99_ms']:,.0f} ms"
    return f"{late}; of {run['rescued']} lost {run['lost']}, twice {run['duplicates']}"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    kills = max(2, int(KILLS * scale))
    found: Run = {**arena.words, "lease_s": LEASE_S, "kills": kills}
    lost = duplicates = rescued = 0
    for name, supervised in WAYS.items():
        with crew(
            arena, processes=PROCESSES, supervised=supervised, lease_s=LEASE_S, concurrency=2 * AT_ONCE
        ) as workers:
            tally = _kill_many(workers, kills, supervised=supervised)
        for share in (50, 99):
            found[f"{name}_p{share}_ms"] = round(quantile(tally.late_ms, share / 100), 1)
        found[f"{name}_max_ms"] = round(max(tally.late_ms, default=0.0), 1)
        lost, duplicates, rescued = lost + tally.lost, duplicates + tally.duplicates, rescued + len(tally.late_ms)
        say(f"{name}: p99 {found[f'{name}_p99_ms']} ms over {len(tally.late_ms)} messages")
    return [{**found, "rescued": rescued, "lost": lost, "duplicates": duplicates}]


@dataclass(slots=True)
class Tally:
    """``duplicates``: more than one outcome, or started again although its owner was not the one killed."""

    late_ms: list[float] = field(default_factory=list)
    lost: int = 0
    duplicates: int = 0


def _kill_many(workers: Crew, kills: int, *, supervised: bool) -> Tally:
    tally, rng = Tally(), random.Random(SEED)
    for _ in range(kills):
        workers.start()
        workers.ready()
        time.sleep(LEASE_S * 0.6)  # nobody rescues within half a lease after connecting
        ids = workers.add("tasks", AT_ONCE, s=HANDLER_S)
        victim = workers.pick(workers.started(ids), rng)
        time.sleep(rng.uniform(0, HANDLER_S / 2))
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        if not supervised:
            workers.start()
        workers.settled("tasks", ids, 10 * LEASE_S)
        _judge(workers, ids, victim, killed_at, tally)
    return tally


def _judge(workers: Crew, ids: list[str], victim: int, killed_at: float, tally: Tally) -> None:
    outcomes = workers.outcomes("tasks", ids)
    tally.lost += outcomes.count(0)
    tally.duplicates += sum(count > 1 for count in outcomes)
    events = workers.history.events()
    ended = {event.id for event in events if event.op == "end" and event.pid == victim}
    for id_ in ids:
        starts = [event for event in events if event.op == "start" and event.id == id_]
        if starts[0].pid != victim:
            tally.duplicates += len(starts) > 1
        elif id_ not in ended and len(starts) > 1:
            tally.late_ms.append((starts[1].at - killed_at) * 1000)
