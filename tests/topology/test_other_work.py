"""Assignments, partitioned streams and the requeue strategy on a cluster (SPEC 43b, 46, 51)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery, Requeue
from headrace.testing import crash
from tests.behaviour.test_assignments import Book, fill
from tests.support.looking import orphan
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

pytestmark = pytest.mark.servers(*every("redis8"))
MakeApp = Callable[..., App]


async def test_rooms_at_every_master_are_owned_by_one_in_order_and_inherited(
    cluster: Cluster, stream: str, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 42, 43, 43b: the fence lives with the data, so data streams may be in any slot."""
    app, book = make_app(cluster), Book()
    rooms = app.assignments(stream, lease="500ms")
    rooms.owner()(book.own)
    names = cluster.names(f"{prefix}-room", 6)
    for name in names:
        await rooms.announce(name, {"tenant": name})
        await fill(app, name, 30)
    async with pool(app, 2) as workers:
        await wait_until(lambda: len(book.seen) >= 180, 15)
        await crash(workers[0])
        for name in names:
            await fill(app, name, 30, first=30)
        await wait_until(lambda: all(set(book.numbers(name)) == set(range(60)) for name in names), 20)
    for name in names:
        numbers = book.numbers(name)
        assert numbers == sorted(numbers), "out of order"


async def test_a_partitioned_stream_spreads_over_the_masters(cluster: Cluster, stream: str, make_app: MakeApp) -> None:
    """SPEC 51: same key, same partition; workers read all of them."""
    app = make_app(cluster)
    orders, seen = app.stream(stream, partitions=8), list[tuple[str, str]]()
    assert len({cluster.member_of(name).port for name in orders.partitions.names}) > 1

    @orders.handler(group=GROUP, concurrency=8, lease="500ms")
    async def bill(order: dict[str, Any], delivery: Delivery[Any]) -> None:
        seen.append((order["customer"], delivery.stream))

    customers = [f"c{number % 20}" for number in range(120)]
    await orders.add_many([{"customer": one} for one in customers], partition_keys=customers)
    async with app.worker() as worker:
        await asyncio.wait_for(worker.drained(), 15)
    assert len(seen) == 120
    assert {place for _, place in seen} <= set(orders.partitions.names)
    assert len(set(seen)) == 20, "a customer in two partitions"


async def test_what_a_dead_owner_left_is_requeued_at_every_master(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 46: lock keys are in the stream's slot, and so is the copy."""
    app, ledger = make_app(cluster), Ledger()
    names = cluster.names(prefix, 3)

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note((delivery.stream, order["n"]), delivery)

    for name in names:
        recovery = Requeue(interval="200ms", min_idle="300ms")
        app.stream(name).handler(group=GROUP, lease="400ms", recovery=recovery)(bill)
        await fill(app, name, 5)
        orphan(cluster, name, GROUP, 5, idle_ms=60_000)  # type: ignore[arg-type]
    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") >= 15, 15)
    assert sorted(seen.payload for seen in ledger.seen) == sorted((name, n) for name in names for n in range(5))
