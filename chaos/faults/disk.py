"""The server's disk: full, and free again."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.stage import Stage


async def fill_disk(stage: Stage, rng: random.Random, /, *, s: float = 1.0) -> None:
    """Fill the file system that holds the append-only file; every write is answered MISCONF until there is room."""
    stage.note_fault("disk full")
    ballast = stage.server.directory / "ballast"
    with suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(b"\0" * 65_536)
            file.flush()
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    ballast.unlink()
    stage.healed_fault("disk full")
