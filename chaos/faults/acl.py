"""Rights: one is taken away, or the password changes under those who are connected."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from chaos.topology import USER

if TYPE_CHECKING:
    from chaos.stage import Stage


async def remove_right(stage: Stage, rng: random.Random, /, *, s: float = 0.5) -> None:
    """One command is forbidden for a while: workers end with an error that names it, and are started again."""
    command = rng.choice(["xreadgroup", "evalsha", "xclaim", "xack"])
    stage.note_fault("right removed", command=command)
    admin: Any = stage.topology.admin
    admin.execute_command("ACL", "SETUSER", USER, f"-{command}")
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    admin.execute_command("ACL", "SETUSER", USER, f"+{command}", "+@all")
    stage.healed_fault("right removed")


async def rotate_password(stage: Stage, rng: random.Random, /, *, s: float = 0.5) -> None:
    """The password is changed and everybody thrown out; after a while the old one is good again."""
    stage.note_fault("password rotated")
    admin: Any = stage.topology.admin
    admin.execute_command("ACL", "SETUSER", USER, "resetpass", ">another")
    for row in admin.client_list():
        if row.get("user") == USER:
            admin.client_kill_filter(_id=row["id"])
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    admin.execute_command("ACL", "SETUSER", USER, "resetpass", f">{stage.canary}")
    stage.healed_fault("password rotated")
