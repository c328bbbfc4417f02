"""The event loop of ``headrace run`` and ``app.run()``: asyncio's own, with timers that are not rounded up (ADR 10).

epoll takes its time-out in whole milliseconds, and asyncio rounds up, so a handler that sleeps 5 ms sleeps nearly 6.
An epoll object can itself be waited for with select(), which takes microseconds: one system call more a turn of the
loop, and only where a timer is near. Elsewhere than on Linux, and beyond select's 1,024 descriptors, nothing changes.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

NEAR_S: Final = 0.1  # beyond it a millisecond does not matter
FD_LIMIT: Final = 1024  # of select()


def new_loop() -> asyncio.AbstractEventLoop:
    """A selector loop with fine timers where the system has epoll, else asyncio's default."""
    if sys.platform != "linux":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(FineSelector())


def run(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


if sys.platform == "linux":

    class FineSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """As EpollSelector, but a short time-out is kept to the microsecond."""
            if timeout is not None and 0 < timeout < NEAR_S and self.fileno() < FD_LIMIT:
                select.select((self.fileno(),), (), (), timeout)
                timeout = 0
            return super().select(timeout)
