"""How long an answer is waited for, where a handler may stop the event loop meanwhile.

A timeout of asyncio counts the time in which the loop stood still, and is carried out before the loop looks at what has
arrived: after a handler has blocked it, answers that lie in the socket would count as missing, a good connection would
be dropped, and an outcome that the server has taken would be sent again. So that time is given back, once.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

STOOD_S: Final = 0.02  # a timer that is later than this was held up


class Patience:
    """``asyncio.timeout`` without the time in which the loop stood still at the end."""

    __slots__ = ("_loop", "_scope", "_seconds", "_timer", "_until")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + self._seconds
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        self._timer = self._loop.call_at(self._until, self._is_over)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(kind, error, where)

    def _is_over(self) -> None:
        now = self._loop.time()
        stood_s = now - self._until
        self._scope.reschedule(now + (min(stood_s, self._seconds) if stood_s > STOOD_S else 0.0))
