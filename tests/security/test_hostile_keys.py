"""Somebody who may write to the stream's keys can disturb, but crashes no worker and gets no command run (SPEC 53, 54).

Where a key of ours holds another type, a worker ends with one error that says so; whatever else stands in it is
passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery
from headrace.errors import GroupLost, WrongType
from headrace.names import keys_of, waiting_group
from tests.cli.conftest import Ran
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]

pytestmark = pytest.mark.servers("redis8", "redis6")

HOSTILE = [b"\x1b]0;owned\x07", b"\xff\xfe", b"", b"<script>alert(1)</script>", b"1e308", b"-1", b"9" * 400, b"a b\nc"]
SCORES = ["-inf", "-1", "0", "1e14", "5e15", "1e308", "inf"]


async def _one_retry(app: App, stream: str, *, again: int = 2) -> None:
    """A worker handles a message that fails once, and leaves in peace."""
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="500ms", backoff="10ms", max_attempts=3)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        if delivery.attempt < again:
            raise RuntimeError("once more")

    async with app.worker() as worker:
        failed = asyncio.ensure_future(worker.wait())
        await orders.add({"n": 1})
        await wait_until(lambda: failed.done() or counted(app, "acked_total") >= 1, 10, what="one ack")
        if not failed.done():
            await worker.lanes[0].janitor.round()
        failed.cancel()


async def test_a_due_set_full_of_nonsense_delays_nobody(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 24: members that are no ids, and due times from before the world to after it."""
    app, due = make_app(server), keys_of(stream).due(GROUP)
    for score in SCORES:
        for word in HOSTILE:
            server.sync().execute_command("ZADD", due, score, word + score.encode())
        server.sync().execute_command("ZADD", due, score, f"1-{SCORES.index(score)}")
    await _one_retry(app, stream)
    left = server.sync().zrangebyscore(due, "-inf", "1e13")
    assert left == [], "what is due and no message is thrown away"


async def test_a_due_set_of_nonsense_costs_no_busy_loop(server: Server, stream: str, make_app: MakeApp) -> None:
    """A due time before the beginning of time is due now, once."""
    due = keys_of(stream).due(GROUP)
    server.sync().execute_command("ZADD", due, "-inf", "x", "-5", "1-1", "-0.5", "2-2")
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)
    async with app.worker():
        await wait_until(lambda: server.sync().zcard(due) == 0, 5)


async def test_forged_owners_change_nothing(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 7b: a lease no worker could have, or one noted in the future, lengthens nobody's."""
    owners = keys_of(stream).owners(GROUP)
    for word in HOSTILE:
        server.sync().hset(owners, word, word)
        server.sync().hset(owners, b"json" + word, b'{"seen_ms": "%s", "lease_ms": [], "token": {}}' % word)
    server.sync().hset(owners, "deep", "[" * 100_000)
    server.sync().hset(owners, "huge", '{"seen_ms":' + "9" * 5_000 + ',"lease_ms":1,"token":"a"}')
    forged = "99999999999999999999 99999999999999;1000000000000 99999999999999;400000000 9999999999999;"
    server.sync().hset(owners, "", forged)
    app = make_app(server)
    await _one_retry(app, stream)
    app.stream(f"{stream}").handler(group=f"{GROUP}2", lease="500ms")(_nothing)
    async with app.worker() as worker:
        assert {lane.engine.rescue.lease_ms for lane in worker.lanes} == {500}


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize(
    "note",
    [b"", b"x", b"\xff", b"1-1", b"1-1 x", b"1-1 2-2 3-3", b"99999999999999999999999-1 99999999999999999999999-1"],
)
async def test_a_forged_floor_is_no_floor(server: Server, stream: str, make_app: MakeApp, note: bytes) -> None:
    """SPEC 3: the group is lost and that is said, as without a floor."""
    app = make_app(server)
    orders = app.stream(stream)
    orders.handler(group=GROUP, lease="2s")(_nothing)

    async def until_it_is_lost() -> None:
        async with app.worker() as worker:
            await orders.add({})
            await wait_until(lambda: counted(app, "acked_total") == 1)
            server.sync().set(keys_of(stream).floor(GROUP), note)
            server.sync().xgroup_destroy(stream, GROUP)
            await asyncio.wait_for(worker.wait(), 10)

    with pytest.raises(GroupLost, match="XGROUP CREATE"):
        await until_it_is_lost()


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("kind", ["due", "owners", "dead_letters"])
async def test_a_key_of_another_type_is_one_clear_error(
    server: Server, stream: str, make_app: MakeApp, kind: str
) -> None:
    """SPEC 54: WRONGTYPE is FATAL, and says what to do."""
    keys = keys_of(stream)
    place = keys.dead_letters if kind == "dead_letters" else getattr(keys, kind)(GROUP)
    server.sync().set(place, "mine")
    with pytest.raises(WrongType, match=r"(remove|delete) that key"):
        await _one_retry(make_app(server), stream, again=9)
    assert server.sync().get(place) == b"mine"
    assert server.sync().xlen(stream) == (1 if kind == "due" else 0), (
        "nothing is lost; the others are refused at the start"
    )


async def test_strange_consumers_are_rescued_from_and_shown(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 8: names with spaces, line ends and escapes, in the group and in its waiting group."""
    client = server.sync()
    client.xgroup_create(stream, GROUP, "0", mkstream=True)
    client.xgroup_create(stream, waiting_group(GROUP), "0")
    names = [word for word in HOSTILE if word]
    for word in names:
        client.xadd(stream, {"payload": '{"n": 1}'})
        client.execute_command("XREADGROUP", "GROUP", GROUP, word, "COUNT", 1, "STREAMS", stream, ">")
        client.execute_command("XREADGROUP", "GROUP", waiting_group(GROUP), word, "COUNT", 1, "STREAMS", stream, ">")
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease="500ms")(_nothing)
    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == len(names), 10)
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_a_thief_with_a_strange_name_is_told_of_in_one_line(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 11: whoever took it, the log has one line that a terminal only shows."""
    app = make_app(server)
    orders = app.stream(stream)
    gone = asyncio.Event()

    @orders.handler(group=GROUP, lease="500ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        thief = b"x 7\nINFO forged\x1b[2J"
        server.sync().execute_command("XCLAIM", stream, GROUP, thief, 0, delivery.id)
        await asyncio.wait_for(delivery.lost.wait(), 5)
        gone.set()

    async with app.worker():
        await orders.add({})
        await asyncio.wait_for(gone.wait(), 10)
        await wait_until(lambda: counted(app, "refused_total") + counted(app, "lost_total") >= 1)
    assert "holder" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.servers("redis8")
def test_every_look_at_such_a_stream_answers(server: Server, stream: str, headrace: Callable[..., Ran]) -> None:
    """SPEC 60: no command fails on what others wrote, and nothing a terminal obeys comes out."""
    _spoil(server, stream)
    for words in (
        ("pending", stream, GROUP),
        ("owners", stream),
        ("owners", stream, GROUP),
        ("groups", stream),
        ("backlog", stream, GROUP),
        ("dlq", "list", stream),
        ("doctor", stream),
    ):
        for extra in ((), ("--json",)):
            ran = headrace(*words, *extra)
            assert ran.code == 0 or words[0] == "doctor", (words, ran)
            assert "Traceback" not in ran.err, words
            shown = (ran.out + ran.err).replace("\n", "")
            assert shown.isprintable(), (words, [char for char in shown if not char.isprintable()])


@pytest.mark.servers("redis8")
async def test_forged_dead_letters_are_listed_shown_and_not_obeyed(
    server: Server, stream: str, make_app: MakeApp, headrace: Callable[..., Ran]
) -> None:
    """SPEC 28: each by its id, on the screen and as JSON; replaying one never reaches into another group."""
    _spoil(server, stream)
    letters = make_app(server).stream(stream).dead_letters
    found = await letters.listed()
    assert len(found) == server.sync().xlen(keys_of(stream).dead_letters)
    for letter in found:
        (replayed,) = await letters.replay(letter.id)
        assert replayed.kind == "foreign", letter


@pytest.mark.servers("redis8")
def test_forged_dead_letters_are_shown_by_commands(server: Server, stream: str, headrace: Callable[..., Ran]) -> None:
    """SPEC 60."""
    _spoil(server, stream)
    for id_, _ in server.sync().xrange(keys_of(stream).dead_letters)[::3]:
        for extra in ((), ("--json",)):
            ran = headrace("dlq", "show", stream, id_.decode(), *extra)
            assert ran.code == 0, ran
            assert ran.out.replace("\n", "").isprintable()


def _spoil(server: Server, stream: str) -> None:
    """Write nonsense into everything that belongs to a stream."""
    client, keys = server.sync(), keys_of(stream)
    client.xgroup_create(stream, GROUP, "0", mkstream=True)
    client.xgroup_create(stream, waiting_group(GROUP), "0")
    for number, word in enumerate(word for word in HOSTILE if word):
        id_ = client.xadd(stream, {"payload": word})
        client.execute_command("XREADGROUP", "GROUP", GROUP, word, "COUNT", 1, "STREAMS", stream, ">")
        client.execute_command("XREADGROUP", "GROUP", waiting_group(GROUP), word, "COUNT", 1, "STREAMS", stream, ">")
        client.execute_command("XGROUP", "CREATE", stream, word, "0")
        client.execute_command("ZADD", keys.due(GROUP), SCORES[number % len(SCORES)], id_)
        client.hset(keys.owners(GROUP), word, b'{"seen_ms": "%s", "lease_ms": [], "token": {}}' % word)
        client.hset(keys.owners(GROUP), word + b"2", b'{"seen_ms": 1e308, "lease_ms": -1e308, "host": "\\u001b[2J"}')
        about: Any = [b"_original_id", b"_stream", b"_group", b"_owner", b"_attempts", b"_first_ms", b"_last_ms"]
        about = [part for name in (*about, b"_error", b"_reason") for part in (name, word)]
        for count in (b"2", b"9999", b"\xc2\xb2", b"9" * 5_000, b"-1", b"1e308"):
            pairs = [b"payload", word, b"_n", count, *about, b"_retry_count", b"1e308"]
            client.execute_command("XADD", keys.dead_letters, "*", *pairs)
        pack = [b"_packed", b"3:ab", b"_n", b"9999", *about]
        client.execute_command("XADD", keys.dead_letters, "*", *pack)
    client.execute_command(
        "XADD", keys.dead_letters, "*", b"_n", b"\xc2\xb2", b"_attempts", "\u00b2", b"_last_ms", b"9" * 30
    )
    client.execute_command("XADD", keys.dead_letters, "*", "x", "y", "_n", "2", "_attempts", "²", "_last_ms", "9" * 30)
    client.execute_command("XADD", keys.dead_letters, "*", "x", "y", "_n", "2", "_first_ms", "9" * 5_000)
    client.hset(keys.owners(GROUP), "deep", "[" * 100_000)


async def _nothing(order: Any) -> None:
    pass
