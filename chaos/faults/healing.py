"""To heal a fault while others go on: what was set in a server is put right again, also if it is away just then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import redis

AWAY_S: Final = 10.0  # no fault keeps a server away for longer
AGAIN_S: Final = 0.2


async def put_right(step: Callable[..., Any], *words: Any) -> None:
    """Call this in a thread until the server has heard it. It may be repeated: its answer can be what was lost."""
    until = time.monotonic() + AWAY_S
    while True:
        try:
            await asyncio.to_thread(step, *words)
        except redis.RedisError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            return
