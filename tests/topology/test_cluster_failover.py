"""A master dies or stands still under load, and its replica takes over (SPEC 49)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace import App, CountingRecorder, Delivery, Unavailable
from headrace.redis import commands
from headrace.redis.connect import Server
from tests.support.followed import Followed, Producers
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, pool

LEASE_S = 0.6


def gap(moments: list[float], since: float) -> float:
    """The longest time without an event, from a moment on."""
    times = [since, *sorted(at for at in moments if at >= since)]
    return max((later - earlier for earlier, later in pairwise(times)), default=float("inf"))


async def _fail_over(
    cluster: Cluster,
    prefix: str,
    app: App,
    hurt: Callable[[Any], None],
    capsys: pytest.CaptureFixture[str],
    lease_s: float = LEASE_S,
) -> None:
    names, ledger = cluster.names(prefix, 3), Ledger()

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note((delivery.stream, order["n"]), delivery)

    for name in names:
        app.stream(name).handler(group=GROUP, lease=lease_s, concurrency=20)(bill)
    producers = Producers.of(app, names)
    async with pool(app, 2):
        async with producers.running():
            await wait_until(lambda: all(count > 20 for count in producers.counts.values()), 10, what="a warm start")
            victim = await asyncio.to_thread(cluster.member_of, names[0])
            hurt(victim)
            hurt_at = time.monotonic()
            producers.bereft()
            await asyncio.to_thread(cluster.until, lambda: _taken_over(cluster, names[0], victim), "a failover")
            failover_s = time.monotonic() - hurt_at
            before = producers.counts[names[0]]
            await wait_until(lambda: producers.counts[names[0]] > before + 20, 10, what="adds go on")
        wanted = {(name, n) for name, count in producers.counts.items() for n in range(count)}
        await wait_until(lambda: wanted <= {seen.payload for seen in ledger.seen}, 15, what="all confirmed handled")
    gaps = {name: gap([seen.at for seen in ledger.seen if seen.payload[0] == name], hurt_at - 0.1) for name in names}
    with capsys.disabled():
        others = ", ".join(f"{gaps[name]:.2f}" for name in names[1:])
        print(f" [failover {failover_s:.2f} s, gap {gaps[names[0]]:.2f} s, other shards {others} s]", end="")
    assert gaps[names[0]] <= failover_s + 2.0
    assert max(gaps[name] for name in names[1:]) < 1.0, "a shard that was not hurt stood still"


def _taken_over(cluster: Cluster, name: str, victim: Any) -> bool:
    try:
        return cluster.member_of(name) is not victim
    except LookupError:
        return False


@pytest.mark.servers(*every("redis8"))
async def test_nothing_confirmed_is_lost_when_a_master_is_killed_and_workers_go_on(
    cluster: Cluster, prefix: str, make_app: Callable[..., App], capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: SIGKILL of a master under load; the other shards do not notice."""
    await _fail_over(cluster, prefix, make_app(cluster), lambda victim: victim.kill(), capsys)


@pytest.mark.servers(*every("redis8"))
async def test_nothing_confirmed_is_lost_when_a_master_stands_still_and_workers_go_on(
    cluster: Cluster, prefix: str, make_app: Callable[..., App], capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: SIGSTOP: connections are accepted and nothing is answered, with default time-outs, and a lease too long
    for its renewals to find out; the other shards do not notice."""
    await _fail_over(cluster, prefix, make_app(cluster), lambda victim: victim.pause(), capsys, lease_s=8)


@pytest.mark.servers(*every("redis8"))
async def test_who_waits_for_a_master_that_stands_still_finds_out_that_it_was_replaced(
    cluster: Cluster, stream: str
) -> None:
    """With nobody else in its process who would: after a second it asks the other nodes."""
    link = Server(cluster.url).link("alone", at=stream)
    try:
        await link.open()
        victim = await asyncio.to_thread(cluster.member_of, stream)
        victim.pause()
        calling = asyncio.ensure_future(link.call(commands.type_of(stream)))
        await asyncio.to_thread(cluster.until, lambda: _taken_over(cluster, stream, victim), "a failover")
        failed_over_at = time.monotonic()
        with pytest.raises(Unavailable, match="another server has taken over"):
            await calling
        assert time.monotonic() - failed_over_at < 2.0
        assert await link.call(commands.type_of(stream)) == "none"
    finally:
        await link.close()


@pytest.mark.servers(*every("redis8"))
async def test_other_shards_keep_working_while_one_is_down_for_good(
    cluster: Cluster, prefix: str, make_app: Callable[..., App]
) -> None:
    """SPEC 49: master and replica of one shard are dead; renewals, reads and adds at the others go on."""
    app, ledger, done = make_app(cluster), Ledger(), asyncio.Event()
    names = cluster.names(prefix, 3)

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note((delivery.stream, order["n"]), delivery)
        if order["n"] == "long":
            await done.wait()

    for name in names:
        app.stream(name).handler(group=GROUP, lease=LEASE_S)(bill)
    async with pool(app, 2):
        for name in names:
            await app.stream(name).add({"n": "long"})
        await wait_until(lambda: len(ledger) == 3)
        dead = await asyncio.to_thread(cluster.member_of, names[0])
        shard = [one for one in cluster.members if one is dead or _replicates(one, dead)]
        for one in shard:
            one.kill()
        for n in range(50):
            for name in names[1:]:
                await app.stream(name).add({"n": n})
        await wait_until(lambda: len(ledger) >= 103, 10)
        await asyncio.sleep(3 * LEASE_S)  # plenty for a robber
        assert len(ledger) == 103
        done.set()
        for one in shard:
            one.start()
        await asyncio.to_thread(cluster.until, cluster.ready, "the shard is back")
    assert isinstance(app.recorder, CountingRecorder)
    assert app.recorder.total("lost_total", stream=names[1]) + app.recorder.total("lost_total", stream=names[2]) == 0


def _replicates(member: Any, master: Any) -> bool:
    about = member.info("replication")
    return about["role"] == "slave" and about["master_port"] == master.port


@pytest.mark.servers(*every("redis8"))
async def test_rooms_of_other_masters_go_on_while_one_stands_still(
    cluster: Cluster, prefix: str, make_app: Callable[..., App], capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 43b, 49: SIGSTOP, and default time-outs: rooms at the other masters are read and acked all the while."""
    app, followed = make_app(cluster), Followed()
    names = cluster.names(f"{prefix}-room", 6)
    rooms = app.assignments(cluster.names(f"{prefix}-rooms", 2)[1], lease="2s")  # not at the master that is hurt
    rooms.owner()(followed.own)
    for name in names:
        await rooms.announce(name)
    producers = Producers.of(app, names)
    async with pool(app, 2):
        async with producers.running():
            await wait_until(lambda: all(count > 20 for count in producers.counts.values()), 10, what="a warm start")
            victim = await asyncio.to_thread(cluster.member_of, names[0])
            victim.pause()
            hurt_at = time.monotonic()
            producers.bereft()
            await asyncio.to_thread(cluster.until, lambda: _taken_over(cluster, names[0], victim), "a failover")
            failover_s = time.monotonic() - hurt_at
            before = dict(producers.counts)
            await wait_until(
                lambda: all(producers.counts[name] > count + 20 for name, count in before.items()), 20, what="adds"
            )
        await wait_until(lambda: followed.reached(producers.counts), 20, what="all confirmed handled")
    gaps = [followed.gap_s(name, hurt_at) for name in names]
    with capsys.disabled():
        print(f" [failover {failover_s:.2f} s, gaps {', '.join(f'{gap_s:.2f}' for gap_s in gaps)} s]", end="")
    assert (followed.skipped(), followed.jumps()) == ([], [])
    assert max(gaps[1::3] + gaps[2::3]) < 1.0, "a shard that was not hurt stood still"
