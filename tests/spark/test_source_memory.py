"""What is asked for at once: answers stay small, however large entries are and wherever the large ones come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.spark.arrivals import Arrivals
from headrace.spark.held import Held, HeldReader
from headrace.spark.options import Address
from headrace.spark.pace import ROOM
from headrace.spark.schema import DEFAULT
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import ANSWER_BYTES, looks
from headrace.spark.wire import AnswerTooLarge, Reply, Wire
from tests.spark.querying import Driven, ids, once_each
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8")

FETCH = 256 * 1024
LARGE = 20_000

Drive = Callable[..., Driven]


@pytest.fixture
def drive(server: Server) -> Iterator[Drive]:
    begun: list[Driven] = []

    def begin(**options: Any) -> Driven:
        begun.append(Driven(server, **{"startingOffsets": "earliest", "fetchBytes": FETCH, **options}))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


class Sizes:
    """How large the answers to tasks were, and how many were given up."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.given_up = 0


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    seen, receive = Sizes(), Wire.receive

    def weighed(wire: Wire, most_bytes: int | None = None) -> Reply:
        try:
            reply = receive(wire, most_bytes)
        except AnswerTooLarge:
            seen.given_up += 1
            raise
        seen.answers.append(reply.size)
        return reply

    monkeypatch.setattr(Wire, "receive", weighed)
    return seen


def add(server: Server, stream: str, count: int, size: int) -> list[str]:
    pipe = server.sync().pipeline(transaction=False)
    for _ in range(count):
        pipe.xadd(stream, {"word": "x" * size})
    return [id_.decode() for id_ in pipe.execute()]


def test_tiny_rows_beside_large_ones_in_a_packed_task_make_no_large_answer(
    drive: Drive, server: Server, prefix: str, sizes: Sizes
) -> None:
    """One stream of tiny rows has the most of them; read together, the others would have been 27 MB at once."""
    wanted = add(server, f"{prefix}-0", 180, 1)
    for number in range(1, 10):
        wanted += add(server, f"{prefix}-{number}", 150, LARGE)
    rows = drive(streamsPattern=f"{prefix}-*").drain()
    assert ids(rows) == sorted(wanted)
    assert once_each(rows)
    assert max(sizes.answers) < 4 * FETCH
    assert not sizes.given_up


def test_short_ranges_of_small_rows_still_share_their_requests(
    drive: Drive, server: Server, prefix: str, sizes: Sizes
) -> None:
    for number in range(200):
        add(server, f"{prefix}-{number}", 1 + number % 3, 10)
    assert len(drive(streamsPattern=f"{prefix}-*").drain()) == sum(1 + number % 3 for number in range(200))
    assert len(sizes.answers) <= 6


def test_a_long_stream_of_large_rows_behind_one_of_small_rows_begins_anew(
    drive: Drive, server: Server, prefix: str, sizes: Sizes
) -> None:
    wanted = add(server, f"{prefix}-a", 3_000, 1) + add(server, f"{prefix}-b", 400, LARGE)
    assert ids(drive(streamsPattern=f"{prefix}-*").drain()) == sorted(wanted)
    assert max(sizes.answers) < 4 * FETCH
    assert not sizes.given_up


@pytest.mark.parametrize("parser", ["fast", "plain"])
def test_an_answer_that_grows_far_too_large_is_given_up_and_asked_for_in_pieces(
    drive: Drive, server: Server, stream: str, sizes: Sizes, parser: str
) -> None:
    """Nothing told that large rows would come in the middle of a stream."""
    wanted = add(server, stream, 3_000, 1) + add(server, stream, 300, LARGE) + add(server, stream, 100, 1)
    rows = drive(streams=stream, parser=parser).drain()
    assert ids(rows) == sorted(wanted)
    assert once_each(rows)
    assert sizes.given_up
    assert max(sizes.answers) <= ROOM * FETCH + (1 << 20)


def test_short_ranges_that_become_large_are_given_up_together_and_read_one_by_one(
    drive: Drive, server: Server, prefix: str, sizes: Sizes
) -> None:
    wanted: list[str] = []
    for number in range(5):
        wanted += add(server, f"{prefix}-{number}", 5, 1) + add(server, f"{prefix}-{number}", 100, LARGE)
    rows = drive(streamsPattern=f"{prefix}-*").drain()
    assert ids(rows) == sorted(wanted)
    assert once_each(rows)
    assert sizes.given_up
    assert max(sizes.answers) <= ROOM * FETCH + (1 << 20)


def test_one_row_larger_than_any_answer_may_be_is_read(drive: Drive, server: Server, stream: str, sizes: Sizes) -> None:
    wanted = add(server, stream, 250, 1) + add(server, stream, 2, 2 * ROOM * FETCH) + add(server, stream, 250, 1)
    assert ids(drive(streams=stream).drain()) == sorted(wanted)


def test_a_driver_is_told_of_many_streams_with_large_rows_a_few_at_a_time(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{prefix}-{number}" for number in range(400)]
    for name in names:
        add(server, name, 1, LARGE)
    address = Address(server.url, 2_000, 2_000)
    link = address.server().sync_link()
    asked: list[int] = []
    pipe = link.pipe

    def weighed(calls: Any) -> list[Any]:
        found = pipe(calls)
        asked.append(len(repr(found)))
        return found

    monkeypatch.setattr(link, "pipe", weighed)
    assert Arrivals(address, link).wait(dict.fromkeys(names, "0-0"), 5_000) == set(names)
    assert len(looks(link, dict.fromkeys(names, "0-0"))) == 400
    assert max(asked) < 2 * ANSWER_BYTES
    link.close()


@pytest.mark.parametrize("small", [0, 40], ids=["all large", "large behind small"])
def test_a_task_of_a_group_asks_for_little_until_it_knows_how_large_messages_are(
    server: Server, stream: str, sizes: Sizes, small: int
) -> None:
    pipe = server.sync().pipeline(transaction=False)
    for number in range(small + 60):
        pipe.xadd(stream, {"large": b"x" * (10 if number < small else LARGE * 10)})
    added = [id_.decode() for id_ in pipe.execute()]
    settings = SourceSettings.of({"url": server.url, "streams": stream, "fetchbytes": str(FETCH)}, streaming=True)
    reader = HeldReader(settings, DEFAULT)
    assert [
        id_ for rows in reader.read(Held([(stream, added)], "owner")) for id_ in rows.column("id").to_pylist()
    ] == added
    assert max(sizes.answers) <= FETCH * ROOM
