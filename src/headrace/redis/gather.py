"""Calls of many tasks gathered into one write, and sent until they are answered.

For calls that may be repeated: a server that is away or full is waited for, and what has no answer is sent again. What
nobody can help is raised to whoever made the call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import Any, Final, Protocol, TypeVar

from headrace.errors import HeadraceError, Unavailable, Verdict, classify
from headrace.policy import reconnect_delay_ms
from headrace.redis.calls import Call
from headrace.redis.link import Link

log = logging.getLogger("headrace")

T = TypeVar("T")

BATCH: Final = 200
PAUSE_CAP_MS: Final = 1_000  # outcomes are short of time: siblings wait for them

Waiting = tuple[Call[Any], "asyncio.Future[Any]"]


class Calls(Protocol):
    """Whoever sends a call until it is answered: one gather, or one for each shard (shards.Spread)."""

    async def call(self, call: Call[T]) -> T: ...


class Gather:
    def __init__(self, link: Link) -> None:
        self.link = link
        self._queue: deque[Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def call(self, call: Call[T]) -> T:
        if self._closed:
            raise Unavailable("this worker has ended: its connections are closed")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((call, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="headrace gather")
        return await answer

    async def close(self) -> None:
        """Give up what has no answer, and close the link."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, answer in self._queue:
            _tell(answer, Unavailable("the worker ended before the server answered"))
        self._queue.clear()
        await self.link.close()

    async def _send_all(self) -> None:
        tries = 0
        await asyncio.sleep(0)  # whoever is ready now goes into the same write
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            try:
                answers: list[Any] = await self.link.pipe([call for call, _ in batch])
            except HeadraceError as error:
                answers = [error] * len(batch)
            except asyncio.CancelledError:
                self._queue.extendleft(reversed(batch))
                raise
            except Exception as error:  # noqa: BLE001 - a bug, and whoever waits must not wait for ever
                answers = [error] * len(batch)
            if away := self._settle(batch, answers):
                if tries in (0, 5) or tries % 20 == 0:
                    log.warning("server.waits tries=%d: %s", tries + 1, away)
                await asyncio.sleep(min(PAUSE_CAP_MS, reconnect_delay_ms(tries, random.random())) / 1000)
                tries += 1
            else:
                tries = 0

    def _settle(self, batch: list[Waiting], answers: list[Any]) -> HeadraceError | None:
        """Tell what is known; the rest goes to the front again. Answers why, if there is a rest."""
        away, again = None, []
        for waiting, answer in zip(batch, answers, strict=True):
            if isinstance(answer, HeadraceError) and classify(answer) is Verdict.RETRY:
                away = answer
                again.append(waiting)
            else:
                _tell(waiting[1], answer)
        self._queue.extendleft(reversed(again))
        return away


def _tell(answer: asyncio.Future[Any], value: Any) -> None:
    if answer.done():
        return
    if isinstance(value, Exception):
        answer.set_exception(value)
    else:
        answer.set_result(value)
