"""Another server takes over: from a primary whose replica had fallen behind, and from one that only stood still.

What the new primary never heard of is forgotten: acks and reads since then. That is noted as a window, from before the
harm until all are in step again; what was touched in it may be done again, and nothing else may.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos.replicated import Replicated

if TYPE_CHECKING:
    from chaos.stage import Stage


def _replicated(stage: Stage) -> Replicated:
    assert isinstance(stage.topology, Replicated), "a failover needs servers with replicas"
    return stage.topology


async def failover_partitioned(
    stage: Stage, rng: random.Random, /, *, apart_s: tuple[float, float] = (0.3, 0.8)
) -> None:
    """The replica hears nothing for a while, then its primary dies: the replica takes over with what it had."""
    place, stream = _replicated(stage), rng.choice(stage.streams)
    primary = await asyncio.to_thread(place.primary_of, stream)
    stage.note_fault("failover, replica partitioned", forgets=True, stream=stream)
    await asyncio.to_thread(place.part, primary)
    await asyncio.sleep(rng.uniform(*apart_s))
    await asyncio.to_thread(primary.kill)
    successor = await asyncio.to_thread(place.await_failover, stream, primary)
    await asyncio.to_thread(place.rejoin, primary, successor)
    await asyncio.to_thread(place.until_in_step)
    stage.healed_fault("failover, replica partitioned")


async def zombie_primary(stage: Stage, rng: random.Random, /, *, awake_s: float = 1.5) -> None:
    """The primary stands still until another has taken over; then it wakes, and for a while takes itself for one."""
    place, stream = _replicated(stage), rng.choice(stage.streams)
    primary = await asyncio.to_thread(place.primary_of, stream)
    stage.note_fault("zombie primary", forgets=True, stream=stream)
    primary.pause()
    try:
        successor = await asyncio.to_thread(place.await_failover, stream, primary)
    finally:
        primary.cont()
    await asyncio.sleep(awake_s)
    await asyncio.to_thread(place.rejoin, primary, successor)
    await asyncio.to_thread(place.until_in_step)
    stage.healed_fault("zombie primary")
