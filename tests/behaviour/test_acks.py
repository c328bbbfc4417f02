"""Acknowledging (SPEC 23), in place of the handler's return."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import App, Delivery, DeliveryLost, Effect, Unavailable
from headrace.names import keys_of
from headrace.redis import scripts
from tests.support.looking import fill, orphan, pending
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]


async def test_a_handler_that_returns_acks_and_its_message_is_started_once(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker():
        added = await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
        assert pending(server, stream, GROUP) == {}
    assert (ledger.ids, ledger.attempts) == ([added.id], [1])


async def test_a_plain_def_handler_runs_in_a_thread_and_acks(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 23; DESIGN 5: both kinds of handlers."""
    app = make_app(server)
    orders, seen = app.stream(stream), []

    @orders.handler(group=GROUP, lease="400ms")
    def bill(order: Any) -> None:
        import threading

        seen.append((order["n"], threading.current_thread().name))

    async with app.worker():
        for n in range(20):
            await orders.add({"n": n})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 20)
    assert sorted(n for n, _ in seen) == list(range(20))
    assert all(name.startswith("headrace") for _, name in seen)


async def test_acks_of_empty_handlers_cost_less_than_a_tenth_of_a_command_a_message(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23: acks are gathered; counted by the server, at 100 slots."""
    fill(server, stream, 5_000)
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="10s", concurrency=100)
    async def bill(order: Any) -> None:
        pass

    before = _commands(server)
    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5_000, 20)
        spent = _commands(server) - before
    assert spent < 500


def _commands(server: Server) -> int:
    """What clients have sent: calls from inside scripts are counted too, so scripts count as one and no more."""
    stats = server.sync().info("commandstats")
    sent = ("cmdstat_evalsha", "cmdstat_xreadgroup", "cmdstat_client", "cmdstat_time")
    return sum(about["calls"] for name, about in stats.items() if name.startswith(sent))


@pytest.mark.servers("redis6")
async def test_10_000_in_flight_finish_in_random_order_and_no_ack_is_refused(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23."""
    fill(server, stream, 10_000)
    app = make_app(server)
    orders, gates = app.stream(stream), []

    @orders.handler(group=GROUP, lease="60s", concurrency=10_000)
    async def bill(order: Any) -> None:
        gate = asyncio.get_running_loop().create_future()
        gates.append(gate)
        await gate

    async with app.worker():
        await wait_until(lambda: len(gates) == 10_000, 30)
        random.shuffle(gates)
        for at, gate in enumerate(gates):
            gate.set_result(None)
            if at % 50 == 0:
                await asyncio.sleep(0)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 10_000, 30)
    assert counted(app, "refused_total") == 0
    assert pending(server, stream, GROUP) == {}


@pytest.mark.servers("redis8", "redis6")
async def test_a_batch_of_100_acks_among_10_000_takes_at_most_2_ms_of_the_server(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23: ids from all over the pending list; the best of five, because the machine is not ours alone."""
    fill(server, stream, 10_000)
    ids = [id_.encode() for id_ in orphan(server, stream, GROUP, 10_000, owner="me")]
    random.shuffle(ids)
    link, keys, took_us = make_app(server).link, keys_of(stream), []
    for at in range(0, 500, 100):
        server.sync().config_resetstat()
        pairs = [(id_, 1) for id_ in ids[at : at + 100]]
        assert {word.kind for word in await link.call(scripts.ack(keys, GROUP, "me", pairs))} == {"ok"}
        took_us.append(server.sync().info("commandstats")["cmdstat_evalsha"]["usec"])
    assert min(took_us) <= 2_000
    assert len(pending(server, stream, GROUP)) == 9_500


async def test_a_repeated_ack_says_gone_and_is_not_refused(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 23, DESIGN 4b: what happened once is gone the second time; another owner's is taken."""
    fill(server, stream, 2)
    first, second = (id_.encode() for id_ in orphan(server, stream, GROUP, 2, owner="me"))
    link, keys = make_app(server).link, keys_of(stream)
    assert [word.kind for word in await link.call(scripts.ack(keys, GROUP, "me", [(first, 1)]))] == ["ok"]
    again = await link.call(scripts.ack(keys, GROUP, "me", [(first, 1), (second, 1)]))
    assert [word.kind for word in again] == ["gone", "ok"]


async def test_a_batch_handler_acks_what_it_returns_from_and_ends_single_ones_itself(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23, DESIGN 5: batch handlers take a list of deliveries."""
    fill(server, stream, 10)
    app, sizes = make_app(server), []
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", batch=5)
    async def bill(batch: list[Delivery[Any]]) -> None:
        sizes.append(len(batch))
        for delivery in batch:
            if delivery.payload["n"] == 3:
                await delivery.bury("not this one")

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total") == 10)
    assert max(sizes) <= 5
    assert sum(sizes) == 10
    assert counted(app, "handled_total", outcome="bury") == 1
    assert pending(server, stream, GROUP) == {}


async def test_a_delivery_ends_once_and_its_outcome_is_not_replaced(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 23, DESIGN 4: a second, other outcome is refused, and so is an exception after an ack."""
    app, errors = make_app(server), []
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        await delivery.ack()
        try:
            await delivery.bury("changed my mind")
        except DeliveryLost as error:
            errors.append(str(error))
        raise RuntimeError("after the outcome")

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: errors)
        await wait_until(lambda: pending(server, stream, GROUP) == {})
    assert "a delivery ends once" in errors[0]
    assert await orders.dead_letters.count() == 0
    assert await orders.backlog(GROUP) == 0


@pytest.mark.servers("redis8", "valkey9")
async def test_an_ack_on_its_way_while_a_renewal_finds_the_entry_deleted_is_no_zombies(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 18, 23: the renewal takes a deleted entry out of the pending list; the handler has done its work, once."""
    app, acked = make_app(server), []

    @app.stream(stream).handler(group=GROUP, lease="300ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        server.sync().xdel(stream, delivery.id)
        await delivery.ack()
        acked.append(delivery.id)

    async with app.worker() as worker:
        link = worker.lanes[0].outbox._link
        sent = link.call

        async def sent_late(call: Any, *, wait_ms: int = 0) -> Any:
            link.call = sent  # type: ignore[method-assign]
            await wait_until(lambda: pending(server, stream, GROUP) == {})  # a renewal came before
            return await sent(call, wait_ms=wait_ms)

        link.call = sent_late  # type: ignore[method-assign]
        await app.stream(stream).add({"n": 0})
        await wait_until(lambda: acked)
    assert counted(app, "refused_total") == 0


@pytest.mark.servers("redis8", "valkey9")
@pytest.mark.parametrize("ending", ["retry", "release", "bury", "effect"])
async def test_any_other_outcome_on_its_way_while_a_renewal_finds_the_entry_deleted_is_counted_as_trimmed(
    server: Server, stream: str, make_app: MakeApp, ending: str
) -> None:
    """SPEC 18: there is nothing left to wait or to bury, and an effect that was not written is not told as done."""
    app, heard = make_app(server), []
    key = f"{{{stream}}}:effect"

    @app.stream(stream).handler(group=GROUP, lease="300ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        server.sync().xdel(stream, delivery.id)
        said: dict[str, Callable[[], Awaitable[None]]] = {
            "retry": delivery.retry,
            "release": delivery.release,
            "bury": lambda: delivery.bury("no use"),
            "effect": lambda: delivery.ack(effects=[Effect.xadd(key, {"a": 1})]),
        }
        try:
            await said[ending]()
        except DeliveryLost:
            heard.append("lost")
        else:
            heard.append("ended")

    async with app.worker() as worker:
        link = worker.lanes[0].outbox._link
        sent = link.pipe

        async def sent_late(calls: Any, *, wait_ms: int = 0) -> Any:
            link.pipe = sent  # type: ignore[method-assign]
            await wait_until(lambda: pending(server, stream, GROUP) == {})  # a renewal came before
            return await sent(calls, wait_ms=wait_ms)

        link.pipe = sent_late  # type: ignore[method-assign]
        await app.stream(stream).add({"n": 0})
        await wait_until(lambda: heard)
        await wait_until(lambda: counted(app, "trimmed_total") == 1)
    assert heard == ["lost" if ending == "effect" else "ended"]
    assert counted(app, "handled_total") == 0
    assert counted(app, "refused_total") == 0
    assert server.sync().exists(key) == 0


@pytest.mark.servers("redis8", "redis6")
async def test_a_repeated_ack_that_finds_nothing_after_its_lease_ran_out_is_not_taken_for_its_own(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 11, 23: the first ack never arrived, another owner took the message over and finished it meanwhile."""
    cut_off, sibling, ledger, refusals = make_app(server), make_app(server), Ledger(), []
    go = asyncio.Event()

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if len(ledger) == 1:
            await go.wait()
        try:
            await delivery.ack()
        except DeliveryLost:
            refusals.append(delivery.owner)

    for app in (cut_off, sibling):
        app.stream(stream).handler(group=GROUP, lease="300ms")(bill)
    async with cut_off.worker() as worker:
        link, away = worker.lanes[0].outbox._link, asyncio.Event()
        sent = link.call

        async def not_sent(call: Any, *, wait_ms: int = 0) -> Any:
            if not away.is_set():
                raise Unavailable("no way there")
            return await sent(call, wait_ms=wait_ms)

        link.call = not_sent  # type: ignore[method-assign]
        await cut_off.stream(stream).add({"n": 0})
        await wait_until(lambda: len(ledger) == 1)
        worker.lanes[0].reader.stop()
        for lifeline in worker._keepers.lifelines:
            lifeline.cut()
        await asyncio.sleep(0.1)  # its last read ends: from here on acks go over the outbox's own link
        go.set()
        async with sibling.worker():
            await wait_until(lambda: counted(sibling, "acked_total") == 1)
        away.set()
        await wait_until(lambda: refusals)
    assert refusals == [ledger.seen[0].owner]
    assert counted(cut_off, "acked_total") == 0


@pytest.mark.servers("redis8")
async def test_a_refusal_that_a_cancelled_handler_does_not_wait_for_any_more_is_no_error_of_the_loop(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio tells of exceptions that nobody asks for; this one was counted."""
    complaints: list[dict[str, Any]] = []
    caplog.set_level("CRITICAL", "headrace")  # what is logged with its traceback holds on to the delivery
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: complaints.append(about))
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)

        @app.stream(stream).handler(group=GROUP, lease="10s", timeout="200ms")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            server.sync().xclaim(stream, GROUP, "thief", 0, [delivery.id], justid=True)
            proxy.hold_replies = True
            await delivery.ack(effects=[Effect.set(f"{{{stream}}}:done", 1)])

        fill(server, stream, 1)
        async with app.worker():
            await wait_until(lambda: proxy.hold_replies)
            await asyncio.sleep(0.3)  # the handler is cancelled meanwhile
            proxy.hold_replies = False
            await wait_until(lambda: counted(app, "refused_total") == 1)
    gc.collect()
    assert complaints == []
