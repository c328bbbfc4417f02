"""Effects that happen with the ack, or not at all (SPEC 33), and completion markers (SPEC 34)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery, DeliveryLost, Effect, EffectRefused
from tests.support.looking import age, fill, pending
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]


async def test_effects_of_every_kind_happen_with_the_ack(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 33: XADD, SET, HSET, HINCRBY, ZADD on keys of the stream's slot."""
    app = make_app(server)
    orders = app.stream(stream)
    key = f"{{{stream}}}:".__add__

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        effects = [
            Effect.xadd(key("bills"), {"order": order["n"]}),
            Effect.set(key("last"), order["n"]),
            Effect.hset(key("names"), {"a": "b"}),
            Effect.hincrby(key("totals"), "paid", 3),
            Effect.hincrby(key("totals"), "paid", 4),
            Effect.zadd(key("ranks"), {"a": 1.5}),
        ]
        await delivery.ack(effects=effects)

    async with app.worker():
        await orders.add({"n": 7})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    client = server.sync()
    assert pending(server, stream, GROUP) == {}
    assert [fields for _, fields in client.xrange(key("bills"))] == [{b"order": b"7"}]
    assert (client.get(key("last")), client.hget(key("names"), "a")) == (b"7", b"b")
    assert (client.hget(key("totals"), "paid"), client.zscore(key("ranks"), "a")) == (b"7", 1.5)


@pytest.mark.parametrize(
    "bad",
    [
        Effect.hincrby("{%s}:text", "paid", 1),  # the key holds a string
        Effect.hincrby("{%s}:hash", "name", 1),  # the field holds no number
        Effect.hincrby("{%s}:hash", "huge", 10**14),  # the sum leaves 64 bits
        Effect.zadd("{%s}:text", {"a": 1}),
        Effect.xadd("{%s}:hash", {"a": 1}),
        Effect.hset("{%s}:text", {"a": 1}),
        Effect("ZADD", "{%s}:ranks", (b"ten", b"a")),  # no score
        Effect("HSET", "{%s}:new", (b"odd",)),  # no pair
        Effect("DEL", "{%s}:text", ()),  # no effect
        Effect.set("elsewhere-%s", 1),  # another slot
    ],
    ids=lambda effect: f"{effect.command}-{effect.key.rpartition(':')[2]}",
)
@pytest.mark.servers("redis8", "redis6")
async def test_one_effect_that_cannot_happen_stops_them_all_and_the_handler_may_choose_again(
    server: Server, stream: str, make_app: MakeApp, bad: Effect
) -> None:
    """SPEC 33: every effect is checked before the first is written."""
    client = server.sync()
    client.set(f"{{{stream}}}:text", "words")
    client.hset(f"{{{stream}}}:hash", mapping={"name": "words", "huge": 2**63 - 5})
    app, errors = make_app(server), []
    orders = app.stream(stream)
    good = Effect.set(f"{{{stream}}}:good", 1)
    wrong = Effect(bad.command, bad.key % stream, bad.args)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        try:
            await delivery.ack(effects=[good, wrong])
        except EffectRefused as error:
            errors.append(str(error))
            assert pending(server, stream, GROUP)[delivery.id].owner == delivery.owner
            assert client.get(good.key) is None
            await delivery.bury("cannot be written")

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
    assert len(errors) == 1
    assert client.get(good.key) is None
    assert client.exists(wrong.key) == (wrong.key.endswith((":text", ":hash")))


async def test_effects_of_a_former_owner_are_refused_and_nothing_is_written(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 11, 33: the fence is in the same script as the effects."""
    app, errors, client = make_app(server), [], server.sync()
    orders = app.stream(stream)
    key = f"{{{stream}}}:bills"

    @orders.handler(group=GROUP, lease="30s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        client.xclaim(stream, GROUP, "thief", 0, [delivery.id])
        try:
            await delivery.ack(effects=[Effect.xadd(key, {"a": 1})])
        except DeliveryLost as error:
            errors.append(error)

    async with app.worker():
        added = await orders.add({})
        await wait_until(lambda: errors)
    assert errors[0].holder == "thief"
    assert client.exists(key) == 0
    assert pending(server, stream, GROUP)[added.id].owner == "thief"
    assert counted(app, "refused_total", outcome="ack") == 1


# ── completion markers ───────────────────────────────────────────────────────────────────────────────


async def test_a_message_whose_key_is_done_is_acked_without_its_handler(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 34: counted as duplicate; the first result wins and can be read."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", once="1h")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await delivery.ack(result=f"bill {order['n']}")

    async with app.worker():
        for n in (1, 2):
            # not through add(key=...), which would add it once: another producer may not know the key
            server.sync().xadd(stream, {"payload": f'{{"n":{n}}}', "_key": "order-1"})
            await wait_until(lambda: pending(server, stream, GROUP) == {} and len(ledger) > 0)
        await wait_until(lambda: counted(app, "duplicate_total") == 1)
    assert [seen.payload for seen in ledger.seen] == [{"n": 1}]
    assert await orders.result(GROUP, "order-1") == b"bill 1"
    assert pending(server, stream, GROUP) == {}
    assert await orders.backlog(GROUP) == 0


async def test_of_two_handlers_of_one_key_at_once_the_first_to_finish_wins(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 34: first result wins; the other is acked and counted as duplicate; its effects are not written."""
    app, both = make_app(server), asyncio.Event()
    orders, started = app.stream(stream), []
    key = f"{{{stream}}}:totals"

    @orders.handler(group=GROUP, lease="2s", once="1h")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        started.append(order["n"])
        if len(started) == 2:
            both.set()
        await both.wait()
        await delivery.ack(effects=[Effect.hincrby(key, "paid", 1)], result=str(order["n"]))

    for n in (1, 2):
        server.sync().xadd(stream, {"payload": f'{{"n":{n}}}', "_key": "order-1"})
    async with app.worker():
        await wait_until(lambda: pending(server, stream, GROUP) == {} and len(started) == 2)
        await wait_until(lambda: counted(app, "duplicate_total") == 1)
    assert await orders.result(GROUP, "order-1") in (b"1", b"2")
    assert server.sync().hget(key, "paid") == b"1"


@pytest.mark.servers("redis8", "valkey9")
async def test_a_rescued_message_that_was_done_is_not_handled_again(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 34: the owner died between its work for the key and this delivery's ack."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms", once="1h")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker():
        await orders.add({"n": 1}, key="order-1")
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    # the same key again, in the hands of somebody who died
    server.sync().xadd(stream, {"payload": '{"n":1}', "_key": "order-1"})
    server.sync().xreadgroup(GROUP, "dead", {stream: ">"})
    age(server, stream, GROUP, list(pending(server, stream, GROUP)), 10_000)
    async with app.worker():
        await wait_until(lambda: counted(app, "duplicate_total") == 1)
    assert len(ledger) == 1
    assert pending(server, stream, GROUP) == {}


async def test_messages_without_a_key_are_marked_by_their_id(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 34: with `once`, a redelivered message without a key is known by its id."""
    ids = fill(server, stream, 3)
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", once="1h")
    async def bill(order: Any) -> None:
        pass

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 3)
    assert [await orders.result(GROUP, id_) for id_ in ids] == [b"", b"", b""]
