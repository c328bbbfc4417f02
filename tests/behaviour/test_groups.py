"""Streams and groups that are missing, vanish or share a stream (SPEC 3, 31, 32)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery
from headrace.errors import GroupLost
from tests.support.looking import fill, pending, waiting
from tests.support.servers import Server
from tests.support.setback import set_ahead, set_back
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]


async def test_what_was_added_before_the_first_worker_is_delivered_unless_asked_otherwise(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3: created at start with MKSTREAM; start "0", "$" on request, or after an id."""
    ids = fill(server, stream, 3)
    app, ledgers = make_app(server), {}
    orders = app.stream(stream)
    for group, start in (("all", "0"), ("new", "$"), ("some", ids[1])):
        ledger = ledgers[group] = Ledger()

        async def bill(order: Any, delivery: Delivery[Any], ledger: Ledger = ledger) -> None:
            ledger.note(order, delivery)

        orders.handler(group=group, lease="2s", start=start)(bill)
    async with app.worker():
        added = await orders.add({"n": 3})
        await wait_until(lambda: all(added.id in ledger.ids for ledger in ledgers.values()))
    assert ledgers["all"].ids == [*ids, added.id]
    assert ledgers["new"].ids == [added.id]
    assert ledgers["some"].ids == [ids[2], added.id]


async def test_a_stream_that_does_not_exist_is_created(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 3."""
    app = make_app(server)

    @app.stream(stream).handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        pass

    async with app.worker():
        assert [row["name"] for row in server.sync().xinfo_groups(stream)] == [GROUP.encode()]


async def test_a_stream_deleted_under_running_workers_is_created_again_at_0(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3: stream gone: at 0; whatever comes is delivered."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        await orders.add({"n": 0})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
        server.sync().delete(stream)
        await wait_until(lambda: counted(app, "group_recreated_total") == 1)
        await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 2)
        # A producer that is quicker than the workers: the stream is new and has an entry already.
        await worker.lanes[0].janitor.keep_floor()
        server.sync().delete(stream)
        server.sync().xadd(stream, {"payload": '{"n":2}'})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 3)
    assert [seen.payload["n"] for seen in ledger.seen] == [0, 1, 2]


async def test_a_group_that_vanished_comes_back_below_its_unfinished_messages_and_redelivers_few(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 3: just below the smallest id last seen unfinished; 5,000 finished ones are not handed out again."""
    fill(server, stream, 5_000)
    app, ledger, go_on = make_app(server), Ledger(), asyncio.Event()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms", concurrency=500)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["n"] >= 5_000 and not go_on.is_set():
            await go_on.wait()

    async with app.worker() as worker:
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5_000, 20)
        held = [(await orders.add({"n": 5_000 + n})).id for n in range(5)]
        await wait_until(lambda: len(ledger) == 5_005)
        await worker.lanes[0].janitor.keep_floor()
        server.sync().xgroup_destroy(stream, GROUP)
        fresh = (await orders.add({"n": 6_000})).id
        go_on.set()
        await wait_until(lambda: fresh in ledger.ids)
        await wait_until(lambda: pending(server, stream, GROUP) == {} and len(worker.lanes[0].slots.held) == 0)
    # What was in hand may have been run again (or its handler's return was good enough), what was finished was not.
    assert fresh in ledger.ids[5_005:]
    assert set(ledger.ids[5_005:]) <= {*held, fresh}
    assert counted(app, "group_recreated_total") == 1
    assert "group.recreated" in caplog.text


async def test_what_is_added_to_a_stream_that_was_set_back_is_handed_out_all_the_same(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """ADR 14: ids of the future were cut away by hand, and what comes now is below what the group has read."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        first = (await orders.add({"n": 0})).id
        future_ms = set_ahead(server.sync(), stream, 60)
        future = (await orders.add({"n": 1})).id
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 2)
        await worker.lanes[0].janitor.look()
        set_back(server.sync(), stream, f"{future_ms}-0", GROUP)
        after = [(await orders.add({"n": 2 + n})).id for n in range(3)]
        assert after[-1] < future
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5)
    assert ledger.ids == [first, future, *after]
    assert counted(app, "group_pulled_back_total") == 1
    assert "group.pulled_back" in caplog.text


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_that_may_not_set_its_group_back_says_what_to_do_and_says_it_once(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """ADR 14: nor does one that has never seen it otherwise; it may be meant."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms", start="99999999999999-0")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        added = (await orders.add({"n": 0})).id
        for _ in range(3):
            await worker.lanes[0].janitor.look(thorough=True)
        told = [record.getMessage() for record in caplog.records if "group.ahead" in record.getMessage()]
        assert f"XGROUP SETID {stream} {GROUP} {added}" in told[-1]
        assert len(told) <= 2, "before the add, and after it"
        assert ledger.ids == []


async def test_what_waited_for_its_retry_survives_a_vanished_group(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3: the smallest id waiting counts too, when both groups vanish; with the waiting group left, it has them."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms", backoff="500ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1 and ledger.ids.count(delivery.id) == 1 and order["n"] == 0:
            raise RuntimeError("later")

    async with app.worker() as worker:
        retried = (await orders.add({"n": 0})).id
        await wait_until(lambda: waiting(server, stream, GROUP))
        done = (await orders.add({"n": 1})).id
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
        await worker.lanes[0].janitor.keep_floor()
        server.sync().xgroup_destroy(stream, GROUP)
        server.sync().xgroup_destroy(stream, f"{GROUP}~wait")
        await wait_until(lambda: ledger.ids.count(retried) == 2)
        await wait_until(lambda: pending(server, stream, GROUP) == {} == waiting(server, stream, GROUP))
        await stays(lambda: ledger.ids.count(retried) == 2, 0.6)
    assert set(ledger.ids) == {retried, done}
    assert waiting(server, stream, GROUP) == {}


async def test_a_vanished_group_of_which_nothing_is_known_is_fatal_and_says_what_to_do(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3: recreating at 0 would redeliver everything, at the end would lose what is unfinished."""
    fill(server, stream, 10)
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async def work() -> None:
        async with app.worker() as worker:
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 10)
            server.sync().delete(orders.keys.floor(GROUP))
            server.sync().xgroup_destroy(stream, GROUP)
            await asyncio.wait_for(worker.wait(), 5)

    with pytest.raises(GroupLost, match="XGROUP CREATE"):
        await work()
    assert len(ledger) == 10
    names = [row["name"] for row in server.sync().xinfo_groups(stream)]
    assert GROUP.encode() not in names


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("once", [None, "1h"])
async def test_delete_on_ack_removes_an_entry_when_its_only_group_is_done(
    server: Server, stream: str, make_app: MakeApp, once: str | None
) -> None:
    """SPEC 31: what waits for its retry stays."""
    app, failed = make_app(server), set()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", delete_on_ack=True, backoff="300ms", once=once)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        if order["n"] == 0 and not failed:
            failed.add(delivery.id)
            raise RuntimeError("later")

    async with app.worker():
        added = [await orders.add({"n": n}) for n in range(5)]
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 4)
        assert [id_.decode() for id_, _ in server.sync().xrange(stream)] == [added[0].id]
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5)
        await wait_until(lambda: server.sync().xlen(stream) == 0)


async def test_delete_on_ack_leaves_what_another_group_has_not_finished(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 31: XACKDEL ACKED removes it with the last group; elsewhere it stays for retention."""
    app, ledger, go_on = make_app(server), Ledger(), asyncio.Event()
    orders = app.stream(stream)
    server.sync().xgroup_create(stream, "unread", id="0", mkstream=True)

    @orders.handler(group=GROUP, lease="2s", delete_on_ack=True)
    async def bill(order: Any) -> None:
        pass

    @orders.handler(group="slow", lease="2s", delete_on_ack=True)
    async def slow(order: Any, delivery: Delivery[Any]) -> None:
        await go_on.wait()
        ledger.note(order, delivery)

    async with app.worker():
        added = [await orders.add({"n": n}) for n in range(3)]
        await wait_until(lambda: counted(app, "handled_total", outcome="ack", group=GROUP) == 3)
        assert server.sync().xlen(stream) == 3
        go_on.set()
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 6)
        assert sorted(ledger.ids) == sorted(one.id for one in added)
        assert server.sync().xlen(stream) == 3  # one group has not read them yet
        read = server.sync().xreadgroup("unread", "stranger", {stream: ">"})
        assert len(read[0][1]) == 3


# ── sharing ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8", "redis6")
async def test_a_retry_in_one_group_is_never_seen_in_another(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 32: nor a release, nor a burial; nothing is appended to the stream."""
    app, failing, steady = make_app(server), Ledger(), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms", backoff="50ms", max_attempts=3)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        failing.note(order, delivery)
        if order["n"] == 1 and len(failing) < 5:
            await delivery.release()
        else:
            raise RuntimeError("no")

    @orders.handler(group="steady", lease="400ms")
    async def count(order: Any, delivery: Delivery[Any]) -> None:
        steady.note(order, delivery)

    async with app.worker():
        added = [await orders.add({"n": n}) for n in range(2)]
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 2)
        await wait_until(lambda: len(steady) == 2)
    assert sorted(steady.ids) == sorted(one.id for one in added)
    assert server.sync().xlen(stream) == 2
    assert len(failing) > 5
