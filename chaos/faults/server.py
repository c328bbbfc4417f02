"""The server: killed and started again, cut off from its disk's last words, paused, made a replica."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos import libraries
from chaos.faults.healing import put_right

if TYPE_CHECKING:
    from chaos.stage import Stage

BUFFERED_S = 2.0  # with appendfsync everysec so much may not be written yet, or not be synced


async def kill_server(stage: Stage, rng: random.Random, /, *, away_s: tuple[float, float] = (0.2, 0.8)) -> None:
    """SIGKILL, and a restart from its append-only file."""
    async with stage.moving:  # one at a time
        stage.note_fault("kill server", forgets=True, before_s=BUFFERED_S)
        await asyncio.to_thread(stage.server.kill)
        await asyncio.sleep(rng.uniform(*away_s))
        await asyncio.to_thread(stage.topology.restart, stage.server)
        stage.healed_fault("kill server")


async def power_loss(stage: Stage, rng: random.Random, /, *, away_s: tuple[float, float] = (0.1, 0.4)) -> None:
    """SIGKILL, then every file is cut to what was written when it was last synced, and the server restarts."""
    async with stage.moving:  # one at a time
        stage.note_fault("power loss", forgets=True, before_s=BUFFERED_S)
        await asyncio.to_thread(stage.server.kill)
        lost = _cut_to_synced(stage.server.directory, libraries.synced(stage.folder))
        stage.pen.note("power", lost_bytes=lost)
        await asyncio.sleep(rng.uniform(*away_s))
        await asyncio.to_thread(stage.topology.restart, stage.server)
        stage.healed_fault("power loss")


def _cut_to_synced(folder: Path, synced: dict[int, int]) -> int:
    """How many bytes were lost."""
    lost = 0
    for file in folder.rglob("*.aof"):
        about = file.stat()
        # A file that was never synced by itself is a base file, written whole and renamed: it stays.
        keep = synced.get(about.st_ino)
        if keep is not None and keep < about.st_size:
            lost += about.st_size - keep
            with file.open("r+b") as cut:
                cut.truncate(keep)
    return lost


async def pause_server(stage: Stage, rng: random.Random, /, *, leases: float = 2.0) -> None:
    """SIGSTOP: everybody waits, and nobody may be robbed for it."""
    async with stage.moving:  # one at a time
        stage.note_fault("pause server", stage.crew.alive)
        stage.server.pause()
        await asyncio.sleep(leases * stage.lease_s * rng.uniform(0.8, 1.2))
        stage.server.cont()
        stage.healed_fault("pause server")


async def turn_replica(stage: Stage, rng: random.Random, /, *, s: float = 0.5, stale: bool = True) -> None:
    """A replica of nobody: READONLY to every write, and MASTERDOWN to all with `stale` off."""
    stage.note_fault("READONLY" if stale else "MASTERDOWN", stage.crew.alive)
    admin: Any = stage.topology.admin
    await asyncio.to_thread(admin.config_set, "replica-serve-stale-data", "yes" if stale else "no")
    await asyncio.to_thread(admin.execute_command, "REPLICAOF", "127.0.0.1", "1")
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    await put_right(admin.execute_command, "REPLICAOF", "NO", "ONE")
    await put_right(admin.config_set, "replica-serve-stale-data", "yes")
    stage.healed_fault("turn replica", stage.crew.alive)
