"""One stream in many partitions (SPEC 51)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Bury, ConfigError, Delivery, WrongType
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP

MakeApp = Callable[..., App]


async def test_workers_read_all_partitions_and_a_key_stays_in_its_own(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: spread over partitions, same key same partition, all of them read."""
    app = make_app(server)
    orders = app.stream(stream, partitions=4)
    seen: dict[str, set[str]] = {}

    @orders.handler(group=GROUP, concurrency=8)
    async def bill(order: dict[str, Any], delivery: Delivery) -> None:
        seen.setdefault(order["customer"], set()).add(delivery.stream)

    for number in range(60):
        await orders.add({"customer": f"c{number % 20}"}, partition_key=f"c{number % 20}")
    await orders.add_many(
        [{"customer": f"c{number % 20}"} for number in range(60)],
        partition_keys=[f"c{number % 20}" for number in range(60)],
    )
    async with app.worker() as worker:
        await asyncio.wait_for(worker.drained(), 10)
        await wait_until(lambda: len(seen) == 20)
    assert all(streams == {orders.partition_of(customer).name} for customer, streams in seen.items())
    assert len(set.union(*seen.values())) == 4
    assert await orders.backlog(GROUP) == 0


async def test_an_idempotency_key_adds_once_also_here_and_messages_without_a_key_take_turns(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    orders = make_app(server).stream(stream, partitions=4)
    first = await orders.add({"n": 1}, key="order-1")
    again = await asyncio.to_thread(orders.add_sync, {"n": 2}, key="order-1")
    assert (again.id, again.first) == (first.id, False)
    for _ in range(8):
        await orders.add({})
    lengths = sorted(server.sync().xlen(name) for name in orders.partitions.names)
    assert lengths == [2, 2, 2, 3]
    assert not server.sync().exists(stream)


async def test_dead_letters_of_all_partitions_are_listed_and_replayed_together(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28, for a partitioned stream."""
    app = make_app(server)
    orders = app.stream(stream, partitions=3)
    dead = [orders.partition(number).keys.dead_letters for number in range(3)]
    poison, handled = True, 0

    @orders.handler(group=GROUP, concurrency=3)
    async def bill(order: dict[str, Any]) -> None:
        nonlocal handled
        if poison:
            raise Bury("not today")
        handled += 1

    await orders.add_many([{"n": number} for number in range(9)])
    async with app.worker():
        await wait_until(lambda: sum(server.sync().xlen(name) for name in dead) == 9)
        letters = await orders.dead_letters.listed()
        assert {letter.stream for letter in letters} == set(orders.partitions.names)
        assert await orders.dead_letters.count() == 9
        assert len(await orders.dead_letters.listed(limit=4)) == 4
        poison = False
        replayed = await orders.dead_letters.replay(group=GROUP)
        assert [one.kind for one in replayed] == ["same"] * 9
        await wait_until(lambda: handled == 9)
    assert await orders.dead_letters.purge() == 0


async def test_programs_that_disagree_about_the_number_are_refused(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: another number would send keys to other partitions and leave messages unread."""
    await make_app(server).stream(stream, partitions=4).add({})
    other = make_app(server)
    eight = other.stream(stream, partitions=8)
    with pytest.raises(ConfigError, match="has 4 partitions, and this program says 8"):
        await eight.add({})
    with pytest.raises(ConfigError, match="has 4 partitions"):
        await asyncio.to_thread(eight.add_sync, {})

    @eight.handler(group=GROUP)
    async def bill(order: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match="has 4 partitions"):
        async with other.worker():
            raise AssertionError("a worker started")


async def test_a_stream_that_exists_without_partitions_is_not_left_behind(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Nothing is lost silently: what is in the unpartitioned stream would never be read."""
    app = make_app(server)
    await app.stream(stream).add({})
    with pytest.raises(WrongType, match="without partitions"):
        await app.stream(stream, partitions=4).add({})
