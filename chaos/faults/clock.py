"""The wall clock of whoever was started with faketime: the server, or the workers."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from chaos import libraries

if TYPE_CHECKING:
    from chaos.stage import Stage


async def move_clock(stage: Stage, rng: random.Random, /, *, seconds: int = 3600, s: float = 1.5) -> None:
    """An hour forward or back, and after a while right again."""
    stage.note_fault(f"clock {'+' if seconds > 0 else '-'}1 h", stage.crew.alive)
    libraries.set_clock(stage.folder, seconds)
    await asyncio.sleep(s * rng.uniform(0.8, 1.2))
    libraries.set_clock(stage.folder, 0)
    stage.healed_fault("clock")
