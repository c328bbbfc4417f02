"""Adds orders for as long as it is asked to, and notes what became of each add: ok with its id, or info (unknown).

It keeps the backlog below a limit, so that a run can be drained after it and the faults find work in every place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from chaos.facts import Level
from chaos.orders import Order, Orders
from chaos.worker import GROUP
from headrace import AddUnknown, App, HeadraceError, Stream
from tests.support.history import Event, Pen

LOOK_S = 0.1  # how often the backlog is looked at


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a scenario feeds. ``rate`` is adds a second, ``backlog`` what may be left to do at any time."""

    mix: dict[str, float]
    rate: int = 2_000
    batch: int = 200
    backlog: int = 3_000
    slow_s: tuple[float, float] = (0.05, 0.2)
    pad: int = 0
    keyed: bool = False  # with an idempotency key each: repeated until answered
    level: Level = "received"


class Feeder:
    """One producer on one or more streams, in turn."""

    def __init__(self, url: str, streams: Sequence[str], orders: Orders, traffic: Traffic, pen: Pen) -> None:
        self._app = App(url)
        self._streams: list[Stream[Order]] = [self._app.stream(name, Order) for name in streams]
        self._orders = orders
        self._traffic = traffic
        self._pen = pen
        self._stop = asyncio.Event()
        self._full: set[str] = set()  # streams with enough to do
        self.added = 0

    async def run(self, seconds: float) -> None:
        """Add at the scenario's rate until the time is over or stop() was called: to each stream by itself, so that
        one whose server is away keeps none of the others waiting."""
        looking = [asyncio.create_task(self._look(stream)) for stream in self._streams]
        try:
            await asyncio.gather(*(self._feed(stream, seconds) for stream in self._streams))
        finally:
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def _feed(self, stream: Stream[Order], seconds: float) -> None:
        begun, rate, fed = time.monotonic(), self._traffic.rate / len(self._streams), 0.0
        while not self._stop.is_set() and time.monotonic() - begun < seconds:
            ahead = fed - (time.monotonic() - begun) * rate
            if stream.name in self._full or ahead > 0:
                fed -= min(ahead, 0.0)  # nobody makes up for it later: that would be over the limit at once
                await asyncio.sleep(min(0.02, max(0.001, ahead / rate)))
                continue
            await self.add(self._traffic.batch, stream)
            fed += self._traffic.batch

    def stop(self) -> None:
        self._stop.set()

    async def close(self) -> None:
        await self._app.close()

    async def add(self, count: int, stream: Stream[Order]) -> None:
        """One batch. A producer's troubles are noted, and it goes on."""
        numbers = range(self.added, self.added + count)
        self.added += count
        if self._traffic.keyed or self._traffic.level == "replicated":
            await asyncio.gather(*(self._add_one(stream, n) for n in numbers))
            return
        orders = [self._orders.order(n) for n in numbers]
        try:
            ids: list[str | None] = [added.id for added in await stream.add_many(orders)]
        except AddUnknown as unknown:
            ids = [None if added is None else added.id for added in unknown.results]
        except HeadraceError:
            ids = [None] * count
        if self._traffic.level == "disk" and not await self._confirmed(stream):
            ids = [None] * count
        self._note(stream, list(numbers), ids)
        if None in ids:
            await asyncio.sleep(0.02)

    async def _confirmed(self, stream: Stream[Order]) -> bool:
        """One durable add after a batch confirms the batch: there is one log, and this entry comes after the others."""
        last, self.added = self.added, self.added + 1
        try:
            added = await stream.add(self._orders.order(last), durability=self._traffic.level)
        except HeadraceError:
            self._note(stream, [last], [None])
            return False
        self._note(stream, [last], [added.id])
        return True

    async def _add_one(self, stream: Stream[Order], n: int) -> None:
        """An add by itself: after a failover a later one says nothing of those before it."""
        key = f"order-{n}" if self._traffic.keyed else None
        try:
            added = await stream.add(self._orders.order(n), key=key, durability=self._traffic.level)
        except HeadraceError:
            self._note(stream, [n], [None])
            await asyncio.sleep(0.05)
        else:
            self._note(stream, [n], [added.id])

    def _note(self, stream: Stream[Order], numbers: list[int], ids: Sequence[str | None]) -> None:
        now, pid = time.monotonic(), os.getpid()
        before = f"{stream.name}/" if len(self._streams) > 1 else ""
        self._pen.note_all(
            [
                Event(now, pid, "add", "info" if id_ is None else "ok", before + id_ if id_ else "", about={"n": n})
                for n, id_ in zip(numbers, ids, strict=True)
            ]
        )

    async def _look(self, stream: Stream[Order]) -> None:
        limit = self._traffic.backlog / len(self._streams)
        while True:
            with suppress(HeadraceError):
                # Decided in one step: between two, a feeder that is held back would slip one more batch in each time.
                (self._full.add if await stream.backlog(GROUP) > limit else self._full.discard)(stream.name)
            await asyncio.sleep(LOOK_S)
