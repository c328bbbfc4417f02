"""Assignments in a cluster: announcements in one slot, data streams in all of them (SPEC 43b)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace import App, Room, ServerError
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until

MakeApp = Callable[..., App]

pytestmark = [pytest.mark.servers(*every("redis8")), pytest.mark.timeout(120)]


class Book:
    """What owners have acknowledged, room by room."""

    def __init__(self) -> None:
        self.done: dict[str, list[int]] = defaultdict(list)
        self.epochs: dict[str, set[int]] = defaultdict(set)

    async def own(self, room: Room[Any]) -> None:
        async for message in room:
            await room.ack(message)
            self.epochs[room.name].add(room.epoch)
            self.done[room.name].append(message.payload["n"])

    @property
    def total(self) -> int:
        return sum(map(len, self.done.values()))


async def fill(app: App, names: list[str], count: int, first: int = 0) -> None:
    for name in names:
        await app.stream(name).add_many([{"n": n} for n in range(first, first + count)])


async def test_streams_in_every_slot_are_owned_in_order_and_taken_over(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 42, 43: with an owner that vanishes; SPEC 43b: the fence is where the data is."""
    app, book = make_app(cluster.url), Book()
    rooms = app.assignments(f"{prefix}-rooms", lease="1s")
    rooms.owner()(book.own)
    names = [f"{prefix}-room-{at}" for at in range(30)]
    for name in names:
        assert (await rooms.announce(name, {"of": name})).new
    await fill(app, names, 20)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(app.worker())
        await wait_until(lambda: book.total == 600, 20)
        heir = await stack.enter_async_context(app.worker())
        first._keepers.heartbeats[0].cut()  # its lease ends, and its loop does not know
        await wait_until(lambda: len(heir.holdings[0].tenures) == 30, 15)
        await fill(app, names, 20, first=20)
        await wait_until(lambda: book.total >= 1_200, 30)
        for name in names:
            assert book.done[name] == list(range(40))
            assert book.epochs[name] == {1, 2}
    listed = await rooms.listed()
    assert [row.name for row in listed] == sorted(names)
    assert {row.lag for row in listed} == {0}


async def test_rooms_go_on_in_order_when_a_master_is_killed(cluster: Cluster, prefix: str, make_app: MakeApp) -> None:
    """SPEC 49: after the failover the position may be an older one; nothing is skipped, nothing out of order."""
    app, handled = make_app(cluster.url), Handled()
    rooms = app.assignments(f"{prefix}-rooms", lease="2s")
    rooms.owner()(handled.own)
    names = [f"{prefix}-room-{at}" for at in range(12)]
    for name in names:
        await rooms.announce(name)
    await fill(app, names, 10)
    async with app.worker(), app.worker():
        await wait_until(lambda: handled.complete(names, 10), 20)
        cluster.member_of(names[0]).kill()
        for n in range(10, 20):
            for name in names:
                await add(app, name, n)
        await wait_until(lambda: handled.complete(names, 20), 40)
    assert handled.out_of_order() == []


async def add(app: App, name: str, n: int) -> None:
    """Until it is added: with a key it may be repeated, while a replica becomes master."""
    while True:
        try:
            await app.stream(name).add({"n": n}, key=f"{name}-{n}")
        except ServerError:
            await asyncio.sleep(0.1)
        else:
            return


class Handled:
    """What handlers were given: (epoch, number) in order, room by room."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[int, int]]] = defaultdict(list)

    async def own(self, room: Room[Any]) -> None:
        async for message in room:
            self.seen[room.name].append((room.epoch, message.payload["n"]))
            await room.ack(message)

    def complete(self, names: list[str], count: int) -> bool:
        return all({n for _, n in self.seen[name]} == set(range(count)) for name in names)

    def out_of_order(self) -> list[str]:
        """Within an epoch each message follows its predecessor; a new epoch may begin earlier, never later."""
        wrong = []
        for name, seen in self.seen.items():
            by_epoch: dict[int, list[int]] = defaultdict(list)
            for epoch, n in seen:
                by_epoch[epoch].append(n)
            if any(numbers != list(range(numbers[0], numbers[0] + len(numbers))) for numbers in by_epoch.values()):
                wrong.append(f"{name}: {seen}")
        return wrong
