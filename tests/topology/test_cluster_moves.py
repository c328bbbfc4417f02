"""A slot moves to another master under load, in the old way and in the atomic one (SPEC 49)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace import App, Delivery, Requeue
from tests.support.followed import Followed, Producers
from tests.support.looking import age, orphan, pending
from tests.support.moves import ATOMIC, another, move_atomically, move_classic
from tests.support.topologies import Cluster, Member, every
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


@pytest.mark.servers(*every("redis8"))
async def test_a_slot_moved_key_by_key_under_load_loses_nothing_and_starts_nothing_twice(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: ASK, TRYAGAIN and MOVED on the way; live handlers keep their deliveries."""
    pause_s = await _moved_under_load(cluster, prefix, make_app(cluster), move_classic)
    with capsys.disabled():
        print(f" [longest pause {pause_s:.2f} s]", end="")


@pytest.mark.servers(*ATOMIC)
async def test_a_slot_moved_atomically_under_load_loses_nothing_and_starts_nothing_twice(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 49: Redis 8.4+, Valkey 9+."""
    pause_s = await _moved_under_load(cluster, prefix, make_app(cluster), move_atomically)
    with capsys.disabled():
        print(f" [longest pause {pause_s:.2f} s]", end="")


# ── rooms, and work that is requeued ──


def _slowly(cluster: Cluster, name: str, source: Member, target: Member) -> None:
    """One key at a time, so that a stream and what is kept beside it are apart for a while."""
    move_classic(cluster, name, source, target, page=1, rest_s=0.03)


def _halved(cluster: Cluster) -> int:
    """How often servers have said since their start that the keys of a call are at two of them."""
    told = [member.info("errorstats").get("errorstat_TRYAGAIN", {}).get("count", 0) for member in cluster.members]
    return sum(told)


async def _move_away_and_back(cluster: Cluster, name: str, move: Callable[..., None]) -> float:
    """Answers how long the longer of the two took."""
    first = await asyncio.to_thread(cluster.member_of, name)
    second = another(cluster, first)
    longest_s = 0.0
    for source, target in ((first, second), (second, first)):
        begun = time.monotonic()
        await asyncio.to_thread(move, cluster, name, source, target)
        longest_s = max(longest_s, time.monotonic() - begun)
    return longest_s


async def _rooms_moved(cluster: Cluster, prefix: str, app: App, move: Callable[..., None]) -> tuple[float, float]:
    """A room's slot and that of the announcements are moved; answers the longest move and the longest pause."""
    announcements, followed = f"{prefix}-rooms", Followed()
    rooms = app.assignments(announcements, lease="2s")
    rooms.owner()(followed.own)
    names = cluster.names(f"{prefix}-room", 3)
    for name in names:
        await rooms.announce(name)
    producers = Producers.of(app, names)
    async with pool(app, 2):
        async with producers.running():
            await wait_until(lambda: all(len(followed.starts[name]) > 20 for name in names), 10, what="a warm start")
            begun, move_s = time.monotonic(), 0.0
            for name in (names[0], announcements):
                move_s = max(move_s, await _move_away_and_back(cluster, name, move))
                seen = {name: len(starts) for name, starts in followed.starts.items()}
                await wait_until(
                    lambda: all(len(followed.starts[each]) > seen[each] + 10 for each in names),  # noqa: B023
                    10,
                    what="rooms go on",
                )
        await wait_until(lambda: followed.reached(producers.counts), 10, what="everything handled")
        await wait_until(lambda: all(followed.starts[name][-1].acked_at for name in names), 10)
    assert (followed.skipped(), followed.jumps(), followed.repeated()) == ([], [], [])
    assert counted(app, "lost_total") + counted(app, "refused_total") == 0
    return move_s, max(followed.gap_s(name, begun) for name in names)


@pytest.mark.servers(*every("redis8"))
async def test_rooms_go_on_in_order_while_their_slot_and_their_announcements_move_key_by_key(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 43b, 49: stream and fence are at two masters for a while; nothing is skipped, repeated, or taken away."""
    halved = _halved(cluster)
    move_s, gap_s = await _rooms_moved(cluster, prefix, make_app(cluster), _slowly)
    assert _halved(cluster) > halved
    with capsys.disabled():
        print(f" [longest move {move_s:.2f} s, pause {gap_s:.2f} s]", end="")
    assert gap_s < move_s + 2.0


@pytest.mark.servers(*ATOMIC)
async def test_rooms_go_on_in_order_while_their_slot_and_their_announcements_move_atomically(
    cluster: Cluster, prefix: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 43b, 49: Redis 8.4+, Valkey 9+."""
    move_s, gap_s = await _rooms_moved(cluster, prefix, make_app(cluster), move_atomically)
    with capsys.disabled():
        print(f" [longest move {move_s:.2f} s, pause {gap_s:.2f} s]", end="")
    assert gap_s < 2.0


async def _requeue_moved(cluster: Cluster, prefix: str, app: App, move: Callable[..., None]) -> None:
    """Locks of live owners and what dead ones left, while the slot that holds all of it moves."""
    name, ledger, on = cluster.names(prefix, 1)[0], Ledger(), True
    stream, last = app.stream(name), 0

    @stream.handler(group=GROUP, lease="5s", concurrency=10, recovery=Requeue(interval="200ms", min_idle="300ms"))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order["n"], delivery)
        await asyncio.sleep(0.8 if order["n"] % 20 == 0 else 0.002)  # some are in hand while their slot moves

    async def produce() -> None:
        nonlocal last
        while on:
            await stream.add({"n": last}, key=str(last))
            last += 1
            await asyncio.sleep(0.02)

    await stream.add_many([{"n": -n} for n in range(1, 6)])
    orphan(cluster, name, GROUP, 5)  # type: ignore[arg-type]
    async with pool(app, 2):
        producing = asyncio.ensure_future(produce())
        await wait_until(lambda: len(ledger) > 20, 10)
        age(cluster, name, GROUP, list(pending(cluster, name, GROUP)), 60_000)  # type: ignore[arg-type]
        await _move_away_and_back(cluster, name, move)
        seen = len(ledger)
        await wait_until(lambda: len(ledger) > seen + 20, 10, what="work goes on")
        on = False
        await producing
        wanted = set(range(-5, last))
        await wait_until(lambda: {each.payload for each in ledger.seen} >= wanted, 15, what="everything handled")
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") >= len(wanted), 10)
        await wait_until(lambda: pending(cluster, name, GROUP) == {}, 10)  # type: ignore[arg-type]
    attempts = sorted((each.payload, each.attempt) for each in ledger.seen)
    assert attempts == [(n, 2 if n < 0 else 1) for n in range(-5, last)], "lost, started twice, or never requeued"
    assert counted(app, "lost_total") + counted(app, "refused_total") == 0


@pytest.mark.servers(*every("redis8"))
async def test_what_is_requeued_is_started_once_more_and_what_is_locked_is_not_while_a_slot_moves_key_by_key(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 46, 49: lock, stream and copy are in one slot, and for a while at two masters."""
    halved = _halved(cluster)
    await _requeue_moved(cluster, prefix, make_app(cluster), _slowly)
    assert _halved(cluster) > halved


@pytest.mark.servers(*ATOMIC)
async def test_what_is_requeued_is_started_once_more_and_what_is_locked_is_not_while_a_slot_moves_atomically(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 46, 49: Redis 8.4+, Valkey 9+."""
    await _requeue_moved(cluster, prefix, make_app(cluster), move_atomically)


# ── a link that moved ──


@pytest.mark.servers(*every("redis8"))
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
