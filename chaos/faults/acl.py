"""Rights: one is taken away, or the password changes under those who are connected."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import redis

from chaos.faults.healing import put_right
from chaos.topology import USER

if TYPE_CHECKING:
    from chaos.stage import Stage


async def remove_right(stage: Stage, rng: random.Random, /, *, s: float = 0.5) -> None:
    """One command is forbidden for a while: workers end with an error that names it, and are started again."""
    command = rng.choice(["xreadgroup", "evalsha", "xclaim", "xack"])
    stage.note_fault("right removed", stage.crew.alive, command=command)  # who leaves now cannot say so
    await asyncio.to_thread(_change, stage, f"-{command}")
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    await put_right(_change, stage, f"+{command}", "+@all")
    stage.healed_fault("right removed", stage.crew.alive)


async def rotate_password(stage: Stage, rng: random.Random, /, *, s: float = 0.5) -> None:
    """The password is changed and everybody thrown out; after a while the old one is good again."""
    stage.note_fault("password rotated", stage.crew.alive)
    await asyncio.to_thread(_change, stage, "resetpass", ">another")
    try:
        await asyncio.to_thread(_throw_out, stage)
        await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    except redis.RedisError:  # away by another fault: then everybody has to log in again
        pass
    await put_right(_change, stage, "resetpass", f">{stage.canary}")
    stage.healed_fault("password rotated", stage.crew.alive)


def _throw_out(stage: Stage) -> None:
    nodes: list[Any] = [*stage.topology.nodes]
    for node in nodes:
        for row in node.client_list():
            if row.get("user") == USER:
                node.client_kill_filter(_id=row["id"])


def _change(stage: Stage, *words: str) -> None:
    nodes: list[Any] = [*stage.topology.nodes]
    for node in nodes:
        node.execute_command("ACL", "SETUSER", USER, *words)
