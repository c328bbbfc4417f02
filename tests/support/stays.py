"""The opposite of wait_until: something must stay true for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def stays(predicate: Callable[[], object], seconds: float, interval: float = 0.02) -> None:
    """Ask again and again for so long; the first untrue answer is an error."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert predicate(), f"untrue {until - time.monotonic():.2f} s before the end"
        await asyncio.sleep(interval)


def stays_sync(predicate: Callable[[], object], seconds: float, interval: float = 0.02) -> None:
    """The same for tests without an event loop."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert predicate(), f"untrue {until - time.monotonic():.2f} s before the end"
        time.sleep(interval)
