"""Threads for plain def handlers: daemons, because one that outlives its grace must not hold the process (SPEC 22).

concurrent.futures joins its threads at exit, so a released delivery would keep its process alive until the handler has
come to an end nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", contextvars.Context, Callable[..., Any], tuple[Any, ...]]


class Threads:
    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it in a thread, in the caller's context. Cancelling stops the waiting, not the thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle == 0 and len(self._threads) < self._limit:
                self._start()
            else:
                self._idle -= 1
        self._queue.put((loop, answer, contextvars.copy_context(), function, args))
        return await answer

    def close(self) -> None:
        """Let idle threads end. Those that run a handler end with it."""
        for _ in self._threads:
            self._queue.put(None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            loop, answer, context, function, args = work
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as raised:  # noqa: BLE001 - told to whoever waits for it
                error = raised
            with self._lock:
                self._idle += 1
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(_tell, answer, result, error)
            del work, answer, context, function, args, result, error


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if isinstance(error, StopIteration):  # asyncio refuses it in a future
        error = RuntimeError(f"handler raised StopIteration: {error}")
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
