"""The app: streams, handlers and what they need, on one server. Assembles, and does nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar, overload

from headrace import embedded, loop
from headrace.assignments import Assignments
from headrace.board import Board
from headrace.config import ConnectSettings, duration_ms
from headrace.errors import ConfigError, HandlerRefused
from headrace.holding import Holding
from headrace.job import Job
from headrace.names import check_owner, owner_name
from headrace.ownerjob import OwnerJob
from headrace.partitioned import PartitionedStream
from headrace.producer import Producer
from headrace.recorder import NoRecorder, Recorder
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.link import Link
from headrace.stream import Stream
from headrace.tenure import Tenants
from headrace.worker import Worker

log = logging.getLogger("headrace")

EMBEDDED_PATH = ".headrace"

T = TypeVar("T")
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class App:
    """Everything of one program on one server.

    ``url``: redis://, rediss://, unix://, redis+sentinel://, redis+cluster://; without one HEADRACE_URL, without that
    an embedded server that all programs of this directory share. ``owner`` fixes the owner's name (without it every
    start has a unique one).
    ``lifespan`` is entered before the first message and left after the last.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        owner: str | None = None,
        recorder: Recorder | None = None,
        grace: float | str = "30s",
        connect: ConnectSettings | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        self._url = url
        self._owner = None if owner is None else check_owner(owner)
        self.recorder: Recorder = recorder or NoRecorder()
        self._grace_s = duration_ms(grace, name="grace") / 1000
        self._connect = connect
        self._lifespan = lifespan
        self._server: Server | None = None
        self._private: embedded.Embedded | None = None
        self._jobs: list[Job] = []
        self._owner_jobs: list[OwnerJob] = []
        self._factories: dict[type, Callable[..., Any]] = {}
        self._hooks: list[Callable[[], Any]] = []
        self._last_hooks: list[Callable[[], Any]] = []
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Producer, Link]] = (
            weakref.WeakKeyDictionary()
        )
        self._by_thread = threading.local()
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def __repr__(self) -> str:
        where = "not connected yet" if self._server is None else self._server.endpoint.masked
        return f"<App {where}, {len(self._jobs) + len(self._owner_jobs)} handlers>"

    # ── where ──

    @property
    def server(self) -> Server:
        """The server of this app; starts the embedded one if no URL is known."""
        if self._server is None:
            url = self._url or os.environ.get("HEADRACE_URL") or self._embedded().url
            self._server = Server(url, self._connect)
        return self._server

    def _embedded(self) -> embedded.Embedded:
        """The server that all programs started in this directory share; its data is kept in .headrace."""
        if self._private is None:
            self._private = embedded.shared(EMBEDDED_PATH)
        return self._private

    def reset_topology(self) -> None:
        """Read the map of the cluster, or the primary's address, again before the next call (SPEC 50).

        Headrace follows failovers and moved slots by itself. This is for whoever has just changed the topology and
        does not want to wait: the workers of this app in this process also choose anew, at once, which master tells
        them of expired locks. Call it on their event loop. On one node it does nothing.
        """
        if self._server is not None:
            self._server.reset_topology()
        for worker in self._workers:
            worker.reset_topology()

    # ── what ──

    @overload
    def stream(
        self, name: str, model: type[T], *, max_bytes: int | str | None = None, partitions: int
    ) -> PartitionedStream[T]: ...
    @overload
    def stream(
        self, name: str, model: Any = None, *, max_bytes: int | str | None = None, partitions: int
    ) -> PartitionedStream[Any]: ...
    @overload
    def stream(self, name: str, model: type[T], *, max_bytes: int | str | None = None) -> Stream[T]: ...
    @overload
    def stream(self, name: str, model: Any = None, *, max_bytes: int | str | None = None) -> Stream[Any]: ...
    def stream(
        self, name: str, model: Any = None, *, max_bytes: int | str | None = None, partitions: int | None = None
    ) -> Stream[Any] | PartitionedStream[Any]:
        """A stream by name. ``model``: dataclass, pydantic or msgspec model, dict (the default), str, bytes, codec.

        With ``partitions`` its messages are spread over so many streams, by their key.
        """
        if partitions is not None:
            return PartitionedStream(self, name, model, partitions=partitions, max_bytes=max_bytes)
        return Stream(self, name, model, max_bytes=max_bytes)

    @overload
    def assignments(
        self, name: str, model: type[T], *, group: str = "owners", max_bytes: int | str | None = None, **options: Any
    ) -> Assignments[T]: ...
    @overload
    def assignments(
        self, name: str, model: Any = None, *, group: str = "owners", max_bytes: int | str | None = None, **options: Any
    ) -> Assignments[Any]: ...
    def assignments(
        self, name: str, model: Any = None, *, group: str = "owners", max_bytes: int | str | None = None, **options: Any
    ) -> Assignments[Any]:
        """Streams of streams: announced by name, each owned whole and in order by one owner at a time.

        ``model`` is what their messages hold, as for :meth:`stream`. Options, also of @rooms.owner(): lease,
        concurrency, prefetch, rebalance, max_attempts, backoff, stall_after, start, dead_letters_maxlen, prefix,
        owner_retention.
        """
        made: Assignments[Any] = Assignments(self, name, model, group=group, max_bytes=max_bytes, options=options)
        return made

    def provide(self, kind: type[T], factory: Callable[[], Any]) -> None:
        """Say how to make what handlers ask for by type. The factory is a function, a coroutine function or an async
        generator that yields once; it is called at the worker's start, and a generator goes on at its end.

        Provide before the handlers that ask for it are registered.
        """
        self._factories[kind] = factory

    @property
    def provided_types(self) -> frozenset[type]:
        return frozenset(self._factories)

    def on_start(self, hook: Callable[[], Any]) -> Callable[[], Any]:
        """Call this (async or not) before the worker reads its first message."""
        self._hooks.append(hook)
        return hook

    def on_stop(self, hook: Callable[[], Any]) -> Callable[[], Any]:
        """Call this (async or not) after the worker ended its last message."""
        self._last_hooks.append(hook)
        return hook

    def register(self, job: Job) -> None:
        if any((known.stream, known.group) == (job.stream, job.group) for known in self._jobs):
            raise HandlerRefused(
                f"{job.name}: group {job.group!r} of stream {job.stream!r} has a handler already: "
                "give this one another group, and both see every message"
            )
        self._jobs.append(job)

    def register_owner(self, job: OwnerJob) -> None:
        if any((known.stream, known.group) == (job.stream, job.group) for known in self._owner_jobs):
            raise HandlerRefused(
                f"{job.name}: group {job.group!r} of {job.stream!r} has an owner already: give this one another group"
            )
        self._owner_jobs.append(job)

    @property
    def url(self) -> str | None:
        """The URL given in the code, if any."""
        return self._url

    @property
    def connect(self) -> ConnectSettings | None:
        """How connections are made, if that was said in the code."""
        return self._connect

    @property
    def grace_s(self) -> float:
        return self._grace_s

    @property
    def owner(self) -> str | None:
        """The owner's name, if the user fixed it."""
        return self._owner

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs)

    @property
    def owner_jobs(self) -> tuple[OwnerJob, ...]:
        return tuple(self._owner_jobs)

    # ── producing ──

    @property
    def producer(self) -> Producer:
        return self._here()[0]

    @property
    def link(self) -> Link:
        """A link for looking around, one an event loop."""
        return self._here()[1]

    def _here(self) -> tuple[Producer, Link]:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = (Producer(self.server, self.recorder), self.server.link("headrace:app"))
            self._by_loop[loop] = found
        return found

    def sync_call(self, call: Call[T]) -> T:
        """One call without an event loop, over a connection of this thread."""
        if not hasattr(self._by_thread, "link"):
            self._by_thread.link = self.server.sync_link("headrace:thread")
        return self._by_thread.link.call(call)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the connections that adds and looks have made on this loop."""
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[0].close()
            await found[1].close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ── handling ──

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int | None = None, board: Board | None = None, owner: str | None = None
    ) -> AsyncIterator[Worker]:
        """Handle messages in this event loop while inside.

        >>> async with app.worker():      # doctest: +SKIP
        ...     await asyncio.sleep(60)
        """
        jobs = self.sized(concurrency)
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                await stack.enter_async_context(self._lifespan(self))
            stack.push_async_callback(_call_all, self._last_hooks)
            provided = {kind: await _make(stack, factory) for kind, factory in self._factories.items()}
            await _call_all(self._hooks)
            fixed = self._owner is not None
            worker = Worker(
                jobs,
                self.server,
                self._owner or owner or owner_name(),
                fixed=fixed,
                recorder=self.recorder,
                provided=provided,
                grace_s=self._grace_s,
                board=board,
                owner_jobs=self._owner_jobs,
            )
            self._workers.add(worker)
            async with worker:
                yield worker

    def listener_worker(self, job: OwnerJob, listener: Callable[[Holding], Tenants]) -> Worker:
        """A worker whose rooms are a listener's (Assignments.events); whoever asked for it starts and stops it."""
        return Worker(
            *((), self.server, self._owner or owner_name()),
            fixed=self._owner is not None,
            recorder=self.recorder,
            provided={},
            grace_s=self._grace_s,
            owner_jobs=[job],
            listener=listener,
        )

    def sized(self, concurrency: int | None) -> list[Job]:
        if not self._jobs and not self._owner_jobs:
            raise ConfigError("this app has no handlers: decorate a function with @stream.handler(group=...)")
        return [job if concurrency is None else job.with_concurrency(concurrency) for job in self._jobs]

    async def serve(
        self,
        *,
        burst: bool = False,
        concurrency: int | None = None,
        board: Board | None = None,
        owner: str | None = None,
    ) -> None:
        """Handle messages until SIGTERM or SIGINT (a second one ends at once); with ``burst`` until none is left."""
        running, asked = asyncio.get_running_loop(), asyncio.Event()
        async with self.worker(concurrency=concurrency, board=board, owner=owner) as worker:

            def stop() -> None:
                if asked.is_set():
                    worker.hurry()
                asked.set()

            handled = []
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                    running.add_signal_handler(number, stop)
                    handled.append(number)
            waits = [running.create_task(asked.wait()), running.create_task(worker.wait())]
            if burst:
                waits.append(running.create_task(worker.drained()))
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in waits:
                    task.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
                # The handlers stay in place while the worker drains: a second signal must still be heard.
                await worker.stop()
                for number in handled:
                    running.remove_signal_handler(number)
        await self.close()

    def run(self, *, burst: bool = False) -> None:
        """Handle messages in this process until told to stop. `headrace run` does more: several processes, a parent
        that renews for them, restarts."""
        loop.run(self.serve(burst=burst))


async def _call_all(hooks: list[Callable[[], Any]]) -> None:
    for hook in hooks:
        result = hook()
        if inspect.isawaitable(result):
            await result


async def _make(stack: AsyncExitStack, factory: Callable[..., Any]) -> Any:
    """What a factory makes; a generator is closed at the worker's end."""
    if inspect.isasyncgenfunction(factory):
        return await stack.enter_async_context(asynccontextmanager(factory)())
    made = factory()
    return await made if inspect.isawaitable(made) else made
