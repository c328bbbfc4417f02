"""One suite over both engines: whatever the strategy, these hold (SPEC 8 to 11, 22 to 34, 46)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Backoff, Bury, Delivery, Effect, InPlace, Release, Requeue, SyncDelivery
from headrace.testing import crash
from tests.support.looking import fill, pending, waiting
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]

LEASE_S = 0.4
QUICK_BACKOFF = Backoff(first_ms=50, factor=1, jitter=0)


@pytest.fixture(params=["in place", "requeue"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A handler's options for at most three starts."""
    common = {"group": GROUP, "lease": LEASE_S, "backoff": QUICK_BACKOFF}
    if request.param == "in place":
        return {**common, "max_attempts": 3, "recovery": InPlace()}
    return {**common, "recovery": Requeue(interval="200ms", min_idle="400ms", max_retries=2, hints=False)}


async def test_what_a_dead_worker_held_is_handled_elsewhere_and_none_is_lost(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    fill(server, stream, 12)
    dying, living, ledger = make_app(server), make_app(server), Ledger()

    @dying.stream(stream).handler(**options, concurrency=12)
    async def hang(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(60)

    @living.stream(stream).handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with dying.worker() as worker:
        await wait_until(lambda: len(ledger.seen) == 12)
        await crash(worker)
        died = time.monotonic()
        async with living.worker():
            await wait_until(lambda: counted(living, "acked_total") == 12, 10)
    assert sorted(seen.payload["n"] for seen in ledger.seen[12:]) == list(range(12))
    assert {seen.attempt for seen in ledger.seen[12:]} == {2}
    assert min(seen.at for seen in ledger.seen[12:]) - died > LEASE_S / 4
    assert pending(server, stream, GROUP) == {}


async def test_a_handler_slower_than_many_leases_is_started_once(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(5 * LEASE_S)

    async with app.worker(), app.worker():
        await app.stream(stream).add({})
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
    assert ledger.attempts == [1]


async def test_a_handler_that_blocks_the_loop_for_several_leases_is_not_robbed(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        time.sleep(3 * LEASE_S)

    async with app.worker(), app.worker():
        await app.stream(stream).add({})
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
    assert ledger.attempts == [1]


async def test_three_starts_then_a_dead_letter_with_the_message_as_it_was_added(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        raise RuntimeError("no")

    async with app.worker():
        added = await orders.add({"n": 1}, headers={"h": "x"})
        await wait_until(lambda: counted(app, "buried_total") == 1, 10)
    assert ledger.attempts == [1, 2, 3]
    (original,) = [fields for id_, fields in server.sync().xrange(stream) if id_.decode() == added.id]
    (letter,) = [letter async for letter in orders.dead_letters.each()]
    assert (letter.original_id, letter.attempts, letter.error) == (added.id, 3, "RuntimeError")
    assert dict(zip(letter.fields[::2], letter.fields[1::2], strict=True)) == original


async def test_with_dead_letters_off_an_exhausted_message_is_parked_and_can_be_replayed(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    """SPEC 29."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**options, dead_letters=False)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if len(ledger.seen) <= 3:
            raise RuntimeError("no")

    async with app.worker():
        await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "parked_total") == 1, 10)
        await orders.dead_letters.replay_parked(GROUP)
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
    assert len(ledger.seen) == 4
    assert waiting(server, stream, GROUP) == {}


async def test_bury_is_at_once_and_release_costs_no_attempt(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    """SPEC 24, 30."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["do"] == "bury":
            raise Bury("never")
        if len(ledger.seen) < 4:
            raise Release(after=0.05)

    async with app.worker():
        await orders.add({"do": "release"})
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
        assert ledger.attempts == [1, 1, 1, 1]
        await orders.add({"do": "bury"})
        await wait_until(lambda: counted(app, "buried_total") == 1)
    assert counted(app, "released_total") == 3


async def test_a_stopped_worker_burns_no_attempt(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    """SPEC 22."""
    fill(server, stream, 8)
    stopping, other, ledger = make_app(server), make_app(server), Ledger()

    @stopping.stream(stream).handler(**options, concurrency=8)
    async def hang(order: Any, delivery: Delivery[Any]) -> None:
        await asyncio.sleep(60)

    @other.stream(stream).handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with stopping.worker() as worker:
        await wait_until(lambda: len(pending(server, stream, GROUP)) == 8)
        await worker.stop(0.1)
    assert pending(server, stream, GROUP) == {}
    async with other.worker():
        await wait_until(lambda: counted(other, "acked_total") == 8)
    assert ledger.attempts == [1] * 8


async def test_effects_happen_with_the_ack_of_the_last_owner_alone(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    """SPEC 33: the attempt that fails afterwards has written nothing."""
    app, total = make_app(server), f"{{{stream}}}:total"
    orders = app.stream(stream)

    @orders.handler(**options)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        if delivery.attempt < 3:
            raise RuntimeError("no")
        await delivery.ack(effects=[Effect.hincrby(total, "n", 5)])

    async with app.worker():
        await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
    assert server.sync().hget(total, "n") == b"5"


async def test_a_key_that_is_done_is_not_handled_again_whatever_id_its_message_has(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    """SPEC 34: a copy is the message it was made of."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**options, once="1h")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            raise RuntimeError("no")

    async with app.worker():
        added = await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "acked_total") == 1, 10)
        assert await orders.result(GROUP, added.id) is not None
        await orders.add({"n": 1}, key="k")
        await wait_until(lambda: counted(app, "acked_total") == 2, 10)
        assert await orders.result(GROUP, "k") is not None
    assert ledger.attempts == [1, 2, 1, 2]


async def test_plain_functions_and_batches_are_called_as_ever(
    server: Server, stream: str, make_app: MakeApp, options: dict[str, Any]
) -> None:
    fill(server, stream, 30)
    plain, batch, seen = make_app(server), make_app(server), []

    @plain.stream(stream).handler(**options)
    def bill(order: Any, delivery: SyncDelivery[Any]) -> None:
        seen.append((order["n"], delivery.attempt))

    async with plain.worker():
        await wait_until(lambda: counted(plain, "acked_total") == 30)
    assert sorted(seen) == [(n, 1) for n in range(30)]
    sizes = []

    @batch.stream(stream).handler(**{**options, "group": "batches"}, batch=10)
    async def many(deliveries: list[Delivery[Any]]) -> None:
        sizes.append(len(deliveries))

    async with batch.worker():
        await wait_until(lambda: counted(batch, "acked_total") == 30)
    assert sum(sizes) == 30
