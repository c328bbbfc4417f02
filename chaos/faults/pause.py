"""Processes that stand still for a while and come back."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.stage import Stage


async def pause(
    stage: Stage, rng: random.Random, /, *, leases: float = 1.8, times: int = 1, between_s: float = 0.3
) -> None:
    """SIGSTOP a worker for so many leases, then SIGCONT; `times` 2: once more right after.

    Beyond a lease its messages are anybody's, and it is excused. Under one nobody may take them.
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
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(between_s)
    worker.paused = False
    stage.healed_fault("pause")
