"""Memory: the server has reached its limit and evicts nothing."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos.faults.healing import put_right

if TYPE_CHECKING:
    from chaos.stage import Stage


async def fill_memory(stage: Stage, rng: random.Random, /, *, s: float = 1.0) -> None:
    """maxmemory far below what is used: adds are refused, outcomes must go through."""
    stage.note_fault("maxmemory")
    nodes = await asyncio.to_thread(lambda: stage.topology.nodes)
    for node in nodes:
        await asyncio.to_thread(node.config_set, "maxmemory-policy", "noeviction")
        await asyncio.to_thread(node.config_set, "maxmemory", 1)
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    for node in nodes:
        await put_right(node.config_set, "maxmemory", 0)
    stage.healed_fault("maxmemory")
