"""headrace.testing: what users test their handlers with."""

from __future__ import annotations

import asyncio
import doctest
import time
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import (
    App,
    Bury,
    ConfigError,
    Delivery,
    DeliveryLost,
    Effect,
    EffectRefused,
    HandlerRefused,
    Release,
    Retry,
    SyncDelivery,
)
from headrace.testing import crash, deliver, deliver_batch, dry, live, on_embedded, running
from tests.support.wait import wait_until


@dataclass
class Order:
    id: int
    total: float = 1.0


class Bank:
    def __init__(self, name: str = "real") -> None:
        self.name = name


# ── without a server ──


async def test_a_handler_that_returns_acks_and_sees_what_a_worker_would_show_it() -> None:
    seen: list[Any] = []

    async def bill(order: Order, delivery: Delivery[Order]) -> None:
        seen.extend([order, delivery.attempt, delivery.key, delivery.headers, delivery.stream, delivery.group])

    result = await deliver(bill, Order(7), stream="orders", group="billing", attempt=2, key="k", headers={"a": "b"})
    assert result.acked
    assert seen == [Order(7), 2, "k", {"a": "b"}, "orders", "billing"]


@pytest.mark.parametrize(
    ("error", "way", "after_ms", "reason"),
    [
        (ValueError("no"), "retry", None, "no"),
        (Retry("later", after="30s"), "retry", 30_000, "later"),
        (Release(after=2), "release", 2_000, ""),
        (Bury("never"), "bury", None, "never"),
    ],
)
async def test_what_a_handler_raises_is_its_outcome(
    error: Exception, way: str, after_ms: int | None, reason: str
) -> None:
    """SPEC 24, 30."""

    async def bill(order: Any) -> None:
        raise error

    result = await deliver(bill, {})
    assert (result.way, result.after_ms, result.reason) == (way, after_ms, reason)


async def test_a_failure_at_the_last_attempt_is_a_burial() -> None:
    """SPEC 25."""
    app = App()

    @app.stream("orders").handler(group="billing", max_attempts=3)
    async def bill(order: Any) -> None:
        raise ValueError("no")

    ways = [(await deliver(app, {}, attempt=attempt)).way for attempt in (1, 2, 3)]
    assert ways == ["retry", "retry", "bury"]


async def test_an_undecodable_entry_is_buried_without_a_handler() -> None:
    """SPEC 17."""
    app = App()

    @app.stream("orders", Order).handler(group="billing")
    async def bill(order: Order) -> None:
        raise AssertionError("must not be called")

    result = await deliver(app, fields={"payload": b'{"id": "seven"}'})
    assert (result.way, result.error) == ("bury", "DecodeError")


async def test_effects_and_results_are_told_and_a_key_in_another_slot_is_refused() -> None:
    """SPEC 33."""
    wanted = [Effect.hincrby("{orders}:totals", "paid", 3)]

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        with pytest.raises(EffectRefused, match="another slot"):
            await delivery.ack(effects=[Effect.set("elsewhere", "1")])
        await delivery.ack(effects=wanted, result="done")

    result = await deliver(bill, {}, stream="orders")
    assert (result.way, result.effects, result.result) == ("ack", tuple(wanted), b"done")


async def test_a_delivery_ends_once() -> None:
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        await delivery.retry("5s", reason="busy")
        with pytest.raises(DeliveryLost, match="already ended"):
            await delivery.ack()

    result = await deliver(bill, {})
    assert (result.way, result.after_ms, result.reason) == ("retry", 5_000, "busy")


async def test_a_handler_hears_that_its_delivery_was_lost_and_its_outcome_is_refused() -> None:
    """SPEC 11."""

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        await delivery.lost.wait()
        await delivery.ack()

    async def unaware(order: Any) -> None:
        await asyncio.sleep(0.05)

    assert (await deliver(bill, {}, lost_after=0.01)).refused
    assert (await deliver(unaware, {}, lost_after="10ms")).refused


async def test_a_plain_def_handler_runs_in_a_thread() -> None:
    def bill(order: Any, delivery: SyncDelivery[Any]) -> None:
        time.sleep(0.01)
        delivery.bury("not mine")

    assert (await deliver(bill, {})).buried


async def test_what_the_app_provides_is_injected_unless_the_test_brings_its_own() -> None:
    app = App()
    app.provide(Bank, lambda: Bank())
    seen: list[str] = []

    @app.stream("orders").handler(group="billing")
    async def bill(order: Any, bank: Bank) -> None:
        seen.append(bank.name)

    await deliver(app, {})
    await deliver(app, {}, provided={Bank: Bank("fake")})
    await deliver(bill, {}, provided={Bank: Bank("bare")})
    assert seen == ["real", "fake", "bare"]


async def test_a_batch_handler_gets_them_all_at_once() -> None:
    app = App()

    @app.stream("orders").handler(group="billing", batch=10)
    async def bill(batch: list[Delivery[Any]]) -> None:
        await batch[0].bury("first")

    results = await deliver_batch(app, [{"id": 1}, {"id": 2}])
    assert [result.way for result in results] == ["bury", "ack"]
    with pytest.raises(ConfigError, match="deliver_batch"):
        await deliver(app, {"id": 1})


async def test_which_handler_is_meant_must_be_clear() -> None:
    app = App()

    @app.stream("orders").handler(group="billing")
    @app.stream("orders").handler(group="audit")
    async def bill(order: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"2 handlers for .* orders/audit, orders/billing"):
        await deliver(app, {})
    with pytest.raises(ConfigError, match="no handler for stream='other'"):
        await deliver(app, {}, stream="other")
    assert (await deliver(app, {}, group="audit")).acked
    with pytest.raises(HandlerRefused):
        await deliver(lambda: None, {})


# ── with a server ──


async def test_an_app_runs_on_a_private_server_and_goes_back_to_its_own() -> None:
    app = App("redis://nowhere.invalid:1")
    orders, seen = app.stream("orders"), []

    @orders.handler(group="billing", backoff="50ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        seen.append((order["id"], delivery.attempt))
        if delivery.attempt == 1:
            raise ValueError("once more")

    for _ in range(2):  # nothing is kept between the two
        async with running(app) as shop:
            await orders.add({"id": 7}, key="same")
            await shop.settled()
            assert await orders.backlog("billing") == 0
    assert seen == [(7, 1), (7, 2)] * 2
    assert "nowhere.invalid" in repr(app.server)


async def test_settled_says_so_when_there_is_no_end() -> None:
    app = App(grace=0.1)
    orders = app.stream("orders")

    @orders.handler(group="billing")
    async def bill(order: Any) -> None:
        await asyncio.sleep(60)

    async with running(app) as shop:
        await orders.add({})
        with pytest.raises(TimeoutError, match=r"not settled within 0\.2 s"):
            await shop.settled(0.2)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_crashed_worker_says_nothing_more_and_a_sibling_takes_over(plain: bool) -> None:
    """SPEC 8, in one process: no ack, no release, no renewal, and the attempt counts."""
    app = App()
    orders = app.stream("orders")
    starts: list[tuple[str, int]] = []
    hold = asyncio.Event()

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        starts.append((delivery.owner, delivery.attempt))
        if delivery.attempt == 1:
            try:
                await hold.wait()
            finally:
                with pytest.raises(DeliveryLost):
                    await delivery.ack()

    def bill_plain(order: Any, delivery: SyncDelivery[Any]) -> None:
        starts.append((delivery.owner, delivery.attempt))
        if delivery.attempt == 1:
            time.sleep(0.5)

    orders.handler(group="billing", lease="400ms", concurrency=5)(bill_plain if plain else bill)
    async with on_embedded(app), app.worker() as first:
        await orders.add({"id": 1})
        await wait_until(lambda: starts)
        await crash(first)
        await crash(first)  # a second death is none
        crashed_at = time.monotonic()
        async with app.worker() as second:
            await wait_until(lambda: len(starts) == 2)
            assert time.monotonic() - crashed_at > 0.2  # its lease was respected
            await asyncio.wait_for(second.drained(), 5)
        assert starts == [(first.owner, 1), (second.owner, 2)]


@pytest.mark.parametrize("module", [dry, live], ids=["dry", "live"])
def test_the_examples_do_what_they_say(module: Any) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)
