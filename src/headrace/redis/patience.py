"""How long an answer is waited for, where a handler may stop the event loop meanwhile.

A timeout of asyncio counts the time in which the loop stood still, and is carried out before the loop looks at what has
arrived: after a handler has blocked it, answers that lie in the socket would count as missing, a good connection would
be dropped, and an outcome that the server has taken would be sent again. So that time is given back, once.

Where another server may take over, nobody waits for one that has been replaced: what it was asked may have happened or
not, as after any time that is over, and there is somebody else to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

STOOD_S: Final = 0.02  # a timer that is later than this was held up
LOOK_S: Final = 0.1  # how often to look whether another one has taken over


class Patience:
    """``asyncio.timeout`` without the time in which the loop stood still at the end."""

    __slots__ = ("_loop", "_scope", "_timer", "_until", "is_replaced", "replaced", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # in all
        self.is_replaced: Callable[[], bool] | None = None  # asked every moment
        self.replaced = False

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + self.seconds
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, where)

    def _wait(self) -> None:
        look_at = self._until if self.is_replaced is None else min(self._until, self._loop.time() + LOOK_S)
        self._timer = self._loop.call_at(look_at, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self.is_replaced is not None and self.is_replaced():
            self.replaced = True
            self._scope.reschedule(now + STOOD_S)  # what has arrived meanwhile is still read
        elif now < self._until:
            self._wait()
        else:
            self._is_over(now)

    def _is_over(self, now: float) -> None:
        stood_s = now - self._until
        self._scope.reschedule(now + (min(stood_s, self.seconds) if stood_s > STOOD_S else 0.0))

    def extend(self, seconds: float) -> None:
        """The server may block on what is waited for now."""
        self._timer.cancel()
        self.seconds += seconds
        self._until += seconds
        self._wait()
