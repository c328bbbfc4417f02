"""Retry and release: never early, soon after due, blocking nobody (SPEC 24, 30)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Backoff, Delivery, Release, Retry
from tests.support.looking import fill, pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

NOISE_S = 1.0


async def test_a_failed_message_is_retried_after_its_backoff_and_not_before(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24, 25: exponential, each wait kept, taken within 250 ms of due; after max_attempts it is buried."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)
    backoff = Backoff(first_ms=200, factor=2, cap_ms=10_000, jitter=0)

    @orders.handler(group=GROUP, lease="300ms", max_attempts=3, backoff=backoff)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        raise RuntimeError("no")

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
    assert ledger.attempts == [1, 2, 3]
    waits = [later.at - sooner.at for sooner, later in zip(ledger.seen, ledger.seen[1:], strict=False)]
    for wait_s, due_s in zip(waits, (0.2, 0.4), strict=True):
        assert due_s <= wait_s < due_s + 0.25 + NOISE_S
    assert await orders.dead_letters.count() == 1


async def test_each_of_many_retries_waits_for_its_own_time(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 24: the look that takes one leaves those that are due a moment later."""
    fill(server, stream, 30)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            raise Retry("later", after=0.2 + order["n"] / 50)

    async with pool(app, 2):
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 30)
    begun = {seen.id: seen.at for seen in ledger.seen if seen.attempt == 1}
    for seen in ledger.seen[30:]:
        waited_s = seen.at - begun[seen.id]
        due_s = 0.2 + seen.payload["n"] / 50
        assert due_s <= waited_s < due_s + 0.25 + NOISE_S


async def test_what_waits_for_its_retry_blocks_nobody(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 24: with one slot, while a failed message waits for a minute the others go on."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="300ms", backoff="60s", concurrency=1)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["n"] == 0:
            raise RuntimeError("no")

    async with app.worker():
        for n in range(20):
            await orders.add({"n": n})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 19)
    assert ledger.attempts == [1] * 20


@pytest.mark.servers("redis8", "redis6")
async def test_a_waiting_retry_is_given_to_nobody_early_not_to_workers_with_short_leases_nor_to_other_clients(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24: with different leases, and for other clients of the group that claim whatever is idle."""
    app, hasty, ledger = make_app(server), make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", backoff="1200ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            raise RuntimeError("no")

    @hasty.stream(stream).handler(group=GROUP, lease="300ms", backoff="1200ms")
    async def bill_too(order: Any, delivery: Delivery[Any]) -> None:
        await bill(order, delivery)

    async with app.worker():
        added = await orders.add({})
        await wait_until(lambda: waiting(server, stream, GROUP))
    async with pool(hasty, 3):
        client = server.sync()
        until = ledger.seen[0].at + 1.15
        while time.monotonic() < until:
            claimed = client.xautoclaim(stream, GROUP, "stranger", 0)
            read = client.xreadgroup(GROUP, "stranger", {stream: ">"})
            assert (list(claimed[1]), read or []) == ([], [])
            await asyncio.sleep(0.05)
        assert len(ledger) == 1
        await wait_until(lambda: len(ledger) == 2)
    assert ledger.ids == [added.id] * 2
    assert ledger.attempts == [1, 2]
    assert 1.2 <= ledger.seen[1].at - ledger.seen[0].at < 1.45 + NOISE_S


@pytest.mark.servers("redis8", "redis6")
async def test_a_retry_survives_the_end_of_every_worker_and_of_the_server(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24: nobody renews what waits, so nobody has to be there."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="300ms", backoff="1s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            raise Retry("later")

    async with app.worker():
        added = await orders.add({})
        await wait_until(lambda: waiting(server, stream, GROUP))
    await app.close()
    server.kill()
    server.restart()
    async with app.worker():
        await wait_until(lambda: len(ledger) == 2)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    assert (ledger.ids, ledger.attempts) == ([added.id] * 2, [1, 2])
    assert ledger.seen[1].at - ledger.seen[0].at >= 1.0


@pytest.mark.servers("redis8")
async def test_10_000_waiting_retries_cost_only_the_look_until_one_is_due(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24: nothing is renewed, claimed or read while it waits."""
    fill(server, stream, 10_000)
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="500ms", backoff="1h", concurrency=1_000)
    async def bill(order: Any) -> None:
        raise Retry

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="retry") == 10_000, 30)
        client = server.sync()
        client.config_resetstat()
        await asyncio.sleep(1.0)  # what is measured: a second with nothing due
        stats = client.info("commandstats")
        evals = stats["cmdstat_evalsha"]["calls"]
        assert evals < 40  # a look every 100 ms, a renewal of the owner's entry every L/3
        assert "cmdstat_xclaim" not in stats
        assert stats["cmdstat_evalsha"]["usec"] < 50_000
    assert len(waiting(server, stream, GROUP)) == 10_000


@pytest.mark.servers("redis8", "redis6")
async def test_retry_with_a_time_is_kept_and_burns_an_attempt_release_burns_none(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24, 30: `raise Retry(after=...)`: not before. `release()`: at least 100 ms, then 200, no attempt burnt."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", max_attempts=2)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        starts = len(ledger)
        ledger.note(order, delivery)
        if starts == 0:
            await delivery.release()
        elif starts == 1:
            raise Release
        elif starts == 2:
            raise Retry("later", after=0.5)

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    assert ledger.attempts == [1, 1, 1, 2]
    waits = [later.at - sooner.at for sooner, later in zip(ledger.seen, ledger.seen[1:], strict=False)]
    for wait_s, due_s in zip(waits, (0.1, 0.2, 0.5), strict=True):
        assert due_s <= wait_s < due_s + 0.25 + NOISE_S


@pytest.mark.servers("redis8", "redis6")
async def test_a_handler_may_choose_how_long_to_wait_through_its_delivery(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24, 30: `delivery.retry(after=...)`."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            await delivery.retry(after="400ms")

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: len(ledger) == 2)
    assert 0.4 <= ledger.seen[1].at - ledger.seen[0].at < 0.65 + NOISE_S


@pytest.mark.servers("redis8", "redis6")
async def test_jitter_spreads_the_retries_of_a_burst(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 24: exponential, jitter, cap; per handler."""
    fill(server, stream, 50)
    app = make_app(server)
    orders = app.stream(stream)
    backoff = {"first": "20s", "cap": "20s", "jitter": 0.5}

    @orders.handler(group=GROUP, lease="2s", backoff=backoff)
    async def bill(order: Any) -> None:
        raise RuntimeError("all at once")

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="retry") == 50)
    now_ms = int(server.sync().time()[0]) * 1000
    due = [score - now_ms for _, score in server.sync().zrange(orders.keys.due(GROUP), 0, -1, withscores=True)]
    assert len(due) == 50
    assert all(8_000 < ms < 21_500 for ms in due)
    assert max(due) - min(due) > 3_000


@pytest.mark.servers("redis8", "redis6")
async def test_nothing_that_waits_is_pending_and_nothing_pending_waits(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24, 32: a message is in one of the two lists."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="300ms", backoff="1h")
    async def bill(order: Any) -> None:
        raise RuntimeError("no")

    async with app.worker():
        added = await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="retry") == 1)
        await stays(lambda: pending(server, stream, GROUP) == {}, 0.5)
    assert set(waiting(server, stream, GROUP)) == {added.id}
    assert await orders.backlog(GROUP) == 1


@pytest.mark.servers("redis8", "redis6")
async def test_what_is_due_again_before_its_release_was_answered_is_not_forgotten(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24: the same worker takes it from the waiting group while the answer to the release is still on its way."""
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="3s", concurrency=1)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        if len(ledger) == 0:
            ledger.note(order, delivery)
            raise Release(after=0)
        ledger.note(order, delivery)

    async with app.worker(concurrency=5) as worker:
        link = worker.lanes[0].outbox._link
        answered = link.pipe

        async def answered_late(calls: Any, *, wait_ms: int = 0) -> list[Any]:
            answers = await answered(calls, wait_ms=wait_ms)
            link.pipe = answered  # type: ignore[method-assign]
            await asyncio.sleep(0.4)  # the answer's way back
            return answers

        link.pipe = answered_late  # type: ignore[method-assign]
        await app.stream(stream).add({"n": 0})
        await wait_until(lambda: len(ledger) == 2, 2.5, what="the next start, long before the lease ends")
        await wait_until(lambda: counted(app, "acked_total") == 1)
    assert ledger.attempts == [1, 1]


@pytest.mark.servers("redis8", "redis6")
async def test_what_was_due_in_a_cut_reply_is_found_again_and_burns_no_attempt(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 5, 24: the answer to `due` does not arrive whole; it is asked for again, not left for a lease."""
    async with Proxy(server.socket) as proxy:
        app, ledger, cuts = make_app(proxy.url), Ledger(), []

        @app.stream(stream).handler(group=GROUP, lease="3s", concurrency=5)
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)
            if len(ledger) == 1:
                raise Release

        def cut(data: bytes) -> int | None:
            if b"released-1" not in data or cuts:
                return None
            cuts.append(data)
            return len(data) // 2

        proxy.cut_reply = cut
        async with app.worker():
            await app.stream(stream).add({"n": 0})
            await wait_until(lambda: len(ledger) == 2, 2.5, what="the next start, long before the lease ends")
            await wait_until(lambda: counted(app, "acked_total") == 1)
        assert ledger.attempts == [1, 1]
        await app.close()
