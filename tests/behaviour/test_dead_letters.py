"""Dead letters: what they hold, and how they are looked after (SPEC 17, 26 to 30)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import App, Bury, Delivery, HeadraceError
from headrace.names import keys_of
from headrace.redis import scripts
from tests.support.looking import fill, orphan, pending, waiting
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]


@dataclass
class Order:
    id: int


def add_raw(server: Server, stream: str, *words: bytes | str) -> str:
    """Add an entry word by word: repeated names are allowed, as on the wire."""
    return bytes(server.sync().execute_command("XADD", stream, "*", *words)).decode()


async def test_bury_ends_a_message_at_once_with_its_reason(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 26, 27, 30: `raise Bury("...")`: buried at once, at its first attempt."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        raise Bury("no such customer")

    before_ms = int(time.time() * 1000)
    async with app.worker() as worker:
        added = await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
    (letter,) = await orders.dead_letters.listed()
    assert len(ledger) == 1
    assert (letter.original_id, letter.stream, letter.group) == (added.id, stream, GROUP)
    assert (letter.owner, letter.attempts, letter.error) == (worker.owner, 1, "Bury")
    assert letter.reason == "no such customer"
    assert letter.first_ms == int(added.id.split("-")[0])
    assert before_ms - 1_000 <= letter.last_ms <= int(time.time() * 1000) + 1_000
    assert letter.payload == b'{"n":1}'
    assert pending(server, stream, GROUP) == {}
    assert await orders.backlog(GROUP) == 0


async def test_a_dead_letter_holds_the_original_byte_for_byte(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 27: repeated names, our prefix, empty values, bytes that are not UTF-8; also more than Lua can pass."""
    words = [b"payload", b"\xff\x00{", b"_n", b"1", b"a", b"", b"a", b"2", b"_reason", b"mine", b"", b"x"]
    many = [b"f%d" % n for n in range(8_000)]
    ids = [add_raw(server, stream, *words), add_raw(server, stream, *many)]
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        pass

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 2)
    first, second = await orders.dead_letters.listed()
    assert [first.original_id, second.original_id] == ids
    assert (first.fields, first.error) == (words, "DecodeError")
    assert second.fields == many


async def test_the_prefix_of_our_fields_can_be_chosen(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 27: under the prefix `_` (configurable)."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", prefix="hr.")
    async def bill(order: Any) -> None:
        raise Bury("why not")

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
    ((_, fields),) = server.sync().xrange(orders.keys.dead_letters)
    assert fields[b"hr.reason"] == b"why not"
    assert not [name for name in fields if name.startswith(b"_")]


@pytest.mark.servers("redis8", "redis6")
async def test_the_text_of_an_error_is_bounded(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 27: error type and text (bounded)."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", max_attempts=1)
    async def bill(order: Any) -> None:
        raise LookupError("é" * 50_000)

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
    (letter,) = await orders.dead_letters.listed()
    assert letter.error == "LookupError"
    assert 900 <= len(letter.reason) <= 2_000
    assert set(letter.reason) == {"é"}


async def test_an_undecodable_message_is_buried_and_the_rest_goes_on(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 17: among orphans; also with a model that does not fit."""
    good = [add_raw(server, stream, "payload", f'{{"id": {n}}}') for n in range(5)]
    bad = [
        add_raw(server, stream, "payload", b"\x80\x81"),
        add_raw(server, stream, "payload", '{"id": "seven"}'),
        add_raw(server, stream, "something", "else"),
    ]
    orphan(server, stream, GROUP, 8, idle_ms=60_000)
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream, Order)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Order, delivery: Delivery[Order]) -> None:
        ledger.note(order, delivery)

    async with app.worker():
        await wait_until(lambda: len(ledger) == 5 and counted(app, "handled_total", outcome="bury") == 3)
        await wait_until(lambda: pending(server, stream, GROUP) == {})
    assert sorted(ledger.ids) == sorted(good)
    assert ledger.attempts == [2] * 5
    letters = await orders.dead_letters.listed()
    assert sorted(letter.original_id for letter in letters) == sorted(bad)
    assert {letter.error for letter in letters} == {"DecodeError"}
    assert counted(app, "undecodable_total") == 3


async def test_a_former_owner_cannot_bury(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 26: fenced; whoever holds it now is named."""
    fill(server, stream, 1)
    (id_,) = orphan(server, stream, GROUP, 1, owner="first")
    server.sync().xclaim(stream, GROUP, "second", 0, [id_])
    link, keys = make_app(server).link, keys_of(stream)
    word = await link.call(scripts.bury(keys, GROUP, "first", id_.encode(), 1, extra={}))
    assert (word.kind, word.holder) == ("taken", "second")
    assert server.sync().xlen(keys.dead_letters) == 0
    # the second one buries once; saying it twice changes nothing
    words = [await link.call(scripts.bury(keys, GROUP, "second", id_.encode(), 2, extra={})) for _ in range(2)]
    assert [word.kind for word in words] == ["ok", "gone"]
    assert server.sync().xlen(keys.dead_letters) == 1


# ── looking after them ───────────────────────────────────────────────────────────────────────────────


async def test_dead_letters_are_listed_shown_counted_and_purged(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 28."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        raise Bury(f"number {order['n']}")

    @orders.handler(group="other", lease="2s")
    async def other(order: Any) -> None:
        if order["n"] < 2:
            raise Bury("other")

    async with app.worker():
        added = [await orders.add({"n": n}) for n in range(5)]
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 7)
    letters = orders.dead_letters
    assert await letters.count() == 7
    assert [letter.reason for letter in await letters.listed(group="other")] == ["other"] * 2
    assert [letter.reason for letter in await letters.listed(group=GROUP, limit=2)] == ["number 0", "number 1"]
    assert {letter.original_id for letter in await letters.listed()} == {one.id for one in added}
    for letter in await letters.listed():
        assert await letters.show(letter.id) == letter  # its own id, whatever message has the same one
    (shown,) = [letter for letter in await letters.listed(group=GROUP) if letter.reason == "number 3"]
    assert await letters.show("1-1") is None
    assert await letters.purge(shown.id) == 1
    assert await letters.purge(where=lambda letter: letter.reason == "number 0") == 1
    assert await letters.purge(group="other") == 2
    assert [letter.reason for letter in await letters.listed()] == ["number 1", "number 2", "number 4"]
    with pytest.raises(HeadraceError, match="no dead letter 1-1"):
        await letters.purge("1-1")


@pytest.mark.servers("redis8", "redis6")
async def test_more_dead_letters_than_a_page_are_all_listed_and_replayed(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28: all."""
    fill(server, stream, 250)
    app, broken = make_app(server), True
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        if broken:
            raise Bury("broken")

    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 250)
        assert [letter.payload for letter in await orders.dead_letters.listed()] == [
            b'{"n":%d}' % n for n in range(250)
        ]
        broken = False
        assert len(await orders.dead_letters.replay()) == 250
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 250)
    assert await orders.dead_letters.count() == 0
    assert server.sync().xlen(stream) == 250


async def test_a_replayed_message_keeps_its_id_starts_at_attempt_1_and_only_its_group_gets_it(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28: in place, through the waiting group; a second replay finds it gone."""
    app, ledger, others = make_app(server), Ledger(), Ledger()
    orders, broken = app.stream(stream), True

    @orders.handler(group=GROUP, lease="2s", max_attempts=2, backoff="10ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if broken:
            raise RuntimeError("broken")

    @orders.handler(group="other", lease="2s")
    async def other(order: Any, delivery: Delivery[Any]) -> None:
        others.note(order, delivery)

    async with app.worker():
        added = await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1)
        broken = False
        (letter,) = await orders.dead_letters.listed()
        (replayed,) = await orders.dead_letters.replay(letter.id)
        assert (replayed.kind, replayed.message_id) == ("same", added.id)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack", group=GROUP) == 1)
        assert await orders.dead_letters.replay() == []
    assert (ledger.ids, ledger.attempts) == ([added.id] * 3, [1, 2, 1])
    assert others.ids == [added.id]
    assert server.sync().xlen(stream) == 1


async def test_a_replay_of_a_trimmed_message_is_a_copy_that_other_groups_do_not_see(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28: a marked copy if trimmed; the handler sees the original's fields and payload."""
    app, ledger, others = make_app(server), Ledger(), Ledger()
    orders, broken, fields = app.stream(stream), True, []

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        fields.append(delivery.raw_fields)
        if broken:
            raise Bury("broken")

    @orders.handler(group="other", lease="2s")
    async def other(order: Any, delivery: Delivery[Any]) -> None:
        others.note(order, delivery)

    async with app.worker():
        added = await orders.add({"n": 1}, headers={"tenant": "a"})
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 1 and len(others) == 1)
        server.sync().xtrim(stream, maxlen=0)
        broken = False
        (replayed,) = await orders.dead_letters.replay(where=lambda letter: letter.reason == "broken")
        assert replayed.kind == "copy"
        await wait_until(lambda: counted(app, "handled_total", outcome="ack", group=GROUP) == 1)
        await orders.add({"n": 2})  # behind the copy: when the other group has seen it, it has passed the copy
        await wait_until(lambda: len(others) == 2)
        await wait_until(lambda: pending(server, stream, "other") == {})
    assert [seen.payload for seen in ledger.seen] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert ledger.attempts[1] == 1
    assert fields[0] == fields[1]
    assert [seen.payload for seen in others.seen] == [{"n": 1}, {"n": 2}]
    assert ledger.ids[0] == added.id


@pytest.mark.servers("redis8", "redis6")
async def test_without_dead_letters_an_exhausted_message_is_parked_until_replayed(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 29: visible, never handed out again, and in nobody's way."""
    app, ledger = make_app(server), Ledger()
    orders, broken = app.stream(stream), True

    @orders.handler(group=GROUP, lease="300ms", max_attempts=2, backoff="10ms", dead_letters=False, concurrency=2)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if broken and order["n"] < 10:
            raise RuntimeError("broken")

    async with app.worker():
        added = [await orders.add({"n": n}) for n in range(11)]
        await wait_until(lambda: len(ledger) == 21)
        await wait_until(lambda: len(waiting(server, stream, GROUP)) == 10)
        await stays(lambda: len(ledger) == 21, 0.7)
        held = waiting(server, stream, GROUP)
        assert set(held) == {one.id for one in added[:10]}
        assert {one.owner for one in held.values()} == {"parked"}
        levels = await app.link.call(scripts.levels(orders.keys, GROUP))
        assert (levels.parked, levels.backlog) == (10, 0)  # visible, but no work that more workers could do
        assert pending(server, stream, GROUP) == {}
        assert await orders.dead_letters.count() == 0
        broken = False
        answer = await app.link.call(scripts.replay(orders.keys, GROUP, added[0].id))
        assert answer.kind == "same"
        await wait_until(lambda: len(ledger) == 22)
    assert (ledger.ids[-1], ledger.attempts[-1]) == (added[0].id, 1)


@pytest.mark.servers("redis8", "redis6")
async def test_bury_is_parked_too_when_dead_letters_are_off(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 29, 30: off means off: nothing is written beside the stream, and nothing is lost."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s", dead_letters=False)
    async def bill(order: Any) -> None:
        raise Bury("never again")

    async with app.worker():
        added = await orders.add({})
        await wait_until(lambda: waiting(server, stream, GROUP))
    assert {id_: held.owner for id_, held in waiting(server, stream, GROUP).items()} == {added.id: "parked"}
    assert server.sync().exists(orders.keys.dead_letters) == 0
