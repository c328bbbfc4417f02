"""Everything a message goes through, on a cluster of three masters and three replicas (SPEC 48, 49)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery
from headrace.redis.topology import slot_of
from tests.support import lives
from tests.support.looking import orphan, pending, waiting
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until
from tests.support.workers import GROUP, Workers
from tests.support.workshop import Ledger, counted, pool

MakeApp = Callable[..., App]
Hire = Callable[..., Workers]
NOISE_S = 1.5  # what a busy machine may add to a bound


async def test_the_lives_of_producer_worker_and_operator_run_on_a_cluster(
    cluster: Cluster, stream: str, make_app: MakeApp
) -> None:
    """SPEC 49: everything of A to D, with no script that asks for keys of two slots."""
    app = make_app(cluster)
    await lives.produce(app, stream)
    cluster.sync().delete(stream)
    await lives.work(cluster, app, stream)  # type: ignore[arg-type]
    await lives.operate(cluster, make_app(cluster), stream)  # type: ignore[arg-type]


@pytest.mark.servers(*every("redis8"))
async def test_one_worker_handles_streams_of_every_master(cluster: Cluster, prefix: str, make_app: MakeApp) -> None:
    """SPEC 7, 49: lanes at three masters in one process; results of add_many in order."""
    app, ledger = make_app(cluster), Ledger()
    names = cluster.names(prefix, 3)
    assert len({cluster.member_of(name).port for name in names}) == 3

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note((delivery.stream, order["n"]), delivery)
        await asyncio.sleep(0.6)  # more than a lease: renewed at its own master

    for name in names:
        app.stream(name).handler(group=GROUP, lease="400ms", concurrency=50)(bill)
        added = await app.stream(name).add_many([{"n": n} for n in range(40)])
        assert [one.id for one in added] == sorted((one.id for one in added), key=_id_order)
    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 120, 15)
    assert sorted(seen.payload for seen in ledger.seen) == sorted((name, n) for name in names for n in range(40))
    assert counted(app, "lost_total") + counted(app, "refused_total") == 0


def _id_order(id_: str) -> tuple[int, int]:
    first, _, second = id_.partition("-")
    return int(first), int(second)


@pytest.mark.servers(*every("redis8"))
async def test_durable_adds_wait_on_the_master_that_wrote(cluster: Cluster, prefix: str, make_app: MakeApp) -> None:
    """SPEC 37: WAIT speaks of the connection that wrote, whichever master that is."""
    app = make_app(cluster)
    for name in cluster.names(prefix, 6):
        added = await app.stream(name).add({"n": 1}, durability="replicated")
        assert cluster.sync().xlen(name) == 1
        assert added.first


@pytest.mark.servers(*every("redis8"))
def test_a_sibling_takes_over_from_a_killed_worker_on_a_cluster(cluster: Cluster, stream: str, hire: Hire) -> None:
    """SPEC 8: kill -9 mid-handler; a sibling connected for at least L/2."""
    workers = hire(cluster, lease=0.5, concurrency=1)
    first = workers.start()
    workers.add(cluster, do="sleep", s=30, n=1)  # type: ignore[arg-type]
    workers.until(lambda history: history.starts(n=1))
    second = workers.start()
    time.sleep(0.5)  # the sibling is connected for long enough
    first.kill()
    killed_at = time.monotonic()
    (begun, taken) = workers.until(lambda history: len(history.starts(n=1)) == 2 and history.starts(n=1))
    assert (begun.pid, taken.pid) == (first.pid, second.pid)
    assert taken.attempt == 2
    assert taken.at - killed_at < 0.5 * 1.25 + 0.25 + NOISE_S


@pytest.mark.servers(*every("redis8"))
def test_the_parent_hands_back_what_a_killed_child_held_on_a_cluster(cluster: Cluster, stream: str, hire: Hire) -> None:
    """SPEC 8: under the supervisor within 250 ms of the death, whatever the lease is."""
    workers = hire(cluster, lease=20, concurrency=1)
    parent = workers.supervise(2)
    workers.add(cluster, do="sleep", s=1, n=1)  # type: ignore[arg-type]
    (begun,) = workers.until(lambda history: history.starts(n=1))
    os.kill(begun.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    (_, taken) = workers.until(lambda history: len(history.starts(n=1)) == 2 and history.starts(n=1))
    assert taken.at - killed_at < 0.25 + NOISE_S
    workers.until(lambda history: history.ends(n=1))
    parent.term()
    assert parent.wait() == 0
    assert pending(cluster, stream, GROUP) == {} == waiting(cluster, stream, GROUP)  # type: ignore[arg-type]


@pytest.mark.servers(*every("redis8"))
async def test_a_worker_that_stops_ends_its_blocked_read_at_the_right_master(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 5: CLIENT UNBLOCK goes to the server that has the blocked connection."""
    app = make_app(cluster)
    for name in cluster.names(prefix, 3):
        app.stream(name).handler(group=GROUP, lease="20s")(_nothing)
    async with app.worker() as worker:
        await wait_until(lambda: all(lane.reader.blocked for lane in worker.lanes), 5)
        begun = time.monotonic()
        await worker.stop()
    assert time.monotonic() - begun < 0.5 + NOISE_S  # a blocked read alone would take up to 5 s


@pytest.mark.servers(*every("redis8"))
async def test_scripts_that_a_master_forgot_are_loaded_again(cluster: Cluster, prefix: str, make_app: MakeApp) -> None:
    """FACTS: NOSCRIPT after SCRIPT FLUSH or a failover, on every master, in the middle of work."""
    app, ledger = make_app(cluster), Ledger()
    names = cluster.names(prefix, 3)
    for name in names:

        @app.stream(name).handler(group=GROUP, lease="400ms")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)

    async with app.worker():
        for round_ in range(3):
            for member in cluster.members:
                member.ask("SCRIPT", "FLUSH")
            for name in names:
                await app.stream(name).add({"n": round_}, key=f"{name}-{round_}")
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 3 * (round_ + 1), 5)  # noqa: B023
    assert len(ledger) == 9


@pytest.mark.servers(*every("redis8"))
async def test_orphans_of_another_process_are_rescued_at_every_master(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 16, 49: what a dead owner left at three masters is taken once each, attempts rise by one."""
    app, ledger = make_app(cluster), Ledger()
    names = cluster.names(prefix, 3)
    for name in names:

        @app.stream(name).handler(group=GROUP, lease="400ms")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)

        await app.stream(name).add_many([{"n": n} for n in range(30)])
        orphan(cluster, name, GROUP, 30, idle_ms=60_000)  # type: ignore[arg-type]
    async with pool(app, 2):
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 90, 10)
    assert ledger.attempts == [2] * 90


@pytest.mark.servers(*every("redis8"))
def test_every_key_of_a_stream_is_in_its_slot(cluster: Cluster, stream: str) -> None:
    """The slot we compute is the one the server computes, and helper keys share it."""
    for key in (stream, f"{{{stream}}}:dlq", f"shop:{{{stream}}}:x", "{}a", "a{}{b}", "ü{é}x"):
        assert cluster.members[0].ask("CLUSTER", "KEYSLOT", key) == slot_of(key)


async def _nothing(order: Any) -> None:
    pass


@pytest.mark.servers(*every("redis8"))
async def test_partitions_spread_over_the_masters_and_are_handled_in_order(
    cluster: Cluster, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: keys spread over shards, same key same partition; read by all, and owned in order by another group."""
    app = make_app(cluster)
    orders = app.stream(stream, partitions=8)
    assert len({cluster.member_of(name).port for name in orders.partitions.names}) == 3
    read: set[int] = set()
    ordered: dict[str, list[int]] = {}

    @orders.handler(group="any", concurrency=8)
    async def count(order: dict[str, Any]) -> None:
        read.add(order["n"])

    @orders.handler(group="each", ordered=True, lease="1s")
    async def follow(order: dict[str, Any]) -> None:
        ordered.setdefault(order["key"], []).append(order["n"])

    keys = [f"k{n % 20}" for n in range(200)]
    await orders.add_many([{"key": key, "n": n} for n, key in enumerate(keys)], partition_keys=keys)
    async with app.worker():
        await wait_until(lambda: len(read) == 200 and sum(map(len, ordered.values())) == 200, 20)
    assert all(numbers == sorted(numbers) for numbers in ordered.values())
