"""A primary, a replica and three sentinels: lives, failovers, and what an old primary may still say (SPEC 48, 49)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery, HeadraceError, Room
from headrace.announcements import Listed
from headrace.producer import Durability
from headrace.redis.connect import Server
from tests.support import lives
from tests.support.topologies import Sentinels, every, start_sentinels
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]
LEASE_S = 0.6


async def test_the_lives_of_producer_worker_and_operator_run_behind_sentinels(
    sentinels: Sentinels, stream: str, make_app: MakeApp
) -> None:
    """SPEC 48: everything of A to D."""
    app = make_app(sentinels)
    await lives.produce(app, stream)
    sentinels.sync().delete(stream)
    await lives.work(sentinels, app, stream)  # type: ignore[arg-type]
    await lives.operate(sentinels, make_app(sentinels), stream)  # type: ignore[arg-type]


async def _fail_over(
    sentinels: Sentinels, stream: str, app: App, hurt: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> tuple[Any, Ledger]:
    """Load, a hurt primary, another one; everything confirmed is handled. Answers the old primary."""
    orders, ledger, confirmed, on = app.stream(stream), Ledger(), set[str](), True
    durability: Durability = "replicated"
    waits = False  # an add for its replica

    @orders.handler(group=GROUP, lease=LEASE_S, concurrency=20)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order["n"], delivery)

    async def produce() -> None:
        nonlocal waits
        n = 0
        while on:
            n, waits = n + 1, durability == "replicated"
            try:
                await orders.add({"n": n}, key=str(n), durability=durability)
                confirmed.add(n)
            except HeadraceError:
                await asyncio.sleep(0.05)  # unknown, not failed
            await asyncio.sleep(0.005)

    async with pool(app, 2):
        producing = asyncio.ensure_future(produce())
        await wait_until(lambda: len(ledger) > 30, 10)
        victim = sentinels.primary
        durability = "received"  # nobody is left to confirm more
        await wait_until(lambda: not waits, 10)
        hurt(victim)
        hurt_at = time.monotonic()
        await asyncio.to_thread(sentinels.until, lambda: sentinels.primary is not victim, "a failover")
        failover_s = time.monotonic() - hurt_at
        seen = len(ledger)
        await wait_until(lambda: len(ledger) > seen + 100, 10, what="work goes on")
        on = False
        await producing
        await wait_until(lambda: {each.payload for each in ledger.seen} >= confirmed, 15, what="all confirmed handled")
    first = min(each.at for each in ledger.seen if each.at > hurt_at + 0.5)
    with capsys.disabled():
        print(f" [failover {failover_s:.2f} s, gap {first - hurt_at:.2f} s]", end="")
    assert first - hurt_at <= failover_s + 2.0
    return victim, ledger


@pytest.mark.servers(*every("redis8"))
async def test_nothing_confirmed_is_lost_when_the_primary_is_killed_and_workers_go_on(
    sentinels: Sentinels, stream: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """SPEC 48: SIGKILL; the scripts are loaded again at the new primary."""
    await _fail_over(sentinels, stream, make_app(sentinels), lambda victim: victim.kill(), capsys)


@pytest.mark.servers(*every("redis8"))
async def test_an_old_primary_that_was_paused_gets_no_more_writes_when_it_comes_back(
    sentinels: Sentinels, stream: str, make_app: MakeApp, capsys: pytest.CaptureFixture[str]
) -> None:
    """FACTS: for seconds it still calls itself master. Nobody who asks the sentinels believes it."""
    app = make_app(sentinels)
    idle = Server(sentinels.url).link("idle")
    await idle.open()
    victim, _ = await _fail_over(sentinels, stream, app, lambda victim: victim.pause(), capsys)
    victim.cont()
    assert victim.info("replication")["role"] == "master", "it was quicker than expected: nothing is shown"
    length = victim.sync().xlen(stream)
    for n in range(20):
        await app.stream(stream).add({"n": -n})
    assert idle.node is not None
    assert idle.node.port == victim.port  # it was idle and had heard nothing
    await idle.call(_add(stream))
    assert idle.node.port != victim.port
    if victim.info("replication")["role"] == "master":
        assert victim.sync().xlen(stream) == length
    await idle.close()


def _add(stream: str) -> Any:
    from headrace.names import keys_of
    from headrace.redis import scripts

    return scripts.add(keys_of(stream), ["payload", "{}"])


async def test_a_primary_of_another_version_takes_over_and_its_own_commands_are_used(
    stream: str, make_app: MakeApp
) -> None:
    """What a server can do is asked again after a failover: from the fallback pair to XREADGROUP CLAIM."""
    mixed = await asyncio.to_thread(start_sentinels, "redis7", replica_key="redis8")
    try:
        app, ledger = make_app(mixed), Ledger()

        @app.stream(stream).handler(group=GROUP, lease=LEASE_S, delete_on_ack=True)
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order["n"], delivery)

        async with app.worker() as worker:
            lane = worker.lanes[0]
            await app.stream(stream).add({"n": 1})
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
            assert not lane.reader._native
            await asyncio.to_thread(mixed.until_copied)
            mixed.primary.kill()
            await asyncio.to_thread(mixed.until, lambda: mixed.primary.key == "redis8", "a failover")
            await wait_until(lambda: lane.reader._native, 10)
            assert lane.engine.native
            await app.stream(stream).add({"n": 2}, key="two")
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 2, 10)
        assert mixed.sync().xlen(stream) == 0
        await app.close()
    finally:
        mixed.stop()


async def test_owned_streams_tell_their_lag_after_a_failover_to_a_server_that_can(
    stream: str, make_app: MakeApp
) -> None:
    """Redis 6.2 cannot be told how many messages were read; its successor is told with the next ack."""
    mixed = await asyncio.to_thread(start_sentinels, "redis6", replica_key="redis8")
    try:
        app, name, go = make_app(mixed), f"{stream}-room", asyncio.Event()
        rooms = app.assignments(stream, lease=LEASE_S)

        @rooms.owner()
        async def own(room: Room[Any]) -> None:
            async for message in room:
                if message.payload["n"] == 7:
                    await go.wait()
                await room.ack(message)

        async def row() -> Listed:
            (found,) = await rooms.listed()
            return found

        await rooms.announce(name)
        await app.stream(name).add_many([{"n": n} for n in range(5)])
        async with app.worker():
            await wait_until(lambda: counted(app, "acked_total") == 5)
            assert (await row()).lag == 0  # nothing follows the position; more than that Redis 6.2 cannot tell
            await asyncio.to_thread(mixed.until_copied)
            mixed.primary.kill()
            await asyncio.to_thread(mixed.until, lambda: mixed.primary.key == "redis8", "a failover")
            for n in range(5, 10):
                await app.stream(name).add({"n": n}, key=str(n))
            await wait_until(lambda: counted(app, "acked_total") == 7, 10)
            assert (await row()).lag == 3
            go.set()
            await wait_until(lambda: counted(app, "acked_total") == 10, 10)
        await app.close()
    finally:
        mixed.stop()


async def test_a_primary_that_forbids_a_command_takes_over_and_another_way_is_gone(
    stream: str, make_app: MakeApp
) -> None:
    """The other direction: rights are not replicated, and XACKDEL is not to be had at the new primary."""
    user = "user shop on nopass ~* &* +@all"
    mixed = await asyncio.to_thread(start_sentinels, "redis8", primary_lines=[user], replica_lines=[f"{user} -xackdel"])
    try:
        app, ledger = make_app(mixed.url.replace("://", "://shop:any@")), Ledger()

        @app.stream(stream).handler(group=GROUP, lease=LEASE_S, delete_on_ack=True)
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order["n"], delivery)
            await asyncio.sleep(0.01)

        async with app.worker():
            for n in range(20):
                await app.stream(stream).add({"n": n}, durability="replicated")
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 20)
            old = mixed.primary
            old.kill()
            await asyncio.to_thread(mixed.until, lambda: mixed.primary is not old, "a failover")
            for n in range(20, 40):
                await app.stream(stream).add({"n": n}, key=str(n))
            await wait_until(lambda: set(range(40)) == {seen.payload for seen in ledger.seen}, 10)
            await wait_until(lambda: mixed.sync().xlen(stream) == 0, 5, what="all deleted, the older way")
        await app.close()
    finally:
        mixed.stop()
