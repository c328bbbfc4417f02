"""What the server keeps beside the data: loaded scripts, and whether it tells of keys."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.stage import Stage


async def flush_scripts(stage: Stage, rng: random.Random, /) -> None:
    """SCRIPT FLUSH: as after a failover, nobody's scripts are there."""
    stage.note_fault("SCRIPT FLUSH")
    for node in await asyncio.to_thread(lambda: stage.topology.nodes):
        await asyncio.to_thread(node.script_flush)


async def keyspace(stage: Stage, rng: random.Random, /, *, keys: int = 500) -> None:
    """Keyspace notifications on or off by chance, and a flood of keys that expire."""
    stage.note_fault("keyspace events")
    admin = stage.topology.admin
    told = rng.choice(["", "KEA", "Ex"])
    for node in await asyncio.to_thread(lambda: stage.topology.nodes):
        await asyncio.to_thread(node.config_set, "notify-keyspace-events", told)
    pipe = admin.pipeline(transaction=False)
    for number in range(keys):
        pipe.set(f"bystander:{number}", "x", px=rng.randrange(1, 300))
    await asyncio.to_thread(pipe.execute)
