"""Runners: a pool of long-lived tasks that lead deliveries, one at a time each, through the executor.

A task a message costs more than the message (FACTS, "Client"). A runner takes the next delivery without giving up the
loop, so handlers that never wait cost no switch at all; each runner that was woken wakes two others while there is
work, so handlers that do wait are all started within a few turns of the loop.

A handler that leaves a context variable changed would show it to the next message of the same runner: such a runner is
replaced by a fresh one in the clean context.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.message import Delivery

TURN_S = 0.005  # how long one runner goes on before it lets the loop turn


class Runners:
    def __init__(
        self,
        limit: int,
        queue: deque[Delivery[Any]],
        run: Callable[[list[Delivery[Any]]], Awaitable[None]] | Callable[[Delivery[Any]], Awaitable[None]],
        *,
        batch: int | None = None,
        batch_wait_ms: int = 0,
    ) -> None:
        self._limit = limit
        self._queue = queue
        self._run: Callable[[Any], Awaitable[None]] = run
        self._batch = batch
        self._batch_wait_s = batch_wait_ms / 1000
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self.closed = False

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        return self._tasks

    @property
    def busy(self) -> int:
        return len(self._tasks) - len(self._idle)

    def wake(self, runners: int = 2) -> None:
        """There is work: wake idle runners, or start new ones up to the limit."""
        if self.closed:
            return
        while runners and self._queue:
            if self._idle:
                waiting = self._idle.pop()
                if not waiting.done():
                    waiting.set_result(None)
            elif len(self._tasks) < self._limit:
                self._start()
            else:
                return
            runners -= 1

    def close(self) -> None:
        """Start nothing any more. What runs goes on."""
        self.closed = True
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()

    def cancel(self) -> None:
        """End what runs, now: its handlers see CancelledError and their deliveries are released."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until every runner has come to its end."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        context = self._context.copy()
        loop = asyncio.get_running_loop()
        work = self._gather if self._batch else self._serve
        task = loop.create_task(work(), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a runner of Headrace died: this is a bug", "exception": error, "task": task}
            )
        self.wake(1)

    async def _serve(self) -> None:
        """One delivery after the other until the context is dirty or the pool closed."""
        queue, run, clean = self._queue, self._run, contextvars.copy_context()
        woken, begun = True, time.monotonic()
        while not self.closed:
            if not queue:
                await self._wait()
                woken, begun = True, time.monotonic()
                continue
            delivery = queue.popleft()
            if woken and queue:
                self.wake()
            woken = False
            await run(delivery)
            if contextvars.copy_context() != clean:
                return
            if time.monotonic() - begun > TURN_S:
                await asyncio.sleep(0)
                begun = time.monotonic()

    async def _gather(self) -> None:
        """The same for batch handlers: as many deliveries as there are, waiting a moment for the batch to fill."""
        queue, clean, size = self._queue, contextvars.copy_context(), self._batch or 1
        waited = False
        while not self.closed:
            if not queue:
                await self._wait()
                continue
            if len(queue) < size and self._batch_wait_s and not waited:
                await asyncio.sleep(self._batch_wait_s)
                waited = True
                continue
            waited = False
            batch = [queue.popleft() for _ in range(min(size, len(queue)))]
            if queue:
                self.wake()
            if batch:
                await self._run(batch)
            if contextvars.copy_context() != clean:
                return

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        await waiting
