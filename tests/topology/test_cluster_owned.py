"""Owned streams and ordered partitions while a shard is away: those of the other shards go on (SPEC 43b, 49)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
import redis

from headrace import App, Delivery, Room, ServerError
from headrace.acquirer import CHUNK
from headrace.feed import POLL_MOST_S, POLL_RATE
from headrace.names import partition_assignments
from headrace.redis.topology import slot_of
from tests.support.moves import move_classic
from tests.support.topologies import Cluster, Member, every
from tests.support.wait import wait_until

MakeApp = Callable[..., App]

pytestmark = [pytest.mark.servers(*every("redis8")), pytest.mark.timeout(120)]

AWAY_S = 6.0  # longer than several backoffs, and than an answer may take
GAP_S = 1.0  # how long a room of another shard may stand still meanwhile
PACE_S = 0.02


class Book:
    """When messages were acknowledged, room by room."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = defaultdict(list)

    async def own(self, room: Room[Any]) -> None:
        async for message in room:
            await room.ack(message)
            self.note(room.name)

    async def bill(self, order: Any, delivery: Delivery[Any]) -> None:
        self.note(delivery.stream)

    def note(self, name: str) -> None:
        self.at[name].append(time.monotonic())

    def since(self, name: str, moment: float) -> int:
        return sum(at > moment for at in self.at[name])

    def gap(self, name: str, since: float) -> float:
        """The longest time without an ack from a moment until now."""
        times = [since, *(at for at in self.at[name] if at > since), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))


@asynccontextmanager
async def load(app: App, names: list[str]) -> AsyncIterator[None]:
    """A message to each of these streams, again and again."""

    async def add(name: str) -> None:
        while True:
            with suppress(ServerError):
                await app.stream(name).add({"n": 0})
            await asyncio.sleep(PACE_S)

    tasks = [asyncio.ensure_future(add(name)) for name in names]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shard_of(cluster: Cluster, name: str) -> list[Member]:
    """The master that serves a stream, and its replica."""
    master = cluster.member_of(name)

    def replicates(member: Member) -> bool:
        about = member.info("replication")
        return bool(about["role"] == "slave" and about["master_port"] == master.port)

    return [master, *(member for member in cluster.members if replicates(member))]


@asynccontextmanager
async def away(cluster: Cluster, name: str, how: str) -> AsyncIterator[float]:
    """A whole shard is dead or stands still; it is back afterwards. Says since when."""
    shard = await asyncio.to_thread(shard_of, cluster, name)
    assert len(shard) == 2
    for member in shard:
        member.kill() if how == "killed" else member.pause()
    try:
        yield time.monotonic()
    finally:
        for member in shard:
            member.start() if how == "killed" else member.cont()
        await asyncio.to_thread(cluster.until, cluster.ready, "the shard is back")


def move_beside(cluster: Cluster, name: str, other: str) -> None:
    """Move a stream's slot to the master of another stream. Replicas may be about to take over meanwhile."""

    def beside() -> bool:
        try:
            source, target = cluster.member_of(name), cluster.member_of(other)
            if source is not target:
                move_classic(cluster, name, source, target)
        except (LookupError, redis.ResponseError):
            return False
        return cluster.member_of(name) is cluster.member_of(other)

    cluster.until(beside, f"{name} is where {other} is")


@pytest.mark.parametrize("how", ["killed", "hung"])
async def test_rooms_of_other_shards_go_on_while_one_is_away(
    cluster: Cluster, prefix: str, make_app: MakeApp, how: str
) -> None:
    """Reads and acks there wait for nothing; what the shard itself has goes on soon after it is back."""
    app, book = make_app(cluster), Book()
    rooms = app.assignments(cluster.names(f"{prefix}-rooms", 3)[1], lease="2s")
    rooms.owner()(book.own)
    names = cluster.names(f"{prefix}-room", 12)
    lame, others = names[::3], [*names[1::3], *names[2::3]]
    for name in names:
        await rooms.announce(name)
    async with app.worker(), app.worker(), load(app, others):
        async with load(app, lame):
            await wait_until(lambda: all(len(book.at[name]) > 5 for name in names), 15, what="a warm start")
        async with away(cluster, names[0], how) as since:
            await asyncio.sleep(AWAY_S)
            gaps = {name: round(book.gap(name, since), 2) for name in others}
        assert max(gaps.values()) < GAP_S, gaps
        back_at = time.monotonic()
        async with load(app, lame):
            await wait_until(lambda: all(book.since(name, back_at) for name in lame), 5, what="the shard's rooms go on")


@pytest.mark.parametrize("how", ["hung", pytest.param("killed", marks=pytest.mark.long)])
async def test_ordered_partitions_of_other_shards_go_on_while_one_is_away(
    cluster: Cluster, prefix: str, make_app: MakeApp, how: str
) -> None:
    app, book = make_app(cluster), Book()
    orders = app.stream(f"{prefix}-orders", partitions=12)
    orders.handler(group="billing", ordered=True, lease="2s")(book.bill)
    by_shard: dict[int, list[str]] = defaultdict(list)
    for name in orders.partitions.names:
        by_shard[slot_of(name) * 3 // 16_384].append(name)
    kept = slot_of(partition_assignments(orders.name)) * 3 // 16_384
    lame = next(names for shard, names in by_shard.items() if shard != kept)
    others = [name for name in orders.partitions.names if name not in lame]
    assert others
    async with app.worker(), app.worker(), load(app, others):
        async with load(app, lame):
            await wait_until(lambda: all(len(book.at[name]) > 5 for name in (*lame, *others)), 15, what="a warm start")
        async with away(cluster, lame[0], how) as since:
            await asyncio.sleep(AWAY_S)
            gaps = {name: round(book.gap(name, since), 2) for name in others}
        assert max(gaps.values()) < GAP_S, gaps


async def test_rooms_that_sleep_are_looked_at_less_often_the_more_there_are(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 45: what idle rooms cost is bounded, however many there are."""
    app, book = make_app(cluster), Book()
    rooms = app.assignments(f"{prefix}-rooms", lease="2s")
    rooms.owner()(book.own)
    names = [f"{prefix}-room-{at}" for at in range(400)]
    for at in range(0, len(names), 50):
        await asyncio.gather(*(rooms.announce(name) for name in names[at : at + 50]))

    def looks() -> int:
        masters = [member for member in cluster.members if member.info("replication")["role"] == "master"]
        stats = [master.info("commandstats") for master in masters]
        return sum(each.get("cmdstat_xread", {}).get("calls", 0) for each in stats)

    async with app.worker() as worker:
        await wait_until(lambda: len(worker.holdings[0].tenures) == len(names), 20)
        await wait_until(lambda: worker.holdings[0].drained, 10)
        before, begun = looks(), time.monotonic()
        await asyncio.sleep(2.0)
        rate = (looks() - before) / (time.monotonic() - begun)
        await app.stream(names[7]).add({"n": 0})
        await wait_until(lambda: book.at[names[7]], 2 * POLL_MOST_S)
    assert len(names) / POLL_MOST_S < rate < 1.1 * POLL_RATE


async def test_a_room_whose_slot_has_moved_depends_on_its_new_shard_alone(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    app, book = make_app(cluster), Book()
    rooms = app.assignments(cluster.names(f"{prefix}-rooms", 3)[1], lease="2s")
    rooms.owner()(book.own)
    names = cluster.names(f"{prefix}-room", 6)
    moved, left, others = names[0], names[3], [*names[1::3], *names[2::3]]
    for name in names:
        await rooms.announce(name)
    async with app.worker(), load(app, [moved, *others]):
        async with load(app, [left]):
            await wait_until(lambda: all(len(book.at[name]) > 5 for name in names), 15, what="a warm start")
            await asyncio.to_thread(move_beside, cluster, moved, names[2])
            moved_at = time.monotonic()
            await wait_until(lambda: book.since(moved, moved_at) > 5, 10, what="work goes on")
        async with away(cluster, left, "hung") as since:
            await asyncio.sleep(AWAY_S)
            gaps = {name: round(book.gap(name, since), 2) for name in (moved, *others)}
        await asyncio.to_thread(move_beside, cluster, moved, left)
    assert max(gaps.values()) < GAP_S, gaps


@pytest.mark.parametrize("how", ["hung", pytest.param("killed", marks=pytest.mark.long)])
async def test_owners_are_found_for_streams_of_other_shards_while_one_is_away(
    cluster: Cluster, prefix: str, make_app: MakeApp, how: str
) -> None:
    """What cannot be taken over just now keeps an owner from taking nothing else: neither new streams nor those of an
    owner that vanished."""
    app, book = make_app(cluster), Book()
    rooms = app.assignments(cluster.names(f"{prefix}-rooms", 3)[1], lease="1s")
    rooms.owner()(book.own)
    names = cluster.names(f"{prefix}-room", 12)
    later = cluster.names(f"{prefix}-later", 12)
    far = cluster.names(f"{prefix}-far", 3 * (CHUNK + 20))[::3]  # more than are taken at once
    for name in names:
        await rooms.announce(name)
    others = [name for each in (names, later) for name in (*each[1::3], *each[2::3])]
    async with app.worker() as first, load(app, others):
        await wait_until(lambda: all(len(book.at[name]) > 5 for name in names[1::3]), 15, what="a warm start")
        async with away(cluster, names[0], how):
            async with app.worker() as heir:
                for name in (*far, *later):
                    await rooms.announce(name)
                await wait_until(lambda: all(book.at[name] for name in others), 5, what="new streams are owned")
                first._keepers.heartbeats[0].cut()
                await wait_until(lambda: all(name in heir.holdings[0].by_name for name in others), 8, what="heirs")
                taken_at = time.monotonic()
                await wait_until(lambda: all(book.since(name, taken_at) for name in others), 5, what="all go on")
                await wait_until(
                    lambda: heir.holdings[0].held == 24 + len(far), 8, what="those out of reach are held, too"
                )
                await heir.stop(grace_s=0.1)
        await first.stop(grace_s=0.1)


async def test_an_owner_keeps_its_lease_while_those_of_other_assignments_cannot_be_renewed(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """Each shard has its own heartbeat."""
    app = make_app(cluster)
    streams = cluster.names(f"{prefix}-rooms", 18)
    lame, sound = streams[::3], streams[1]
    for stream in (*lame, sound):
        app.assignments(stream, lease="1s").owner()(Book().own)
    async with app.worker() as worker:
        (post,) = (holding.post for holding in worker.holdings if holding.member.stream == sound)
        ages = []
        async with away(cluster, lame[0], "hung") as since:
            while time.monotonic() < since + 4:
                ages.append(time.monotonic() - post.beat_at)
                await asyncio.sleep(0.01)
        assert max(ages) < 0.8


@pytest.mark.long
async def test_rooms_go_on_soon_after_a_failover_that_was_long_in_coming(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 20, 49: where another server may take over, nobody waits long between two looks for it."""
    app, book = make_app(cluster), Book()
    rooms = app.assignments(cluster.names(f"{prefix}-rooms", 3)[1], lease="2s")
    rooms.owner()(book.own)
    names = cluster.names(f"{prefix}-room", 6)
    for name in names:
        await rooms.announce(name)
    async with app.worker(), load(app, names):
        await wait_until(lambda: all(len(book.at[name]) > 5 for name in names), 15, what="a warm start")
        master, replica = await asyncio.to_thread(shard_of, cluster, names[0])
        replica.pause()
        master.kill()
        await asyncio.sleep(12)  # six backoffs: an ordinary seventh would take more than three seconds
        replica.cont()
        await asyncio.to_thread(cluster.until, lambda: _serves(cluster, names[0], replica), "a failover")
        taken_over_at = time.monotonic()
        await wait_until(lambda: all(book.since(name, taken_over_at) for name in names), 2, what="all rooms go on")


def _serves(cluster: Cluster, name: str, member: Member) -> bool:
    try:
        return cluster.member_of(name) is member
    except LookupError:
        return False
