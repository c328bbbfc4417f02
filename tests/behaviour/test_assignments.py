"""Assignments inside one event loop: who owns what, in which order, and how a stream ends (SPEC 42 to 45)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from headrace import (
    AlreadyClaimed,
    App,
    AssignmentTaken,
    Bury,
    ConfigError,
    HandlerRefused,
    NotOwned,
    Release,
    Retry,
    Room,
    WrongType,
    events,
)
from headrace.names import keys_of
from headrace.redis import ownership, scripts
from headrace.redis.connect import Server as Address
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import counted, pool

MakeApp = Callable[..., App]
LEASE = "500ms"


class Book:
    """What owners saw: (room, number, owner) in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, str]] = []
        self.entered: list[Room[Any]] = []

    async def own(self, room: Room[Any]) -> None:
        self.entered.append(room)
        async for message in room:
            self.seen.append((room.name, message.payload["n"], room.owner))
            await room.ack(message)

    def numbers(self, name: str) -> list[int]:
        return [n for room, n, _ in self.seen if room == name]

    def owners(self, name: str) -> set[str]:
        return {owner for room, _, owner in self.seen if room == name}


async def fill(app: App, name: str, count: int, first: int = 0) -> None:
    await app.stream(name).add_many([{"n": n} for n in range(first, first + count)])


def held(server: Server, stream: str) -> dict[str, int]:
    """How many assignments each owner has; nobody has any while there is no group."""
    if not server.sync().exists(stream) or not server.sync().xinfo_groups(stream):
        return {}
    rows = server.sync().xpending(stream, "owners")["consumers"]
    return {row["name"].decode(): row["pending"] for row in rows}


# ── owning ──


async def test_an_announced_stream_is_owned_by_one_in_order_with_its_info(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 42, 43."""
    app, book = make_app(server), Book()
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    names = [f"{stream}-{at}" for at in range(10)]
    for name in names:
        assert (await rooms.announce(name, {"tenant": name})).new
        assert not (await rooms.announce(name, {"tenant": "other"})).new
        assert not (await asyncio.to_thread(rooms.announce_sync, name)).new
        await fill(app, name, 50)
    async with pool(app, 3):
        await wait_until(lambda: len(book.seen) >= 500, 10)
        for name in names:
            await fill(app, name, 50, first=50)
        await wait_until(lambda: len(book.seen) >= 1_000, 10)
    for name in names:
        assert book.numbers(name) == list(range(100))
        assert len(book.owners(name)) == 1
    assert {room.name: room.info for room in book.entered} == {name: {"tenant": name} for name in names}


async def test_a_room_of_a_slow_handler_does_not_stop_the_others(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Queues are bounded, one for each room."""
    app, seen, go = make_app(server), [], asyncio.Event()
    rooms = app.assignments(stream, lease=LEASE, prefetch=5)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        async for message in room:
            if room.info["slow"]:
                assert room.space >= 0
                await go.wait()
            seen.append(room.name)
            await room.ack(message)

    slow, quick = f"{stream}-slow", f"{stream}-quick"
    await rooms.announce(slow, {"slow": True})
    await rooms.announce(quick, {"slow": False})
    await fill(app, slow, 100)
    async with app.worker() as worker:
        await wait_until(lambda: worker.holdings[0].by_name.get(slow))
        await fill(app, quick, 500)
        await wait_until(lambda: seen.count(quick) == 500, 10)
        assert len(worker.holdings[0].by_name[slow].room._queue) <= 5
        go.set()
        await wait_until(lambda: seen.count(slow) == 100, 10)


async def test_acking_a_message_acks_all_before_it_and_takeover_goes_on_there(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 43: resumes after the last ack, not after the last message read."""
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def first(room: Room[Any]) -> None:
        async for message in room:
            if message.payload["n"] == 4:
                await room.ack(message)
            if message.payload["n"] == 7:
                await asyncio.Event().wait()

    await rooms.announce(name)
    await fill(app, name, 10)
    async with app.worker() as worker:
        await wait_until(
            lambda: name in worker.holdings[0].by_name and worker.holdings[0].by_name[name].room.acked == 5
        )
        (row,) = await rooms.listed()
        assert (row.name, row.owner, row.epoch, row.tries) == (name, worker.owner, 1, 0)
        assert row.lag == (None if server.key == "redis6" else 5)
        again = make_app(server)
        again.assignments(stream, lease=LEASE).owner()(book.own)
        async with again.worker():
            await worker.stop(grace_s=0.1)
            await wait_until(lambda: len(book.seen) == 5)
    assert book.numbers(name) == [5, 6, 7, 8, 9]


@pytest.mark.servers("redis8", "redis6")
async def test_acks_that_nobody_waits_for_are_gathered_and_answered_before_the_room_is_left(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Far fewer acks than messages go over the wire, and none is forgotten at the end."""
    app, name, seen = make_app(server), f"{stream}-room", []
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        async for message in room:
            seen.append(message.id)
            room.ack_soon(message)

    await rooms.announce(name)
    await fill(app, name, 1_000)
    async with app.worker() as worker:
        await wait_until(lambda: len(seen) == 1_000, 10)
        sent = sum(link.sent for link in worker.holdings[0].positions.links)
    (row,) = await rooms.listed()
    assert (row.position, row.owner) == (seen[-1], "")
    assert sent < 300
    assert counted(app, "acked_total") == 1_000


@pytest.mark.servers("redis8")
async def test_an_ack_that_nobody_waits_for_fails_the_room_when_nobody_can_help(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Refused for good, it would be forgotten, and the room go on as if all were well."""
    app, name, seen, failed = make_app(server), f"{stream}-room", [], []
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        try:
            async for message in room:
                seen.append(message.payload["n"])
                room.ack_soon(message)
        except WrongType as error:
            failed.append(error)
            raise

    await rooms.announce(name)
    await fill(app, name, 1)
    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 1)
        server.sync().delete(rooms.place(name).own)
        server.sync().set(rooms.place(name).own, "no hash")
        await fill(app, name, 1, first=1)
        await wait_until(lambda: failed)
        server.sync().delete(rooms.place(name).own)
    assert seen == [0, 1]


@pytest.mark.servers("redis8")
async def test_an_ack_whose_answer_was_cut_is_counted_once(server: Server, stream: str, make_app: MakeApp) -> None:
    """It goes again as it was, and what came meanwhile after it: the lag that others see is the true one."""
    name, seen, cut = f"{stream}-room", [], asyncio.Event()
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy)
        rooms = app.assignments(stream, lease=LEASE)

        @rooms.owner()
        async def own(room: Room[Any]) -> None:
            async for message in room:
                seen.append(message.payload["n"])
                room.ack_soon(message)
                if message.payload["n"] == 4:
                    await cut.wait()

        def cut_once(reply: bytes) -> int | None:
            if cut.is_set() or not reply.endswith(b"$2\r\nok\r\n"):
                return None
            cut.set()
            return 0

        await rooms.announce(name)
        await fill(app, name, 12)
        proxy.cut_reply = cut_once
        async with app.worker():
            await wait_until(lambda: counted(app, "acked_total") == 12)
            assert cut.is_set()
            (row,) = await rooms.listed()
            assert row.lag == 0
            await fill(app, name, 1, first=12)
            await wait_until(lambda: counted(app, "acked_total") == 13)
        assert server.sync().hget(rooms.place(name).own, "read") == b"13"
        await app.close()


async def test_a_message_is_decoded_by_the_model_when_asked_for(server: Server, stream: str, make_app: MakeApp) -> None:
    """An undecodable message is its handler's decision: skip it, or stop."""
    app, seen, name = make_app(server), [], f"{stream}-room"
    rooms = app.assignments(stream, dict[str, int], lease=LEASE)

    @rooms.owner()
    async def own(room: Room[dict[str, int]]) -> None:
        async for message in room:
            try:
                seen.append(message.payload["n"])
            except ValueError:
                seen.append(-1)
            except Exception as error:
                seen.append(type(error).__name__)
            await room.ack(message)

    await rooms.announce(name)
    server.sync().xadd(name, {"payload": '{"n": 1}'})
    server.sync().xadd(name, {"payload": "no json"})
    server.sync().xadd(name, {"other": "field"})
    server.sync().xadd(name, {"payload": '{"n": 2}'})
    async with app.worker():
        await wait_until(lambda: len(seen) == 4)
    assert seen == [1, "DecodeError", "DecodeError", 2]


# ── what others trimmed ──

COUNTING = ("redis7", "redis8", "valkey9")  # servers that know how many entries were ever added


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gaps.ROUND_MS", 50)


def gaps_said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("message.trimmed")]


@pytest.mark.servers(*COUNTING)
@pytest.mark.usefixtures("quick_looks")
async def test_what_was_trimmed_before_its_owner_read_it_is_counted_and_said_once(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 18 for rooms: a read goes on behind the gap as if nothing had been there."""
    app, book, go, name = make_app(server), Book(), asyncio.Event(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE, prefetch=5)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        await go.wait()
        await book.own(room)

    await rooms.announce(name)
    async with app.worker() as worker:
        await fill(app, name, 100)
        await wait_until(lambda: name in worker.holdings[0].by_name and worker.holdings[0].by_name[name].room.full)
        ids = [id_.decode() for id_, _ in server.sync().xrange(name)]
        server.sync().xtrim(name, maxlen=20, approximate=False)
        go.set()
        await wait_until(lambda: len(book.seen) == 25)
        await wait_until(lambda: counted(app, "trimmed_total", stream=stream) == 75)
        await stays(lambda: counted(app, "trimmed_total") == 75, 0.3)
        (row,) = await rooms.listed()
        assert row.lag == 0
    assert book.numbers(name) == [*range(5), *range(80, 100)]
    (said,) = gaps_said(caplog)
    between = re.search(rf"stream={name} group=owners: 75 messages between (\S+) and (\S+),", said)
    assert between is not None
    assert between[1] in ("0-0", *ids[:5])  # where it was looked before
    assert between[2] in ids[80:]


@pytest.mark.servers(*COUNTING)
async def test_what_was_trimmed_between_two_owners_is_counted_by_the_next(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 18 for rooms, at the takeover."""
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    await rooms.announce(name)
    async with app.worker():
        await fill(app, name, 10)
        await wait_until(lambda: len(book.seen) == 10)
    await fill(app, name, 20, first=10)
    ids = [id_.decode() for id_, _ in server.sync().xrange(name)]
    server.sync().xtrim(name, maxlen=5, approximate=False)
    for count in (15, 20):
        async with app.worker():
            await wait_until(lambda count=count: len(book.seen) == count)
        if count == 15:
            await fill(app, name, 5, first=30)
    assert book.numbers(name) == [*range(10), *range(25, 35)]
    assert counted(app, "trimmed_total", stream=stream) == 15
    (said,) = gaps_said(caplog)
    assert f"stream={name} group=owners: 15 messages between {ids[9]} and {ids[25]}," in said


@pytest.mark.servers(*COUNTING)
@pytest.mark.usefixtures("quick_looks")
async def test_what_a_producers_maxlen_cut_and_what_was_handled_are_together_all_there_was(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """An owner that cannot keep up loses messages, and knows how many; reads on their way are not taken for lost."""
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE, prefetch=10)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        async for message in room:
            book.seen.append((room.name, message.payload["n"], room.owner))
            await room.ack(message)
            await asyncio.sleep(0.001)

    await rooms.announce(name)
    async with app.worker() as worker:
        await wait_until(lambda: name in worker.holdings[0].by_name)
        for first in range(0, 5_000, 20):
            pipe = server.sync().pipeline(transaction=False)
            for n in range(first, first + 20):
                pipe.xadd(name, {"payload": f'{{"n":{n}}}'}, maxlen=50, approximate=False)
            pipe.execute()
            await asyncio.sleep(0.005)
        await wait_until(lambda: book.seen and book.seen[-1][1] == 4_999, 10)
        await wait_until(lambda: len(book.seen) + counted(app, "trimmed_total") == 5_000)
        await stays(lambda: len(book.seen) + counted(app, "trimmed_total") == 5_000, 0.3)
    assert counted(app, "trimmed_total") > 0
    assert book.numbers(name) == sorted(set(book.numbers(name)))


@pytest.mark.servers("redis6")
@pytest.mark.usefixtures("quick_looks")
async def test_a_server_that_does_not_count_what_was_added_says_nothing_of_a_gap_and_the_room_goes_on(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    await rooms.announce(name)
    async with app.worker():
        await fill(app, name, 10)
        await wait_until(lambda: len(book.seen) == 10)
    await fill(app, name, 20, first=10)
    server.sync().xtrim(name, maxlen=5, approximate=False)
    async with app.worker():
        await wait_until(lambda: len(book.seen) == 15)
    assert counted(app, "trimmed_total") == 0


# ── ending ──


async def test_a_finished_stream_is_gone_and_may_be_announced_again(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44: acked, deleted, forgotten; kept data stays with its position."""
    app, seen = make_app(server), []
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        async for message in room:
            seen.append((room.name, message.payload["n"]))
            await room.ack(message)
            if message.payload["n"] == 2:
                await room.finish(delete=not room.info.get("keep"))
                with pytest.raises(NotOwned):
                    await room.ack(message)

    gone, kept = f"{stream}-gone", f"{stream}-kept"
    await rooms.announce(gone)
    await rooms.announce(kept, {"keep": True})
    for name in (gone, kept):
        await fill(app, name, 3)
    async with app.worker():
        await wait_until(lambda: not server.sync().hlen(keys_of(stream).names))
        assert server.sync().exists(gone) == 0
        assert server.sync().xlen(kept) == 3
        assert server.sync().xlen(stream) == 0
        assert (await rooms.announce(kept)).new
        await fill(app, kept, 1, first=9)
        await wait_until(lambda: (kept, 9) in seen)
    assert seen.count((kept, 0)) == 1


@pytest.mark.servers("redis8", "redis6")
async def test_an_owner_that_died_between_the_halves_of_finishing_is_finished_by_the_next(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44: the data's slot first; the next owner's take answers done, and it only ends the announcement."""
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    id_ = (await rooms.announce(name)).id.encode()
    await fill(app, name, 3)
    link = Address(server.url).sync_link("test")
    server.sync().xgroup_create(stream, "owners", "0")
    server.sync().xreadgroup("owners", "dead", {stream: ">"})
    link.call(ownership.beat(rooms.keys, "owners", "dead", 1))
    assert link.call(ownership.take(rooms.place(name), id_, 1, "dead")).kind == "ok"
    assert link.call(ownership.finish(rooms.place(name), "dead", 1, id_)).kind == "ok"
    link.close()
    async with app.worker():
        await wait_until(lambda: server.sync().xlen(stream) == 0)
        assert not server.sync().hexists(rooms.keys.names, name)
    assert book.entered == []
    assert server.sync().exists(name) == 0


async def test_a_handler_that_returns_hands_its_room_back_for_a_growing_moment(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app, at, name = make_app(server), [], f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner(max_attempts=2)
    async def own(room: Room[Any]) -> None:
        at.append(time.monotonic())
        assert room.attempt == 1

    await rooms.announce(name)
    async with app.worker():
        await wait_until(lambda: len(at) == 4, 10)
    waits = [after - before for before, after in pairwise(at)]
    assert all(wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True)), waits
    assert waits[2] >= 0.4
    assert server.sync().xlen(f"{{{stream}}}:dlq") == 0


async def test_a_room_whose_handler_raises_waits_for_its_backoff_and_is_buried_after_its_last_attempt(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Progress starts the count anew; a replayed dead letter goes on where it was."""
    app, starts, name, healed = make_app(server), [], f"{stream}-room", asyncio.Event()
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner(max_attempts=3, backoff="50ms")
    async def own(room: Room[Any]) -> None:
        async for message in room:
            starts.append((message.payload["n"], room.attempt))
            if message.payload["n"] == 2 and not healed.is_set():
                raise RuntimeError("no")
            await room.ack(message)

    await rooms.announce(name, {"a": 1})
    await fill(app, name, 4)
    async with app.worker():
        letters = await wait_until(lambda: rooms.dead_letters.listed(), 10)
        assert starts == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3)]
        (letter,) = letters
        assert (letter.error, letter.reason, letter.attempts) == ("RuntimeError", "no", 3)
        assert not (await rooms.announce(name)).new  # buried is not finished
        healed.set()
        await rooms.dead_letters.replay(letter.id)
        await wait_until(lambda: starts[5:] == [(2, 1), (3, 1)], 10)


async def test_a_purged_assignment_may_be_announced_again_and_a_forged_dead_letter_frees_no_name(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28, 42: buried it is known, purged it is not; and only what nobody owns is forgotten."""
    app, starts, name, healed = make_app(server), [], f"{stream}-room", asyncio.Event()
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner(max_attempts=1)
    async def own(room: Room[Any]) -> None:
        async for message in room:
            starts.append((message.payload["n"], room.attempt))
            if not healed.is_set():
                raise RuntimeError("no")
            await room.ack(message)

    first = await rooms.announce(name)
    await fill(app, name, 2)
    async with app.worker():
        (letter,) = await wait_until(lambda: rooms.dead_letters.listed(), 10)
        assert not (await rooms.announce(name)).new
        assert await rooms.dead_letters.purge(letter.id) == 1
        assert await rooms.listed() == []
        assert server.sync().xrange(stream, first.id, first.id) == []
        healed.set()
        again = await rooms.announce(name)
        assert again.new
        await wait_until(lambda: starts == [(0, 1), (0, 1), (1, 1)], 10)

        forged = {"stream": name, "_n": "2", "_original_id": again.id, "_group": "others"}
        server.sync().xadd(keys_of(stream).dead_letters, forged)
        assert await rooms.dead_letters.purge() == 1
        assert not (await rooms.announce(name)).new
        assert server.sync().xrange(stream, again.id, again.id) != []


@pytest.mark.servers("redis8")
async def test_an_announcement_nobody_can_own_is_buried_and_the_others_go_on(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    server.sync().set(f"{stream}-text", "no stream")
    server.sync().xadd(stream, {"no": "name"})
    server.sync().xadd(stream, {"stream": "{}", "info": "{}"})
    server.sync().xadd(stream, {"stream": f"{stream}-odd", "info": "no json"})
    server.sync().xadd(stream, {"stream": f"{stream}-deep", "info": "[" * 200_000 + "]" * 200_000})
    server.sync().xadd(stream, {"stream": f"{stream}-digits", "info": "9" * 5_000})
    server.sync().xadd(stream, {"stream": f"{stream}-".encode() + b"\xed\xa0\x80"})  # a lone surrogate
    await rooms.announce(f"{stream}-text")
    await rooms.announce(name)
    await fill(app, name, 1)
    async with app.worker():
        await wait_until(lambda: book.numbers(name) == [0])
        await wait_until(lambda: server.sync().xlen(f"{{{stream}}}:dlq") == 7)
    errors = [letter.error for letter in await rooms.dead_letters.listed()]
    assert sorted(errors) == ["DecodeError"] * 4 + ["NameRefused"] * 2 + ["WrongType"]
    assert held(server, stream) == {}


# ── leases ──


async def test_an_owner_that_vanishes_is_succeeded_and_its_late_words_are_refused(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 43: by heirs after L; every word of the former owner is refused and counted."""
    app, name, kept = make_app(server), f"{stream}-room", []
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def hold(room: Room[Any]) -> None:
        async for message in room:
            kept.append((room, message))
            await asyncio.Event().wait()

    await rooms.announce(name)
    await fill(app, name, 3)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(app.worker())
        await wait_until(lambda: kept)
        (room, message), holding = kept[0], worker.holdings[0]
        worker._keepers.heartbeats[0].cut()
        heir, book = make_app(server), Book()
        heir.assignments(stream, lease=LEASE).owner()(book.own)
        await stack.enter_async_context(heir.worker())
        await wait_until(lambda: book.numbers(name) == [0, 1, 2], 10)
        assert not room.is_lost  # nobody has told it yet
        with pytest.raises(AssignmentTaken, match="taken over by"):
            await room.ack(message)
        assert room.is_lost
        assert counted(app, "refused_total", outcome="ack") == 1
        with pytest.raises(AssignmentTaken):
            await room.finish()
        assert name not in holding.by_name
        assert server.sync().xlen(name) == 3


@pytest.mark.servers("redis8")
async def test_a_room_gives_no_message_while_its_owner_cannot_be_sure_of_its_lease(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    await rooms.announce(name)
    async with app.worker() as worker:
        await wait_until(lambda: book.entered)
        await worker._keepers.heartbeats[0].stop()
        post = worker.holdings[0].post
        await wait_until(lambda: time.monotonic() > post.sure_until)
        await fill(app, name, 1)
        await stays(lambda: not book.seen, 0.3)
        post.trust(time.monotonic(), post.doubts)
        await wait_until(lambda: book.seen)


@pytest.mark.servers("redis8", "redis6")
async def test_a_server_that_was_paused_for_three_leases_robs_no_live_owner(
    own_server: Callable[..., Server], server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20 for rooms: the beats come before anybody inherits."""
    server = own_server(server_key)
    app, book = make_app(server), Book()
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    names = [f"{stream}-{at}" for at in range(8)]
    for name in names:
        await rooms.announce(name)
        await fill(app, name, 1)
    async with pool(app, 3):
        await wait_until(lambda: len(book.seen) == 8, 10)
        for _ in range(2):
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(1.5)
            os.kill(server.pid, signal.SIGCONT)
            await asyncio.sleep(1.0)
        for name in names:
            await fill(app, name, 1, first=1)
        await wait_until(lambda: len(book.seen) == 16, 10)
        assert len(book.entered) == 8
    assert counted(app, "lost_total") == 0


@pytest.mark.servers("redis8", "redis6")
async def test_an_owner_that_is_back_before_the_others_robs_none_of_them(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20 for rooms: its share is full, so the first it hears is a look at the others, and that was slow enough."""
    book = Book()
    async with Proxy(server.socket) as early, Proxy(server.socket) as late:
        apps = [make_app(early.url), make_app(late.url)]
        for app in apps:
            app.assignments(stream, lease="1s").owner()(book.own)
        rooms = make_app(server).assignments(stream)
        for at in range(6):
            await rooms.announce(f"{stream}-{at}")
        async with apps[0].worker() as first:
            await wait_until(lambda: len(book.entered) == 6)
            async with apps[1].worker() as second:
                await wait_until(lambda: first.holdings[0].acquirer.share == 3)
                for at in range(6, 8):
                    await rooms.announce(f"{stream}-{at}")
                await wait_until(lambda: len(book.entered) == 8 and second.holdings[0].tenures)
                early.holding = late.holding = True
                await asyncio.sleep(2.5)  # longer than a lease, shorter than anybody waits for an answer
                early.holding = False
                await asyncio.sleep(0.2)
                late.holding = False
                await stays(lambda: len(book.entered) == 8, 1.0)


async def test_a_handler_that_touches_a_lost_room_keeps_its_own(server: Server, stream: str, make_app: MakeApp) -> None:
    """AssignmentTaken names the room that was taken over: another one is not lost for it, its handler has failed."""
    app, tries = make_app(server), list[str]()
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner(backoff="100ms")
    async def own(room: Room[Any]) -> None:
        tries.append(room.name)
        if len(tries) == 1:
            raise AssignmentTaken(stream="another")
        async for message in room:
            await room.ack(message)

    await rooms.announce(f"{stream}-room")
    async with app.worker():
        await wait_until(lambda: len(tries) == 2)
    assert counted(app, "lost_total") == 0


async def test_a_doubt_that_comes_while_another_is_cleared_up_stays(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app = make_app(server)
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(Book().own)
    async with app.worker() as worker:
        await worker._keepers.heartbeats[0].stop()
        post = worker.holdings[0].post
        ended = ownership.Beat(alive=False, owners=1, there=0, mine=0, server_ms=0)
        post.heard(ended, time.monotonic())
        asked = post.doubts
        post.heard(ended, time.monotonic())
        post.trust(time.monotonic(), asked)
        assert post.in_doubt
        post.trust(time.monotonic(), post.doubts)
        assert not post.in_doubt


@pytest.mark.servers("redis8")
async def test_a_killed_server_that_comes_back_finds_its_owners_and_they_go_on_in_order(
    own_server: Callable[..., Server], stream: str, make_app: MakeApp
) -> None:
    server = own_server("redis8", aof=True)
    app, book, name = make_app(server), Book(), f"{stream}-room"
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    await rooms.announce(name)
    await fill(app, name, 20)
    async with pool(app, 2):
        await wait_until(lambda: len(book.seen) == 20, 10)
        server.kill()
        await asyncio.sleep(1.0)
        server.restart()
        await fill(app, name, 20, first=20)
        await wait_until(lambda: len(set(book.numbers(name))) == 40, 15)
    assert sorted(set(book.numbers(name))) == list(range(40))


@pytest.mark.servers("redis8", "redis6")
async def test_streams_are_owned_again_after_their_group_has_vanished(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3 for rooms: what is finished is deleted, so the group is made at 0; counts restart and are raised."""
    app, book = make_app(server), Book()
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    names = [f"{stream}-{at}" for at in range(4)]
    for name in names:
        await rooms.announce(name)
        await fill(app, name, 5)
    async with pool(app, 2):
        await wait_until(lambda: len(book.seen) == 20, 10)
        server.sync().xgroup_destroy(stream, "owners")
        await wait_until(lambda: sum(held(server, stream).values()) == 4, 10)
        for name in names:
            await fill(app, name, 5, first=5)
        await wait_until(lambda: all(book.numbers(name)[-1] == 9 for name in names), 10)
        await stays(lambda: sum(held(server, stream).values()) == 4, 0.5)
    for name in names:
        assert list(dict.fromkeys(book.numbers(name))) == list(range(10))


@pytest.mark.servers("redis8")
async def test_an_owner_of_streams_that_is_gone_is_forgotten_after_its_retention(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 19: also one that died before its first look at what there is to own."""
    app, keys = make_app(server), keys_of(stream)
    app.assignments(stream, lease=LEASE, owner_retention="300ms").owner()(Book().own)

    def names() -> set[str]:
        return {field.decode() for field in server.sync().hkeys(keys.owners("owners"))} - {""}

    async with app.worker() as worker:
        holding = worker.holdings[0]
        await holding.calls.link.call(scripts.join(keys, "owners", "gone", "gone", 500, "{}"))
        server.sync().xgroup_createconsumer(stream, "owners", "gone-too")
        await holding.janitor.round()
        assert names() == {worker.owner, "gone"}
        await asyncio.sleep(0.35)  # its retention
        await holding.janitor.round()
        assert names() == {worker.owner}
        assert {row["name"].decode() for row in server.sync().xinfo_consumers(stream, "owners")} <= {worker.owner}


async def test_a_restarted_owner_with_a_fixed_name_takes_a_new_epoch_of_what_it_left(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 2, 43: an earlier process of the same name may only be paused; nothing it says counts any more."""
    name, book = f"{stream}-room", Book()
    dead = make_app(server, owner=f"{stream}-fixed")
    rooms = dead.assignments(stream, lease=LEASE)
    await rooms.announce(name)
    await fill(dead, name, 1)
    link = Address(server.url).sync_link("test")
    server.sync().xgroup_create(stream, "owners", "0")
    server.sync().xreadgroup("owners", f"{stream}-fixed", {stream: ">"})
    id_ = server.sync().xrange(stream)[0][0]
    assert link.call(ownership.take(rooms.place(name), id_, 1, f"{stream}-fixed")).epoch == 1
    rooms.owner()(book.own)
    async with dead.worker():
        await wait_until(lambda: book.seen)
        assert book.entered[0].epoch == 2
        late = link.call(ownership.pos_ack(rooms.place(name), f"{stream}-fixed", 1, b"99-0", 1))
        assert late.kind == "taken"
    link.close()


@pytest.mark.servers("redis8")
async def test_a_burst_ends_when_every_stream_is_read_and_acknowledged(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app, book = make_app(server), Book()
    rooms = app.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    for at in range(3):
        await rooms.announce(f"{stream}-{at}")
        await fill(app, f"{stream}-{at}", 120)
    async with asyncio.timeout(15):
        await app.serve(burst=True)
    assert len(book.seen) == 360
    assert len(await rooms.listed()) == 3


@pytest.mark.servers("redis8")
async def test_a_handler_may_say_how_its_room_ends(server: Server, stream: str, make_app: MakeApp) -> None:
    app, entered = make_app(server), []
    rooms = app.assignments(stream, lease=LEASE)

    @rooms.owner()
    async def own(room: Room[Any]) -> None:
        entered.append((room.info, room.attempt))
        if room.info == "bury":
            raise Bury("closed by the authorities")
        if entered.count((room.info, room.attempt)) == 1:
            raise Retry(after=0.01) if room.info == "retry" else Release(after=0.01)
        async for _ in room:
            pass

    for how in ("bury", "retry", "release"):
        await rooms.announce(f"{stream}-{how}", how)
    async with app.worker():
        await wait_until(lambda: len(entered) >= 5)
        (letter,) = await wait_until(lambda: rooms.dead_letters.listed())
    assert letter.reason == "closed by the authorities"
    assert entered.count(("release", 1)) == 2  # handed back: its attempt is not burnt
    assert ("retry", 2) in entered


# ── shares ──


@pytest.mark.servers("redis8", "redis6")
async def test_a_new_owner_gets_its_share_by_handing_over_between_two_messages(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """With rebalance: nothing lost, nothing out of order, nothing twice."""
    app, book = make_app(server), Book()
    rooms = app.assignments(stream, lease=LEASE, rebalance=True)
    rooms.owner()(book.own)
    names = [f"{stream}-{at}" for at in range(9)]
    for name in names:
        await rooms.announce(name)
    async with app.worker() as first:
        await wait_until(lambda: len(first.holdings[0].tenures) == 9)
        done = asyncio.Event()

        async def feed() -> None:
            n = 0
            while not done.is_set() or n < 50:
                for name in names:
                    await fill(app, name, 1, first=n)
                n += 1

        feeding = asyncio.ensure_future(feed())
        async with pool(app, 2) as others:
            shares = lambda: [len(each.holdings[0].tenures) for each in (first, *others)]  # noqa: E731
            await wait_until(lambda: shares() == [3, 3, 3], 10)
            done.set()
            await feeding
            total = server.sync().xlen(names[0])
            await wait_until(lambda: len(book.seen) >= 9 * total, 10)
            for name in names:
                assert book.numbers(name) == list(range(total))


@pytest.mark.servers("redis8")
async def test_what_the_others_have_no_room_for_is_taken_beyond_the_share(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """A share is no reason to leave a stream without an owner."""
    small, large, book = make_app(server), make_app(server), Book()
    small.assignments(stream, lease=LEASE, concurrency=1).owner()(book.own)
    rooms = large.assignments(stream, lease=LEASE)
    rooms.owner()(book.own)
    async with small.worker(), large.worker():
        for at in range(12):
            await rooms.announce(f"{stream}-{at}")
        await wait_until(lambda: len(book.entered) == 12, 10)


# ── events ──


async def next_event(listening: Any, kind: type, timeout: float = 5.0) -> Any:
    async with asyncio.timeout(timeout):
        async for event in listening:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} before the end")


async def test_events_tell_what_was_added_expired_disowned_and_that_it_is_over(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44."""
    app, other = make_app(server), make_app(server)
    rooms, theirs = app.assignments(stream, lease=LEASE), other.assignments(stream, lease=LEASE)
    name = f"{stream}-room"
    await rooms.announce(name, {"a": 1})
    await fill(app, name, 2)
    async with rooms.events() as mine, theirs.events() as yours:
        first, second = ((rooms, mine), (theirs, yours))
        added = asyncio.ensure_future(next_event(mine, events.Added))
        also = asyncio.ensure_future(next_event(yours, events.Added))
        await asyncio.wait((added, also), return_when=asyncio.FIRST_COMPLETED)
        if also.done():
            first, second = second, first
            added, also = also, added
        also.cancel()
        await asyncio.gather(also, return_exceptions=True)
        room = added.result().room
        assert (room.name, room.info) == (name, {"a": 1})
        message = await anext(room)
        await room.ack(message)
        # its lease ends: the other is told, and takes it
        await first[1]._worker._keepers.heartbeats[0].stop()
        expired = await next_event(second[1], events.Expired)
        assert (expired.name, expired.info, expired.owner) == (name, {"a": 1}, room.owner)
        claimed = await second[0].claim(expired)
        assert (claimed.name, claimed.position, claimed.former) == (name, message.id, room.owner)
        with pytest.raises(AlreadyClaimed):
            await first[0].claim(name)
        next_message = await anext(claimed)
        await claimed.ack(next_message)
        with pytest.raises(AssignmentTaken):
            await room.ack(next_message)
        disowned = await next_event(first[1], events.Disowned)
        assert disowned == events.Disowned(name, claimed.owner)
        await second[0].done_stream(name)
        assert server.sync().exists(name) == 0
        assert server.sync().xlen(stream) == 0
        with pytest.raises(NotOwned):
            await second[0].done_stream(name)
        with pytest.raises(NotOwned):
            await second[0].claim(name)
    assert (await next_event(second[1], events.Terminated)).reason == "closed"
    with pytest.raises(StopAsyncIteration):
        await anext(second[1])


@pytest.mark.servers("redis8", "valkey9")
async def test_of_two_that_claim_at_once_one_wins_and_the_other_is_told_who(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44."""
    apps = [make_app(server) for _ in range(2)]
    both = [app.assignments(stream, lease=LEASE) for app in apps]
    names = [f"{stream}-{at}" for at in range(10)]
    for name in names:
        await both[0].announce(name)
    server.sync().xgroup_create(stream, "owners", "0")
    server.sync().xreadgroup("owners", "dead", {stream: ">"})
    link = Address(server.url).sync_link("test")
    link.call(ownership.beat(both[0].keys, "owners", "dead", 1))
    link.close()
    async with both[0].events() as first, both[1].events() as second:
        for _ in names:
            one = await next_event(first, events.Expired)
            results = await asyncio.gather(*(rooms.claim(one) for rooms in both), return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["AlreadyClaimed", "Room"]
            (refused,) = (result for result in results if isinstance(result, AlreadyClaimed))
            (won,) = (result for result in results if isinstance(result, Room))
            assert refused.holder in ("", won.owner)
        assert sum(held(server, stream).values()) == 10
        assert "dead" not in held(server, stream)
        del second


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("how", ["paused", pytest.param("killed", marks=pytest.mark.long)])
async def test_no_expired_is_told_of_a_live_owner_after_an_outage_and_a_claim_waits_for_its_beat(
    own_server: Callable[..., Server], server_key: str, stream: str, make_app: MakeApp, how: str
) -> None:
    """SPEC 20 for listeners: away for longer than L; the owner's beats come 200 ms after everybody else's words."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    name, seen = f"{stream}-room", []
    async with Proxy(server.socket) as way:
        app, other = make_app(way.url), make_app(server)
        rooms, theirs = app.assignments(stream, lease="2s"), other.assignments(stream, lease="2s")
        await rooms.announce(name)

        async def collect(listening: Any) -> None:
            async for event in listening:
                seen.append(event)

        async with AsyncExitStack() as stack:
            mine = await stack.enter_async_context(rooms.events())
            room = (await next_event(mine, events.Added)).room
            collecting = asyncio.create_task(collect(await stack.enter_async_context(theirs.events())))
            await asyncio.to_thread(server.pause if how == "paused" else server.kill)
            await asyncio.sleep(3.0)  # the length of the outage
            early = asyncio.create_task(theirs.claim(name))  # on its way when the server is back
            way.holding = True
            await asyncio.to_thread(server.cont if how == "paused" else server.restart)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(early), 0.2)
            way.holding = False
            for claim in (early, theirs.claim(name)):
                with pytest.raises(AlreadyClaimed) as refused:
                    await asyncio.wait_for(claim, 10)
                assert refused.value.holder == room.owner
            await stays(lambda: not seen, 2.5)
            assert not room.is_lost
            # the rule delays, and does not forbid
            await mine._worker._keepers.stop()
            await wait_until(lambda: [event.name for event in seen] == [name], 10)
            assert (await theirs.claim(seen[0])).former == room.owner
        await collecting


@pytest.mark.servers("redis8")
async def test_a_slow_listener_keeps_its_lease_and_no_more_than_the_limit_waits_for_it(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44: renewals come from a thread; while the queue is full nothing more is taken, and nothing is lost."""
    app = make_app(server)
    rooms = app.assignments(stream, lease=LEASE)
    for at in range(30):
        await rooms.announce(f"{stream}-{at}")
    async with rooms.events(limit=10) as listening:
        await wait_until(lambda: sum(held(server, stream).values()) == 10)
        heirs = make_app(server)
        book = Book()
        heirs.assignments(stream, lease=LEASE, concurrency=1).owner()(book.own)
        async with heirs.worker():
            # Longer than a lease, with the loop blocked, and nobody takes what the listener has not even looked at.
            for _ in range(4):
                time.sleep(0.4)
                await asyncio.sleep(0.01)
            assert len(listening._listener.queue) == 10
            mine = listening._worker.owner
            assert held(server, stream)[mine] == 10
        names = {(await next_event(listening, events.Added)).name for _ in range(30)}
        assert len(names) == 30


@pytest.mark.servers("redis8")
async def test_done_hands_back_what_is_unfinished_to_others_at_once(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 44."""
    app, heir, book = make_app(server), make_app(server), Book()
    rooms = app.assignments(stream, lease="30s")
    await rooms.done()  # before listening it is nothing
    names = {f"{stream}-{at}" for at in range(5)}
    for name in names:
        await rooms.announce(name)
    listening = rooms.events()
    assert {(await next_event(listening, events.Added)).name for _ in names} == names
    with pytest.raises(ConfigError, match="already"):
        rooms.events()
    await rooms.done()
    await rooms.done()
    assert isinstance(await anext(listening), events.Terminated)
    heir.assignments(stream, lease="30s").owner()(book.own)
    async with heir.worker():
        await wait_until(lambda: {room.name for room in book.entered} == names)


# ── asking for what cannot be ──


async def test_bad_words_are_refused_where_they_are_written(stream: str, make_app: MakeApp) -> None:
    app = make_app("redis://localhost:1")
    with pytest.raises(ConfigError, match="lease"):
        app.assignments(stream, leas="2s")
    rooms = app.assignments(stream)
    with pytest.raises(ConfigError, match="prefetch"):
        rooms.owner(prefetch=0)
    with pytest.raises(HandlerRefused, match="async"):
        rooms.owner()(lambda room: None)

    async def own(room: Room[Any]) -> None:
        """Owns."""

    rooms.owner()(own)
    with pytest.raises(HandlerRefused, match="owner already"):
        rooms.owner()(own)
    with pytest.raises(NotOwned):
        await rooms.claim("x")
