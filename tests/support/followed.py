"""What the owners of streams were given, stream by stream, and what must hold of it while servers change under them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace import App, Delivery, HeadraceError, Room
from headrace.producer import Durability

PACE_S = 0.02


@dataclass(slots=True)
class Start:
    """One message in the hands of a handler."""

    n: int
    id: str
    tenure: str  # whose, and under which epoch
    at: float
    acked_at: float | None = None  # when the server had said so


class Followed:
    """Notes every start: streams are numbered from 0, one producer each."""

    def __init__(self) -> None:
        self.starts: dict[str, list[Start]] = defaultdict(list)

    async def own(self, room: Room[Any]) -> None:
        """An owner: @rooms.owner."""
        async for message in room:
            start = self._begin(room.name, message.payload["n"], message.id, f"{room.owner} {room.epoch}")
            await room.ack(message)
            start.acked_at = time.monotonic()

    async def handle(self, order: Any, delivery: Delivery[Any]) -> None:
        """A handler of ordered partitions with one producer each: when its ack is answered it cannot know."""
        self._begin(delivery.stream, order["n"], delivery.id, delivery.owner)

    def _begin(self, name: str, n: int, id_: str, tenure: str) -> Start:
        self.starts[name].append(Start(n, id_, tenure, time.monotonic()))
        return self.starts[name][-1]

    def reached(self, counts: dict[str, int]) -> bool:
        """Whether all that was added has been started."""
        return all({start.n for start in self.starts[name]} >= set(range(count)) for name, count in counts.items())

    def gap_s(self, name: str, since: float) -> float:
        """The longest time in which nothing of a stream was started, from a moment on."""
        times = [since, *(start.at for start in self.starts[name] if start.at >= since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=float("inf"))

    def skipped(self) -> list[str]:
        """Messages that came before one of those ahead of them, in whoever's hands."""
        wrong = []
        for name, starts in self.starts.items():
            top = -1
            for start in starts:
                if start.n > top + 1:
                    wrong.append(f"{name}: {start.n} came when {top} was the last")
                top = max(top, start.n)
        return wrong

    def jumps(self) -> list[str]:
        """Of one owner under one epoch each message follows the one before it."""
        wrong = []
        for name, starts in self.starts.items():
            by_tenure: dict[str, list[int]] = defaultdict(list)
            for start in starts:
                by_tenure[start.tenure].append(start.n)
            for tenure, numbers in by_tenure.items():
                if any(after != before + 1 for before, after in pairwise(numbers)):
                    wrong.append(f"{name}: {tenure} was given {numbers}")
        return wrong

    def repeated(self) -> list[tuple[str, Start]]:
        """Every start that another one of the same message followed."""
        found = []
        for name, starts in self.starts.items():
            last = {start.n: start for start in starts}
            found += [(name, start) for start in starts if last[start.n] is not start]
        return found


Add = Callable[[int, Durability], Awaitable[Any]]


class Producers:
    """Add to some streams one number after the other until told to stop: each until it is confirmed.

    Until a server is hurt that means: on a replica. Afterwards its successor has none, so an answer is enough, also for
    what was under way.
    """

    def __init__(self, adds: dict[str, Add]) -> None:
        self._adds = adds
        self._on = True
        self._under_way: dict[str, asyncio.Future[Any]] = {}
        self.durability: Durability = "replicated"
        self.counts = dict.fromkeys(adds, 0)

    @classmethod
    def of(cls, app: App, names: list[str]) -> Producers:
        """With a key, so that what is unknown may be repeated."""

        def adding(name: str) -> Add:
            return lambda n, level: app.stream(name).add({"n": n}, key=f"{name}:{n}", durability=level)

        return cls({name: adding(name) for name in names})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._run(name)) for name in self._adds]
        try:
            yield
        finally:
            self._on = False
            await asyncio.gather(*tasks)

    def bereft(self) -> None:
        """There is no replica from now on: nobody waits for one."""
        self.durability = "received"
        for adding in self._under_way.values():
            adding.cancel()

    async def _run(self, name: str) -> None:
        while self._on:
            while not await self._added(name, self.counts[name]):
                await asyncio.sleep(0.05)  # unknown, not failed
            self.counts[name] += 1
            await asyncio.sleep(PACE_S)

    async def _added(self, name: str, n: int) -> bool:
        adding = self._under_way[name] = asyncio.ensure_future(self._adds[name](n, self.durability))
        await asyncio.wait((adding,))
        if adding.cancelled():
            return False
        if (error := adding.exception()) is None:
            return True
        if not isinstance(error, HeadraceError):
            raise error
        return False
