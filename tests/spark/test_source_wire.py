"""Answers parsed with numpy and with hiredis say the same; connections that break are not noticed in the rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from headrace.errors import ConfigError
from headrace.spark.offsets import START
from headrace.spark.options import Address
from headrace.spark.plan import Range, pack, water_fill
from headrace.spark.rows import Columns
from headrace.spark.schema import DEFAULT, layout_of
from headrace.spark.vector import Doubt, Fast, parse
from headrace.spark.wire import Reply, Wire
from tests.spark.querying import Driven, fill, ids
from tests.support.servers import Server

Entry = list[Any]


def answer(entries: list[Entry]) -> Reply:
    """What a server would send for XRANGE."""
    out = [b"*%d\r\n" % len(entries)]
    for id_, words in entries:
        out.append(b"*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(id_), id_, len(words)))
        out += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    data = b"".join(out)
    return Reply(bytearray(data + b"what an earlier answer left"), len(data), [("XRANGE",)])


def some_entries(chance: random.Random, binary: float, ragged: float) -> list[Entry]:
    def word() -> bytes:
        if chance.random() < binary:
            return chance.choice([b"\r\n", b"$3\r\nabc", b"\xff\x00", b"*2", b"\n", b""])
        return b"w" * chance.randrange(200)

    entries = []
    for number in range(chance.randrange(1, 60)):
        width = chance.randrange(5) if chance.random() < ragged else 3
        words = [part for at in range(width) for part in (b"name%d" % at, word())]
        entries.append([b"%d-%d" % (chance.choice([5, 1731700000000]) + number, number), words])
    return entries


@pytest.mark.parametrize(("binary", "ragged"), [(0, 0), (0, 0.3), (0.01, 0), (0.02, 0.3), (0.5, 0.5)])
def test_both_parsers_make_the_same_batches(binary: float, ragged: float) -> None:
    chance = random.Random(7)
    columns = Columns(layout_of(DEFAULT))
    fast = Fast(columns)
    parsed = 0
    for _ in range(40):
        entries = some_entries(chance, binary, ragged)
        reply = answer(entries)
        assert reply.values() == [entries]
        try:
            chunk = parse(reply)
        except Doubt:
            continue
        parsed += 1
        assert fast.batch("k", chunk).equals(columns.batch([("k", entries)]))
        assert chunk.id_at(chunk.count - 1) == entries[-1][0].decode()
        if chunk.count > 1:
            assert fast.batch("k", chunk.without_first()).equals(columns.batch([("k", entries[1:])]))
    assert parsed == 40 or binary


@pytest.mark.parametrize(
    "data",
    [
        b"-ERR no\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$3\r\nabc\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$2\r\n\r\n\r\n",
        b"*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$9\r\nb\r\n",
        b"*1\r\n*3\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*99999999999999999999\r\n",
        b"\n",
        b"",
    ],
)
def test_anything_odd_is_a_doubt(data: bytes) -> None:
    with pytest.raises(Doubt):
        parse(Reply(bytearray(data), len(data), [("XRANGE",)]))


NUMBERS = [b"", b"-", b"-1", b"0", b"1", b"2", b"5", b"300", b"-9", b"9" * 10, b"9" * 19, b"9" * 25, b"9" * 5_000, b"x"]
HEADERS = [mark + number for mark in (b"*", b"$", b"-", b"+", b":", b"") for number in NUMBERS]
TOKENS = (b"\r\n", b"\n", b"\r", b"*", b"$", b":", b"-", b"+", b"2", b"9" * 21, b"w", b"\xff")
NOWHERE = Wire(Address("redis://localhost:1", 1_000, 1_000))  # parses answers; nothing is asked for


def read_both_ways(entries: list[Entry]) -> None:
    columns = Columns(layout_of(DEFAULT))
    fast = Fast(columns)
    chunk = fast.decode(NOWHERE, answer(entries))
    assert fast.batch("k", chunk).equals(columns.batch([("k", entries)]))


def plain_entries(count: int, width: int = 1) -> list[Entry]:
    return [[b"1731700000000-%d" % at, [b"name", b"w" * 40] * width] for at in range(count)]


@pytest.mark.parametrize("at", [0, 150, 299])
def test_a_value_that_looks_like_a_header_is_a_value(at: int) -> None:
    """One crafted message must not end every task that reads it: a number that no machine word holds did."""
    for header in HEADERS:
        for lines in range(6):  # so many stand before it: it comes to stand wherever an entry's header is looked for
            entries = plain_entries(300)
            entries[at][1][1] = b"x\r\n" * lines + header + b"\r\nend"
            read_both_ways(entries)


@given(st.lists(st.lists(st.sampled_from(TOKENS), max_size=12).map(b"".join), min_size=1, max_size=8), st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_the_words_of_messages_are_both_parsers_read_the_same(words: list[bytes], data: st.DataObject) -> None:
    entries = plain_entries(150, width=2)
    for word in words:
        entries[data.draw(st.integers(0, 149))][1][data.draw(st.sampled_from((1, 3)))] = word
    read_both_ways(entries)


def test_a_header_of_the_server_that_no_machine_word_holds_is_a_doubt() -> None:
    for digits in (b"9" * 10, b"9" * 20, b"9" * 5_000):
        for data in (b"*%b\r\n*2\r\n" % digits, b"*1\r\n*2\r\n$3\r\n1-0\r\n*%b\r\n" % digits):
            padded = data + b"$1\r\na\r\n" * 3
            with pytest.raises(Doubt):
                parse(Reply(bytearray(padded), len(padded), [("XRANGE",)]))


def test_named_fields_are_the_same_both_ways() -> None:
    layout = layout_of(StructType([StructField("b", StringType()), StructField("a", BinaryType())]))
    columns = Columns(layout)
    for words in ([b"a", b"1", b"b", b"2"], [b"b", b"\xff", b"a", b"1"], [b"a", b"1"]):
        entries = [[b"1-%d" % number, words] for number in range(20)]
        assert Fast(columns).batch("k", parse(answer(entries))).equals(columns.batch([("k", entries)]))


def test_small_backlogs_go_first_and_the_sum_is_exact() -> None:
    shares = water_fill({"a": 1, "b": 10, "c": 1000, "d": 1000}, 100)
    assert shares == {"a": 1, "b": 10, "c": 44, "d": 45}
    assert water_fill({"a": 5, "b": 5}, 100) == {"a": 5, "b": 5}
    assert water_fill({}, 100) == {}


def test_streams_take_turns_where_a_limit_has_not_one_row_for_each() -> None:
    backlogs, served, after = {"a": 1, "b": 1000, "c": 1000, "d": 1000, "e": 7}, Counter[str](), ""
    for _ in range(5):
        shares = water_fill(backlogs, 2, after)
        assert sum(shares.values()) == 2
        served.update({key: rows for key, rows in shares.items() if rows})
        after = [key for key, rows in shares.items() if rows][-1]
    assert served == dict.fromkeys(backlogs, 2)


def test_tasks_are_even_and_no_larger_than_allowed() -> None:
    ranges = [Range(f"k{number:02}", START, "9-0", "1-0", 10) for number in range(20)]
    assert [len(share.ranges) for share in pack(ranges, 4, None)] == [5, 5, 5, 5]
    assert max(sum(part.rows for part in share.ranges) for share in pack(ranges, 1, 30)) == 30


# ── connections ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def drive() -> Iterator[Callable[..., Driven]]:
    begun: list[Driven] = []

    def begin(server: Server, **options: Any) -> Driven:
        begun.append(Driven(server, startingOffsets="earliest", **options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("parser", ["fast", "plain"])
def test_a_cut_connection_neither_doubles_nor_loses_rows(
    drive: Callable[..., Driven], server: Server, stream: str, parser: str
) -> None:
    added = fill(server, stream, 3000)
    query = drive(server, streams=stream, parser=parser, fetchBytes="20KB")
    planned = query.plan()
    assert planned is not None
    found: list[str] = []
    for part in planned[1]:
        for number, batch in enumerate(query.reader.read(part)):
            found += batch.column("id").to_pylist()
            if number % 4 == 0:
                server.sync().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert found == added


def test_rows_come_over_tls(drive: Callable[..., Driven], own_server: Any, tls_files: Any, stream: str) -> None:
    server = own_server("redis8", tls=tls_files)
    added = fill(server, stream, 1000)
    assert ids(drive(server, streams=stream).drain()) == sorted(added)


@pytest.mark.servers("redis8")
def test_large_entries_are_fetched_a_few_at_a_time(drive: Callable[..., Driven], server: Server, stream: str) -> None:
    for _ in range(60):
        server.sync().xadd(stream, {"blob": b"x" * 50_000})
    query = drive(server, streams=stream, fetchBytes="200KB")
    planned = query.plan()
    assert planned is not None
    batches = [batch for part in planned[1] for batch in query.reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < 1_500_000


@pytest.mark.servers("redis8")
def test_after_one_very_large_row_answers_that_are_kept_take_what_they_need(server: Server, stream: str) -> None:
    client = server.sync()
    client.xadd(stream, {"blob": b"x" * 20_000_000}, id="1-0")
    for number in range(2, 12):
        client.xadd(stream, {"blob": b"x" * 1_000}, id=f"{number}-0")
    wire = Wire(Address(server.url, 5_000, 5_000))

    def read(number: int) -> Reply:
        wire.send([("XRANGE", stream, f"{number}-0", f"{number}-0")])
        return wire.receive()

    assert read(1).size > 20_000_000
    assert len(read(2).data) > 20_000_000  # which nobody has: it is used again for one answer
    assert len(read(3).data) < 2_000_000  # and given back
    assert sum(len(kept.data) for kept in [read(number) for number in range(4, 12)]) < 10_000_000
    large = read(1)
    kept = [read(number) for number in range(2, 12)]
    assert large.size > 20_000_000
    assert sum(len(one.data) for one in kept[1:]) < 10_000_000
    wire.close()


def test_a_field_that_must_not_be_null_is_refused_and_an_own_column_is_not() -> None:
    own = [
        StructField(name, column.dataType, nullable=False) for name, column in zip(DEFAULT.names, DEFAULT, strict=True)
    ]
    assert layout_of(StructType(own)).own == tuple(DEFAULT.names)
    with pytest.raises(ConfigError, match="'amount' is NOT NULL: a message may lack it"):
        layout_of(StructType([*own, StructField("amount", StringType(), nullable=False)]))
