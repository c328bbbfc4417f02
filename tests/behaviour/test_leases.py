"""Leases: whoever renews is not robbed, whoever lost is told (SPEC 9 to 13, in one process)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery, DeliveryLost, SyncDelivery
from tests.support.looking import fill, pending
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]

LEASE_S = 0.3


@pytest.mark.servers("redis8", "redis6")
async def test_a_handler_that_runs_ten_leases_is_started_once(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 9: async and plain def, beside siblings that look for what is idle."""
    app, ledger, plain = make_app(server), Ledger(), []
    orders, threads = app.stream(stream), app.stream(f"{stream}-threads")

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(10 * LEASE_S)

    @threads.handler(group=GROUP, lease=LEASE_S)
    def bill_in_thread(order: Any, delivery: SyncDelivery[Any]) -> None:
        plain.append(delivery.attempt)
        time.sleep(10 * LEASE_S)

    async with pool(app, 3):
        await orders.add({})
        await threads.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 2, 10)
    assert ledger.attempts == plain == [1]
    assert counted(app, "refused_total") == 0
    assert counted(app, "renewed_total") >= 10


@pytest.mark.servers("redis8", "redis6")
async def test_a_burst_on_two_workers_with_handlers_slower_than_the_lease_runs_once_each(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 10: a burst of 1,000."""
    ids = fill(server, stream, 1_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease=LEASE_S, concurrency=250)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(2 * LEASE_S)

    async with pool(app, 2):
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") >= 1_000, 20)
    assert sorted(ledger.ids) == sorted(ids)
    assert set(ledger.attempts) == {1}
    assert counted(app, "refused_total") == 0


async def test_a_robbed_handler_is_told_and_its_return_is_refused_and_counted(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 11: `delivery.lost` is set within one renewal; nothing the former owner says changes anything."""
    app, told, refused = make_app(server), [], []
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        server.sync().xclaim(stream, GROUP, "thief", 0, [delivery.id])
        robbed_at = time.monotonic()
        await delivery.lost.wait()
        told.append(time.monotonic() - robbed_at)
        for ending in (delivery.ack, delivery.retry, delivery.release):
            try:
                await ending()
            except DeliveryLost as error:
                refused.append(error)

    async with app.worker() as worker:
        added = await orders.add({})
        await wait_until(lambda: len(refused) == 3)
        await wait_until(lambda: not worker.lanes[0].slots.zombies)
    assert told[0] < LEASE_S / 3 + 1
    held = pending(server, stream, GROUP)[added.id]
    assert (held.owner, held.count) == ("thief", 2)
    assert counted(app, "lost_total") == 1
    assert counted(app, "refused_total") >= 1


@pytest.mark.servers("redis8", "redis6")
async def test_a_thread_learns_that_its_delivery_was_lost(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 11: a plain def handler asks `delivery.lost` from its thread."""
    app, told = make_app(server), []
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S)
    def bill(order: Any, delivery: SyncDelivery[Any]) -> None:
        server.sync().xclaim(stream, GROUP, "thief", 0, [delivery.id])
        told.append(delivery.lost.wait_in_thread(5))
        with pytest.raises(DeliveryLost):
            delivery.ack()

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: told == [True])
        await wait_until(lambda: counted(app, "refused_total") == 1)


@pytest.mark.servers("redis8", "redis6")
async def test_a_lost_message_is_not_started_again_beside_its_running_zombie(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """DESIGN 4: an id is not started while an earlier handler of it runs in the same process."""
    app, go_on, running = make_app(server), asyncio.Event(), []
    orders, most = app.stream(stream), 0

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        nonlocal most
        running.append(delivery.attempt)
        most = max(most, len(running))
        try:
            if delivery.attempt == 1:
                server.sync().xclaim(stream, GROUP, "thief", 0, [delivery.id], idle=60_000)
                await go_on.wait()
        finally:
            running.pop()

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "lost_total") + counted(app, "refused_total") >= 1, what="the loss")
        await asyncio.sleep(3 * LEASE_S)  # the thief's entry is due: this worker takes it and must not start it
        assert running == [1]
        go_on.set()
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1, 10)
    assert most == 1
    assert pending(server, stream, GROUP) == {}


@pytest.mark.servers("redis8", "redis6")
async def test_a_blip_shorter_than_the_lease_costs_nothing(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 12: every connection cut, and again refused for half a lease: ownership kept."""
    lease_s, ledger = 1.2, Ledger()  # half of it is left for reconnecting, also on a busy machine
    async with Proxy(server.socket) as proxy:
        app, sibling = make_app(proxy.url), make_app(server)
        for one in (app, sibling):

            @one.stream(stream).handler(group=GROUP, lease=lease_s, concurrency=5)
            async def bill(order: Any, delivery: Delivery[Any]) -> None:
                ledger.note(order, delivery)
                await asyncio.sleep(2.5 * lease_s)

        async with app.worker() as worker:
            fill(server, stream, 5)
            await wait_until(lambda: len(ledger) == 5)
            async with sibling.worker():
                for _ in range(2):
                    proxy.refusing = True
                    await proxy.cut()
                    await asyncio.sleep(lease_s / 2)  # the length of the blip
                    proxy.refusing = False
                    await asyncio.sleep(lease_s / 2)
                await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5, 10)
        assert {seen.owner for seen in ledger.seen} == {worker.owner}
        assert ledger.attempts == [1] * 5
        assert counted(app, "refused_total") + counted(app, "lost_total") == 0
        await app.close()


@pytest.mark.servers("redis8", "valkey9")
async def test_a_handler_that_blocks_the_loop_is_named_in_a_warning_and_not_robbed(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 13: blocked for 3 × L."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def hogging(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        time.sleep(3 * LEASE_S)
        idle_ms = pending(server, stream, GROUP)[delivery.id].idle_ms
        assert idle_ms < LEASE_S * 1000

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    assert ledger.attempts == [1]
    assert "hogging" in next(line for line in caplog.messages if "loop.blocked" in line)


@pytest.mark.servers("redis8", "valkey9", "redis7")
async def test_what_was_sent_to_a_blocked_loop_and_deleted_before_it_was_read_is_counted(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 18: the renewal by the owner's name takes it out of the pending list, so it has to tell (FAULTS 21, seed 2).
    Redis 6.2 leaves it there, for the rescue to find."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def hogging(order: Any, delivery: Delivery[Any]) -> None:
        if order["n"] == 0:
            await wait_until(lambda: worker.lanes[0].reader.blocked)
            (unread,) = fill(server, stream, 1, '{"n":1}')
            while unread not in pending(server, stream, GROUP):
                time.sleep(0.005)
            server.sync().xdel(stream, unread)
            time.sleep(3 * LEASE_S)

    async with app.worker() as worker:
        await orders.add({"n": 0})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
        await wait_until(lambda: counted(app, "trimmed_total") == 1)
        assert pending(server, stream, GROUP) == {}
    assert counted(app, "trimmed_total") == 1


@pytest.mark.servers("redis8", "redis6")
async def test_what_was_sent_to_a_blocked_loop_and_not_read_yet_is_not_robbed_either(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 13: the answer of a read lies in the socket while the loop stands still: renewed by the owner's name."""
    app, ledger, idle_ms = make_app(server), Ledger(), []
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S)
    async def hogging(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["n"] == 0:
            await wait_until(lambda: worker.lanes[0].reader.blocked)
            (unread,) = fill(server, stream, 1, '{"n":1}')
            until = time.monotonic() + 3 * LEASE_S
            while time.monotonic() < until:
                time.sleep(0.02)
                idle_ms.append(pending(server, stream, GROUP)[unread].idle_ms)

    async with app.worker() as worker:
        await orders.add({"n": 0})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 2)
    assert len(idle_ms) > 20
    assert max(idle_ms) < LEASE_S * 1000
    assert ledger.attempts == [1, 1]


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("kept", ["lanes", "assignments"])
async def test_leases_that_nobody_keeps_any_more_fail_their_worker(
    server: Server, stream: str, make_app: MakeApp, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that ends by an error would let them run out, and nobody would know why."""
    app = make_app(server)

    async def idle(each: Any) -> None:
        await asyncio.sleep(60)

    def broken(*_: Any) -> None:
        raise IndexError("broken")

    if kept == "lanes":
        app.stream(stream).handler(group=GROUP, lease=LEASE_S)(idle)
        monkeypatch.setattr("headrace.lifeline.Lifeline._look", broken)
    else:
        app.assignments(stream, lease=LEASE_S).owner()(idle)
        monkeypatch.setattr("headrace.heartbeat.Heartbeat._beat", broken)
    with pytest.raises(IndexError, match="broken"):
        async with app.worker() as worker:
            await asyncio.wait_for(worker.wait(), 5)
