"""Another server takes over: from a primary whose replica had fallen behind, and from one that only stood still.

What the new primary never heard of is forgotten: acks and reads since then. That is noted as a window, from before the
harm until nobody takes the former primary for one any more; what was touched in it, on that shard, may be done again,
and nothing else may.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos.replicated import Replicated

if TYPE_CHECKING:
    from chaos.stage import Stage

ON_ITS_WAY_S = 0.2  # what a primary answered so shortly before may not have reached its replica


def _replicated(stage: Stage) -> Replicated:
    assert isinstance(stage.topology, Replicated), "a failover needs servers with replicas"
    return stage.topology


async def failover_partitioned(
    stage: Stage, rng: random.Random, /, *, apart_s: tuple[float, float] = (0.3, 0.8)
) -> None:
    """The replica hears nothing for a while, then its primary dies: the replica takes over with what it had."""
    async with stage.moving:  # a slot half moved when its master dies would be the operator's to mend
        place, stream = _replicated(stage), rng.choice(stage.streams)
        primary = await asyncio.to_thread(place.primary_of, stream)
        stage.note_fault("failover, replica partitioned", forgets=True, before_s=ON_ITS_WAY_S, stream=stream)
        await asyncio.to_thread(place.part, primary)
        await asyncio.sleep(rng.uniform(*apart_s))
        await asyncio.to_thread(primary.kill)
        successor = await asyncio.to_thread(place.await_failover, stream, primary)
        stage.healed_fault("failover, replica partitioned")  # what the successor says from now on is kept
        await asyncio.to_thread(place.rejoin, primary, successor)
        await asyncio.to_thread(place.until_in_step)


async def zombie_primary(stage: Stage, rng: random.Random, /, *, awake_s: float = 1.5) -> None:
    """The primary stands still until another has taken over; then it wakes, and for a while takes itself for one."""
    async with stage.moving:  # a slot half moved when its master dies would be the operator's to mend
        place, stream = _replicated(stage), rng.choice(stage.streams)
        primary = await asyncio.to_thread(place.primary_of, stream)
        stage.note_fault("zombie primary", forgets=True, before_s=ON_ITS_WAY_S, stream=stream)
        primary.pause()
        try:
            successor = await asyncio.to_thread(place.await_failover, stream, primary)
        finally:
            primary.cont()
        await asyncio.sleep(awake_s)
        await asyncio.to_thread(place.rejoin, primary, successor)
        stage.healed_fault("zombie primary")
        await asyncio.to_thread(place.until_in_step)
