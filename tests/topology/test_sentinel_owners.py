"""Owned streams, ordered partitions, requeued work and the protocol of redis-stream-client-go behind sentinels, while
the primary dies or stands still and its replica takes over (SPEC 42 to 47, 48, 51)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from headrace import App
from headrace.config import ConnectSettings
from headrace.errors import Unavailable
from headrace.goclient import Added, GoClient, NotOwned
from headrace.testing import crash
from tests.behaviour.test_goclient import ours
from tests.support.followed import Followed, Producers
from tests.support.ports import free_port
from tests.support.topologies import SERVICE, Member, Sentinels, every
from tests.support.wait import wait_until
from tests.support.workers import Workers
from tests.support.workshop import GROUP, pool

pytestmark = pytest.mark.servers(*every("redis8"))

MakeApp = Callable[..., App]
Hire = Callable[..., Workers]
PATIENCE_S = 1.0
PATIENCE = ConnectSettings.of(command_timeout=PATIENCE_S, connect_timeout=PATIENCE_S)
BACKOFF_S = 1.0  # whoever waits for a primary looks for it so often
LEASE_S = 1.0
NOISE_S = 1.0  # what a busy machine may add to a bound
ROOMS = 6
HURTS: dict[str, Callable[[Member], None]] = {"killed": Member.kill, "stands still": Member.pause}


@dataclass
class Failover:
    """What a failover took, and the positions of owned streams that outlived it."""

    hurt_at: float
    seconds: float = 0.0
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)


def watched(sentinels: Sentinels, victim: Member, hurt_at: float) -> Failover:
    """Wait until the replica has taken over; what it knew as a replica is what was kept."""
    told = Failover(hurt_at)
    (heir,) = (one for one in sentinels.data if one is not victim)

    def taken() -> bool:
        with suppress(redis.ConnectionError):  # whoever is promoted is made to forget its clients
            found = _positions(heir)
            if heir.info("replication")["role"] == "slave":  # still, so it was one when it was read
                told.kept.update(found)
                return False
            return sentinels.primary is heir
        return False

    sentinels.until(taken, "a failover")
    told.seconds = time.monotonic() - hurt_at
    return told


def _positions(member: Member) -> dict[str, tuple[int, int]]:
    """How far each owned stream is at one server."""
    client = member.sync()
    owned = {key: client.hget(key, "pos") for key in client.scan_iter("*:hr:own:*")}
    return {key[1 : key.index(b"}")].decode(): _order(pos.decode()) for key, pos in owned.items() if pos}


def _order(id_: str) -> tuple[int, int]:
    first, _, second = id_.partition("-")
    return int(first), int(second)


async def hurt_under_load(sentinels: Sentinels, how: str, producers: Producers, followed: Followed) -> Failover:
    """Producers on, a hurt primary, and all that was confirmed is started under its successor."""
    async with producers.running():
        await wait_until(lambda: all(count > 20 for count in producers.counts.values()), 15, what="a warm start")
        victim = sentinels.primary
        HURTS[how](victim)
        hurt_at = time.monotonic()
        producers.bereft()
        failover = await asyncio.to_thread(watched, sentinels, victim, hurt_at)
        before = dict(producers.counts)
        await wait_until(
            lambda: all(producers.counts[name] > count + 20 for name, count in before.items()), 15, what="adds go on"
        )
    await wait_until(lambda: followed.reached(producers.counts), 15, what="all that was confirmed is handled")
    return failover


def judge(followed: Followed, failover: Failover, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, none skipped, a repeated one only if its ack went with the failover, and no longer pause than it."""
    gap_s = max(followed.gap_s(name, failover.hurt_at) for name in followed.starts)
    again = followed.repeated()
    with capsys.disabled():
        print(f" [failover {failover.seconds:.2f} s, gap {gap_s:.2f} s, {len(again)} repeated]", end="")
    assert followed.skipped() == []
    over = failover.hurt_at + failover.seconds
    for name, start in again:
        assert _order(start.id) > failover.kept[name], f"{name}: {start} is behind the position that was kept"
        assert start.acked_at is None or start.acked_at < over, f"{name}: {start} was acked after the failover"
        assert start.at < over + LEASE_S, f"{name}: {start} again, long after the failover"
    assert gap_s <= failover.seconds + PATIENCE_S + BACKOFF_S + NOISE_S


@pytest.mark.parametrize("how", HURTS)
async def test_rooms_go_on_in_order_when_the_primary_fails_over(
    sentinels: Sentinels, prefix: str, how: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 42, 43, 48: no confirmed message is lost or out of order; an owner may change, two never share a room."""
    app, followed = make_app(sentinels, connect=PATIENCE), Followed()
    rooms = app.assignments(f"{prefix}-rooms", lease=LEASE_S)
    rooms.owner()(followed.own)
    names = [f"{prefix}-room-{at}" for at in range(ROOMS)]
    for name in names:
        await rooms.announce(name)
    async with pool(app, 2):
        failover = await hurt_under_load(sentinels, how, Producers.of(app, names), followed)
        assert set(failover.kept) == set(names)
    assert followed.jumps() == []
    judge(followed, failover, capsys)


@pytest.mark.parametrize("how", HURTS)
async def test_ordered_partitions_go_on_in_order_when_the_primary_fails_over(
    sentinels: Sentinels, stream: str, how: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 48, 51: the same for handlers of ordered partitions."""
    app, followed = make_app(sentinels, connect=PATIENCE), Followed()
    orders = app.stream(stream, partitions=4)
    orders.handler(group=GROUP, ordered=True, lease=LEASE_S)(followed.handle)

    def adding(key: str) -> Any:
        return lambda n, level: orders.add({"n": n}, key=f"{key}:{n}", partition_key=key, durability=level)

    parts = orders.partitions
    keys = {parts.names[parts.of(f"k{at}")]: f"k{at}" for at in range(40)}
    producers = Producers({name: adding(key) for name, key in keys.items()})
    assert len(keys) == 4
    async with pool(app, 2):
        failover = await hurt_under_load(sentinels, how, producers, followed)
        assert set(failover.kept) == set(keys)
    judge(followed, failover, capsys)


async def test_an_heir_goes_on_after_the_position_that_outlived_the_primary(
    sentinels: Sentinels, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 43, 48: primary and owner die with acks that no replica had: those messages come again, in order."""
    app, followed = make_app(sentinels, connect=PATIENCE), Followed()
    rooms = app.assignments(f"{prefix}-rooms", lease=LEASE_S)
    rooms.owner()(followed.own)
    names = [f"{prefix}-room-{at}" for at in range(ROOMS)]
    for name in names:
        await rooms.announce(name)
        for n in range(20):
            await app.stream(name).add({"n": n}, durability="replicated")
    async with pool(app, 1) as (owner,):
        await wait_until(lambda: followed.reached(dict.fromkeys(names, 20)), 10)
        await asyncio.to_thread(sentinels.until_copied)
        victim = sentinels.primary
        (heir,) = (one for one in sentinels.data if one is not victim)
        heir.ask("REPLICAOF", "127.0.0.1", free_port())  # it hears nothing more, and has what it had
        lost = {name: await app.stream(name).add({"n": 20}) for name in names}
        await wait_until(lambda: followed.reached(dict.fromkeys(names, 21)), 10)
        await wait_until(lambda: all(followed.starts[name][-1].acked_at for name in names), 10)
        await crash(owner)
        victim.kill()
        failover = await asyncio.to_thread(watched, sentinels, victim, time.monotonic())
    assert set(failover.kept) == set(names)
    producers = Producers.of(app, names)
    producers.bereft()
    producers.counts = dict.fromkeys(names, 20)  # what went with the primary is added again
    async with pool(app, 1), producers.running():
        await wait_until(lambda: all(count > 30 for count in producers.counts.values()), 15, what="adds go on")
        await wait_until(lambda: followed.reached(dict.fromkeys(names, 30)), 15)
    assert followed.skipped() == []
    assert followed.jumps() == []
    again = [(name, start.n) for name, start in followed.repeated()]
    assert again == [(name, 20) for name in names], "only what was acked and not copied came again"
    assert all(start.id == lost[name].id for name, start in followed.repeated())


@pytest.mark.long
async def test_rooms_go_on_at_once_when_a_failover_took_long(
    sentinels: Sentinels, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 48: its successor is looked for every second, however long that takes."""
    for watcher in sentinels.watchers:
        watcher.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 9_000)
    app, followed = make_app(sentinels, connect=PATIENCE), Followed()
    rooms = app.assignments(f"{prefix}-rooms", lease=LEASE_S)
    rooms.owner()(followed.own)
    names = [f"{prefix}-room-{at}" for at in range(ROOMS)]
    for name in names:
        await rooms.announce(name)
    async with pool(app, 2):
        failover = await hurt_under_load(sentinels, "killed", Producers.of(app, names), followed)
    assert failover.seconds > 8
    judge(followed, failover, capsys)


def test_a_killed_workers_message_is_requeued_after_a_failover(
    sentinels: Sentinels, stream: str, hire: Hire, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 46, 48: its lock is not renewed by anybody, at whichever primary; the copy runs elsewhere."""
    requeue = {"interval": "250ms", "min_idle": "500ms", "hints": False}
    workers = hire(sentinels, lease=0.5, concurrency=1, requeue=requeue)
    first = workers.start()
    workers.add(sentinels, do="sleep", s=30, n=1)  # type: ignore[arg-type]
    workers.until(lambda history: history.starts(n=1))
    sibling = workers.start()
    sentinels.until_copied()
    victim = sentinels.primary
    first.kill()
    victim.kill()
    failover = watched(sentinels, victim, time.monotonic())
    again = workers.until(lambda history: history.starts(n=1)[1:], 15, what="the copy")[0]
    with capsys.disabled():
        print(f" [failover {failover.seconds:.2f} s, again after {again.at - failover.hurt_at:.2f} s]", end="")
    assert (again.pid, again.attempt) == (sibling.pid, 2)
    assert again.at - failover.hurt_at < failover.seconds + 0.5 + 1.1 * 0.25 + BACKOFF_S + NOISE_S


async def test_streams_of_the_go_protocol_live_on_behind_sentinels(
    sentinels: Sentinels, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 47, 48: announced, owned by one, through a failover, finished by who owns it; and nothing is left."""
    app = make_app(sentinels, connect=PATIENCE)
    names = [f"{prefix}-room-{at}" for at in range(4)]
    async with ours(app, prefix) as first, ours(app, prefix, "py-2") as second:

        def held() -> list[str]:
            return sorted([*first.client.streams, *second.client.streams])

        for name in names[:3]:
            await first.client.announce(name, {"of": name})
        await wait_until(lambda: held() == names[:3], 10, what="all owned")
        await asyncio.to_thread(sentinels.until_copied)
        victim = sentinels.primary
        victim.kill()
        await asyncio.to_thread(watched, sentinels, victim, time.monotonic())
        await wait_until(lambda: _announced(first.client, names[3]), 10)
        await wait_until(lambda: held() == names, 15, what="all owned again, each by one")
        for told in (first, second):
            for name in told.client.streams:
                await told.client.done_stream(name)
        with pytest.raises(NotOwned):
            await first.client.done_stream(names[0])
        assert {event.stream for told in (first, second) for event in told.of(Added)} == set(names)
        await wait_until(lambda: _left(sentinels, prefix) == set(), 5)


async def _announced(client: GoClient, name: str) -> bool:
    """Whether it could be: until all sentinels name the new primary, the dead one is asked, and nothing is sent."""
    try:
        await client.announce(name)
    except Unavailable:
        return False
    return True


def _left(sentinels: Sentinels, prefix: str) -> set[bytes]:
    """Keys of the test that are still there, without empty streams."""
    client = sentinels.sync()
    return {key for key in client.scan_iter(f"*{prefix}*") if client.type(key) != b"stream" or client.xlen(key)}
