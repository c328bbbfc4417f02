"""A slot goes to another master while its stream is read, written and acked."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos.replicated import InCluster
from tests.support.moves import another, move_atomically, move_classic

if TYPE_CHECKING:
    from chaos.stage import Stage


async def move_slot(stage: Stage, rng: random.Random, /, *, atomic: bool = False) -> None:
    """Key by key, or all at once where the server can (Redis 8.4+)."""
    place, stream = stage.topology, rng.choice(stage.streams)
    assert isinstance(place, InCluster), "slots are a cluster's"
    way = move_atomically if atomic and place.native else move_classic
    async with stage.moving:  # one at a time, as an operator would
        source = await asyncio.to_thread(place.primary_of, stream)
        target = await asyncio.to_thread(another, place.cluster, source)
        stage.note_fault("slot moved atomically" if way is move_atomically else "slot moved")
        await asyncio.to_thread(way, place.cluster, stream, source, target)
        stage.healed_fault("slot moved")
