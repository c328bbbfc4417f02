"""The loop's pulse: what threads go by to tell a busy event loop from one that stands still (DESIGN 9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Pulse:
    """The loop's sign of life: a stamp that the loop renews and the thread reads."""

    def __init__(self, every_s: float, tell: Callable[[float], None] | None = None) -> None:
        self._every_s = every_s
        self._tell = tell
        self._handle: asyncio.TimerHandle | None = None
        self.at = time.monotonic()

    def start(self) -> None:
        self._beat(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.at = time.monotonic()
        if self._tell is not None:
            self._tell(self.at)
        self._handle = loop.call_later(self._every_s, self._beat, loop)
