"""Adds orders for as long as it is asked to, and notes what became of each add: ok with its id, or info (unknown).

It keeps the backlog below a limit, so that a run can be drained after it and the faults find work in every place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
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
        self._full = False
        self.added = 0

    async def run(self, seconds: float) -> None:
        """Add at the scenario's rate until the time is over or stop() was called."""
        begun = time.monotonic()
        looking = asyncio.create_task(self._look())
        try:
            while not self._stop.is_set() and time.monotonic() - begun < seconds:
                behind = self.added - (time.monotonic() - begun) * self._traffic.rate
                if self._full or behind > 0:
                    await asyncio.sleep(min(0.02, max(0.001, behind / self._traffic.rate)))
                    continue
                await self.add(self._traffic.batch)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    def stop(self) -> None:
        self._stop.set()

    async def close(self) -> None:
        await self._app.close()

    async def add(self, count: int) -> None:
        """One batch. A producer's troubles are noted, and it goes on."""
        numbers = range(self.added, self.added + count)
        self.added += count
        stream = self._streams[(numbers[0] // max(1, count)) % len(self._streams)]
        if self._traffic.keyed:
            await asyncio.gather(*(self._add_one(stream, n) for n in numbers))
            return
        orders = [self._orders.order(n) for n in numbers]
        try:
            ids: list[str | None] = [added.id for added in await stream.add_many(orders)]
        except AddUnknown as unknown:
            ids = [None if added is None else added.id for added in unknown.results]
        except HeadraceError:
            ids = [None] * count
        if self._traffic.level != "received" and not await self._confirmed(stream):
            ids = [None] * count
        self._note(list(numbers), ids)
        if None in ids:
            await asyncio.sleep(0.02)

    async def _confirmed(self, stream: Stream[Order]) -> bool:
        """One durable add after a batch confirms the batch: there is one log, and this entry comes after the others."""
        last, self.added = self.added, self.added + 1
        try:
            added = await stream.add(self._orders.order(last), durability=self._traffic.level)
        except HeadraceError:
            self._note([last], [None])
            return False
        self._note([last], [added.id])
        return True

    async def _add_one(self, stream: Stream[Order], n: int) -> None:
        try:
            added = await stream.add(self._orders.order(n), key=f"order-{n}")
        except HeadraceError:
            self._note([n], [None])
            await asyncio.sleep(0.05)
        else:
            self._note([n], [added.id])

    def _note(self, numbers: list[int], ids: Sequence[str | None]) -> None:
        now, pid = time.monotonic(), os.getpid()
        self._pen.note_all(
            [
                Event(now, pid, "add", "info" if id_ is None else "ok", id_ or "", about={"n": n})
                for n, id_ in zip(numbers, ids, strict=True)
            ]
        )

    async def _look(self) -> None:
        while True:
            try:
                left = [await stream.backlog(GROUP) for stream in self._streams]
                self._full = sum(left) > self._traffic.backlog
            except HeadraceError:
                self._full = False
            await asyncio.sleep(LOOK_S)
