"""Processes that stand still for a while and come back."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import redis

from chaos.worker import GROUP

if TYPE_CHECKING:
    from chaos.crew import Worker
    from chaos.stage import Stage

PATIENCE_S = 3.0  # how long beyond its time a sleeper is left until others have what it held
LOOK_S = 0.03


async def pause(
    stage: Stage, rng: random.Random, /, *, leases: float = 1.2, times: int = 1, between_s: float = 0.3
) -> None:
    """SIGSTOP a worker for so many leases, then SIGCONT; `times` 2: once more right after.

    Beyond a lease its messages are anybody's, and it is excused: it wakes when others have them, however busy they are,
    for that is when its outcomes must be refused. Under a lease nobody may take them.
    """
    joined = [worker for worker in stage.crew.alive if worker.joined and not worker.paused]
    if len(joined) < 2:
        return
    worker = rng.choice(joined)
    worker.paused = True
    stage.note_fault("pause", [worker], excuses=leases > 0.8)
    for _ in range(times):
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(leases * stage.lease_s * (rng.uniform(0.9, 1.1) if leases > 1 else 1.0))
        if leases > 1:
            await _taken_over(stage, worker)
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(between_s)
    worker.paused = False
    stage.healed_fault("pause", [worker])


async def _taken_over(stage: Stage, worker: Worker) -> None:
    """Return when a worker holds nothing any more, or after a while."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and worker.alive:
        try:
            if not await asyncio.to_thread(_held, stage, worker):
                return
        except redis.RedisError:  # the server is away, by another fault
            return
        await asyncio.sleep(LOOK_S)


def _held(stage: Stage, worker: Worker) -> int:
    """How much is pending for a worker: its owner's name says which process it is."""
    client: Any = stage.topology.admin
    rows = [row for stream in stage.streams for row in client.xinfo_consumers(stream, GROUP)]
    return sum(row["pending"] for row in rows if f"-{worker.pid}-" in row["name"].decode())
