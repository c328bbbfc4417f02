"""Apps on a server of their own, and workers that die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.app import App
from headrace.config import duration_ms
from headrace.embedded import ConfigLines, Embedded
from headrace.lane import Lane
from headrace.message import Delivery, Outcome
from headrace.redis.connect import Server
from headrace.worker import Worker

SETTLED_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """An app at work on its private server."""

    app: App
    worker: Worker
    server: Embedded

    async def settled(self, timeout: float | str = SETTLED_S) -> None:  # noqa: ASYNC109 - said with its own error
        """Wait until nothing is unread, pending or waiting. Raises what failed the worker, or TimeoutError."""
        limit_s = duration_ms(timeout, name="timeout") / 1000
        drained = asyncio.ensure_future(self.worker.drained(every_s=0.02))
        failed = asyncio.ensure_future(self.worker.wait())
        try:
            done, _ = await asyncio.wait({drained, failed}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if not done:
                raise TimeoutError(f"not settled within {limit_s:g} s: see `headrace pending --url {self.server.url}`")
        finally:
            for task in (drained, failed):
                task.cancel()
            await asyncio.gather(drained, failed, return_exceptions=True)


@asynccontextmanager
async def on_embedded(app: App, *, config: ConfigLines | None = None) -> AsyncIterator[Embedded]:
    """Inside, the app talks to an embedded server of its own, whatever its URL says. Nothing is kept of it."""
    server = await asyncio.to_thread(Embedded(config=config).start)
    before = app._server  # noqa: SLF001 - the one place that may move an app to another server
    await app.close()
    app._server = Server(server.url)  # noqa: SLF001
    try:
        yield server
    finally:
        await app.close()
        app._server = before  # noqa: SLF001
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def running(
    app: App, *, concurrency: int | None = None, config: ConfigLines | None = None
) -> AsyncIterator[Running]:
    """An app on an embedded server of its own, with a worker that handles its messages.

    >>> app = App()
    >>> orders = app.stream("orders")
    >>> seen = []
    >>> @orders.handler(group="billing")
    ... async def bill(order: dict) -> None:
    ...     seen.append(order["id"])
    >>> async def check() -> None:
    ...     async with running(app) as shop:
    ...         await orders.add({"id": 7})
    ...         await shop.settled()
    >>> asyncio.run(check())
    >>> seen
    [7]
    """
    async with on_embedded(app, config=config) as server, app.worker(concurrency=concurrency) as worker:
        yield Running(app, worker, server)


# ── dying ──


async def crash(worker: Worker) -> None:
    """Let a worker die as by SIGKILL: nothing is acknowledged, released or renewed any more, its connections drop.

    What it held stays in its name and is rescued by others after one lease. Its handlers are cancelled, which a real
    death would not even do; whatever they still say is refused. A plain ``def`` handler runs on to its end, unheard.
    Stopping the worker afterwards does nothing, so this may be used inside ``async with app.worker()``.
    """
    if worker._stopped:  # noqa: SLF001 - this function is the worker's death, and knows its inside
        return
    worker._stopped = True  # noqa: SLF001
    worker._keepers.cut()  # noqa: SLF001
    loops = list(worker._tasks)  # noqa: SLF001
    handlers = [task for lane in worker.lanes for task in lane.runners.tasks]
    for lane in worker.lanes:
        _silence(lane)
    for holding in worker.holdings:
        holding.silence()
    for task in [*loops, *handlers]:
        task.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):  # a handler that refuses to be cancelled is left alone
            await asyncio.gather(*handlers, return_exceptions=True)
    await worker._keepers.stop()  # noqa: SLF001
    await _drop_connections(worker)


async def _drop_connections(worker: Worker) -> None:
    if worker._hints is not None:  # noqa: SLF001
        await worker._hints.stop()  # noqa: SLF001
    for lane in worker.lanes:
        await lane.close()
    for holding in worker.holdings:
        await holding.close_links()


class _DeadOutbox:
    """Where the outcomes of a dead worker go."""

    def put(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        raise delivery.refusal()


def _silence(lane: Lane) -> None:
    """From here on nothing of this lane reaches the server."""
    lane.runners.close()
    lane.executor.stopping = True
    lane.outbox = _DeadOutbox()  # type: ignore[assignment]
    lane.read_link.abort()
    lane.out_link.abort()
