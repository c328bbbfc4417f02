"""A slot moves to another master under load, in the old way and in the atomic one (SPEC 49)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace import App, Delivery
from tests.support.moves import another, move_atomically, move_classic
from tests.support.topologies import Cluster
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

LEASE_S = 0.6
MakeApp = Callable[..., App]


async def _moved_under_load(cluster: Cluster, prefix: str, app: App, move: Callable[..., None]) -> float:
    """Adds and handling while the slot goes to another master and back; answers the longest pause."""
    name, ledger, added = cluster.names(prefix, 1)[0], Ledger(), set[str]()
    stream, on = app.stream(name), True

    @stream.handler(group=GROUP, lease=LEASE_S, concurrency=10)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order["n"], delivery)
        await asyncio.sleep(0.8 if order["n"] % 50 == 0 else 0.002)  # some are in hand while their slot moves

    async def produce() -> None:
        n = 0
        while on:
            n += 1
            added.add((await stream.add({"n": n}, key=str(n))).id)
            await asyncio.sleep(0.002)

    async with pool(app, 2):
        producing = asyncio.ensure_future(produce())
        await wait_until(lambda: len(ledger) > 100, 10)
        for _ in range(2):
            source = await asyncio.to_thread(cluster.member_of, name)
            target = another(cluster, source)
            await asyncio.to_thread(move, cluster, name, source, target)
            seen = len(ledger)
            await wait_until(lambda: len(ledger) > seen + 100, 10, what="work goes on")  # noqa: B023
        on = False
        await producing
        await wait_until(lambda: set(ledger.ids) >= added, 10, what="everything handled")
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") >= len(added), 10)
    assert set(ledger.ids) == added, "lost or invented"
    twice = {id_ for id_, times in Counter(ledger.ids).items() if times > 1}
    assert [seen for seen in ledger.seen if seen.id in twice] == [], "started twice"
    assert set(ledger.attempts) == {1}
    assert counted(app, "lost_total") + counted(app, "refused_total") == 0
    times = sorted(seen.at for seen in ledger.seen)
    return max(later - earlier for earlier, later in pairwise(times))


@pytest.mark.servers("redis8", "redis6", "valkey9")
async def test_a_slot_moved_key_by_key_under_load_loses_nothing_and_starts_nothing_twice(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: ASK, TRYAGAIN and MOVED on the way; live handlers keep their deliveries."""
    pause_s = await _moved_under_load(cluster, prefix, make_app(cluster), move_classic)
    with capsys.disabled():
        print(f" [longest pause {pause_s:.2f} s]", end="")


@pytest.mark.servers("redis8")
async def test_a_slot_moved_atomically_under_load_loses_nothing_and_starts_nothing_twice(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: Redis 8.4+."""
    pause_s = await _moved_under_load(cluster, prefix, make_app(cluster), move_atomically)
    with capsys.disabled():
        print(f" [longest pause {pause_s:.2f} s]", end="")


@pytest.mark.servers("redis8")
async def test_a_link_that_moved_counts_as_newly_connected(cluster: Cluster, prefix: str, make_app: MakeApp) -> None:
    """SPEC 20: nobody rescues within L/2 after another server answers."""
    app, name = make_app(cluster), cluster.names(prefix, 1)[0]
    app.stream(name).handler(group=GROUP, lease="2s")(_nothing)
    async with app.worker() as worker:
        lane = worker.lanes[0]
        await wait_until(lambda: lane.engine.rescue.allowed, 5)
        before, node = lane.read_link.epoch, lane.read_link.node
        source = cluster.member_of(name)
        target = next(
            one for one in cluster.members if one is not source and one.info("replication")["role"] == "master"
        )
        await asyncio.to_thread(move_classic, cluster, name, source, target)
        await wait_until(lambda: lane.read_link.node != node, 5)
        assert lane.read_link.epoch > before
        await wait_until(lambda: not lane.engine.rescue.allowed, 2)


async def _nothing(order: Any) -> None:
    pass
