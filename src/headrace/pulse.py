"""The loop's pulse: what threads go by to tell a busy event loop from one that stands still (DESIGN 9)."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType

log = logging.getLogger("headrace")


class Pulse:
    """The loop's sign of life: a stamp that the loop renews and the thread reads."""

    def __init__(self, every_s: float, tell: Callable[[float], None] | None = None) -> None:
        self._every_s = every_s
        self._tell = tell
        self._handle: asyncio.TimerHandle | None = None
        self.at = time.monotonic()
        self._stood_since = self._woke_at = 0.0  # the last time that it stood still

    def start(self) -> None:
        self._beat(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def arrived_after(self, now: float) -> float:
        """Since when an answer that is read now may have lain there, because the loop stood still: a lease begins when
        the server sends, and not when somebody has time to look."""
        if now - self.at > 2 * self._every_s:
            return self.at
        return self._stood_since if now - self._woke_at < self._every_s else now

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        before, self.at = self.at, time.monotonic()
        if self.at - before > 2 * self._every_s:
            self._stood_since, self._woke_at = before, self.at
        self._handle = loop.call_later(self._every_s, self._beat, loop)  # first: what is told may raise
        if self._tell is not None:
            self._tell(self.at)


class Vigil:
    """Judges the loop by its pulse, from a thread.

    Blocked for half a lease: told, with the name of the handler that blocks it (``names`` knows them by their code).
    Still for ``stall_s``: nothing may be renewed any more.
    """

    def __init__(
        self,
        pulse: Pulse,
        *,
        lease_s: float,
        stall_s: float,
        names: Mapping[CodeType, str],
        stalled: Callable[[], None],
    ) -> None:
        self._pulse = pulse
        self._blocked_s = lease_s / 2
        self._stall_s = stall_s
        self._names = names
        self._tell_stalled = stalled
        self._loop_thread = threading.get_ident()  # made on the loop
        self._warned_at = 0.0
        self._stalled = False

    def is_stalled(self, now: float) -> bool:
        still_s = now - self._pulse.at
        if still_s > self._blocked_s and now - self._warned_at > max(1.0, self._blocked_s):
            self._warned_at = now
            log.warning("loop.blocked for %.1f s by %s: leases are kept alive meanwhile", still_s, self._blocker())
        if still_s <= self._stall_s:
            self._stalled = False
        elif not self._stalled:
            self._stalled = True
            self._tell_stalled()
            log.error(
                "loop.stalled for %.1f s by %s: renewals stop, a sibling will take over", still_s, self._blocker()
            )
        return self._stalled

    def _blocker(self) -> str:
        """The handler on the loop's stack, else the innermost function there."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way
        inner = f"{frame.f_code.co_qualname}" if frame is not None else "something unknown"
        while frame is not None:
            if frame.f_code in self._names:
                return f"handler {self._names[frame.f_code]}"
            frame = frame.f_back
        return inner
