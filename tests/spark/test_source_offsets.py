"""Offsets, admission and starting points: the reader as Spark drives it, on real servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.offsets import Offset, Position, read_offset
from tests.spark.querying import Driven, fill, ids, once_each
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.servers("redis8", "valkey9", "redis6")

Drive = Callable[..., Driven]


@pytest.fixture
def drive(server: Server) -> Iterator[Drive]:
    begun: list[Driven] = []

    def begin(**options: Any) -> Driven:
        begun.append(Driven(server, **options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_an_offset_is_written_the_same_way_whatever_order_it_was_made_in() -> None:
    one = Offset({"b": Position("2-0", 2), "a": Position("1-0", None, lost=3)})
    other = Offset({"a": Position("1-0", None, lost=3), "b": Position("2-0", 2)})
    told = json.dumps(one.as_json())
    assert told == json.dumps(other.as_json())
    assert json.dumps(read_offset(json.loads(told)).as_json()) == told


def test_an_offset_of_another_source_is_refused_with_a_word_about_the_checkpoint() -> None:
    with pytest.raises(ConfigError, match="new checkpoint"):
        read_offset({"orders": 7})


def test_a_query_that_has_read_everything_comes_to_rest(drive: Drive, server: Server, prefix: str) -> None:
    names = [f"{prefix}-{letter}" for letter in "cab"]
    for name in names:
        fill(server, name, 5)
    query = drive(streams=",".join(names), startingOffsets="earliest")
    assert len(query.drain()) == 15
    assert query.plan() is None


def test_latest_is_pinned_by_an_empty_first_batch(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 5)
    query = drive(streams=stream)
    assert query.offset["pin"] is True
    assert query.step() == []
    late = fill(server, stream, 3)
    query.again(streams=stream)  # restarted: the pinned offset counts, not the latest of now
    assert ids(query.drain()) == late


def test_a_limit_is_exact_and_small_backlogs_go_first(drive: Drive, server: Server, prefix: str) -> None:
    hot, cold = f"{prefix}-hot", f"{prefix}-cold"
    fill(server, hot, 500), fill(server, cold, 7)
    query = drive(streams=f"{hot},{cold}", startingOffsets="earliest", maxOffsetsPerTrigger=100)
    first = query.step()
    assert first is not None
    assert len(first) == 100
    assert sum(stream == cold for stream, _ in first) == 7
    rest = query.drain()
    assert len(rest) == 407
    assert once_each(first + rest)


def test_the_count_is_exact_again_at_the_end(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 50)
    query = drive(streams=stream, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    query.drain()
    expected = None if server.key == "redis6" else 50
    assert query.offset["streams"][stream]["n"] == expected


def test_available_now_ends_where_the_stream_ended_at_its_start(drive: Drive, server: Server, stream: str) -> None:
    before = fill(server, stream, 30)
    query = drive(streams=stream, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    query.reader.prepareForTriggerAvailableNow()
    fill(server, stream, 30)
    assert ids(query.drain()) == sorted(before)


def test_keys_that_appear_later_are_read_from_their_beginning(drive: Drive, server: Server, prefix: str) -> None:
    fill(server, f"{prefix}-a", 3)
    query = drive(streamsPattern=f"{prefix}-*", patternInterval="10ms")
    assert query.drain() == []
    late = fill(server, f"{prefix}-b", 4)
    rows = wait_until_sync(lambda: query.drain(), what="the late key's rows")
    assert sorted(rows) == [(f"{prefix}-b", id_) for id_ in sorted(late)]


def test_a_pattern_that_finds_nothing_yet_is_no_error(drive: Drive, server: Server, prefix: str) -> None:
    query = drive(streamsPattern=f"{prefix}-*", patternInterval="10ms", startingOffsets="earliest")
    assert query.drain() == []
    fill(server, f"{prefix}-a", 2)
    assert len(wait_until_sync(lambda: query.drain(), what="rows")) == 2


def test_a_timestamp_starts_with_the_first_message_of_that_time(drive: Drive, server: Server, stream: str) -> None:
    client = server.sync()
    for ms, number in ((1000, 0), (1000, 1), (2000, 0), (3000, 0)):
        client.xadd(stream, {"at": ms}, id=f"{ms}-{number}")
    query = drive(streams=stream, startingTimestamp="1970-01-01T00:00:02Z")
    assert ids(query.drain()) == ["2000-0", "3000-0"]


def test_a_timestamp_in_the_future_is_refused(drive: Drive, stream: str) -> None:
    with pytest.raises(ConfigError, match="future"):
        drive(streams=stream, startingTimestamp="2200-01-01T00:00:00Z")


def test_ids_mean_after_this_id(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 5)
    query = drive(streams=stream, startingOffsets=json.dumps({stream: added[1]}))
    assert ids(query.drain()) == sorted(added[2:])


def test_a_span_bounds_the_time_of_a_batch(drive: Drive, server: Server, stream: str) -> None:
    client = server.sync()
    for ms in (1000, 1500, 2500, 9000):
        client.xadd(stream, {"at": ms}, id=f"{ms}-0")
    query = drive(streams=stream, startingOffsets="earliest", maxSpanPerTrigger="1s")
    found = []
    while (rows := query.step()) is not None:
        found.append(ids(rows))
    assert found == [["1000-0", "1500-0"], ["2500-0"], ["9000-0"]]


def test_too_few_rows_wait_for_more_or_for_the_delay(drive: Drive, server: Server, stream: str) -> None:
    options = {"streams": stream, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    query = drive(**options, maxTriggerDelay="1h")
    fill(server, stream, 4)
    assert query.plan() is None
    fill(server, stream, 6)
    assert len(query.drain()) == 10
    fill(server, stream, 1)
    assert query.plan() is None
    query.again(**options, maxTriggerDelay="10ms")
    assert wait_until_sync(query.step, what="the delayed row")


def test_long_streams_are_split_at_ids_and_short_ones_packed(drive: Drive, server: Server, prefix: str) -> None:
    fill(server, f"{prefix}-long", 1000)
    for number in range(30):
        fill(server, f"{prefix}-{number}", 1)
    query = drive(streamsPattern=f"{prefix}-*", startingOffsets="earliest", maxRecordsPerPartition=100)
    planned = query.plan()
    assert planned is not None
    sizes = [len(query.read([part])) for part in planned[1]]
    assert sum(sizes) == 1030
    assert max(sizes) <= 100
    assert len(sizes) <= 12


def test_a_batch_is_the_same_after_a_restart(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 300)
    query = drive(streams=stream, startingOffsets="earliest", maxOffsetsPerTrigger=200)
    planned = query.plan()
    assert planned is not None
    first = query.read(planned[1])
    start = query.offset
    query.again(streams=stream, minPartitions=5)
    parts = list(query.reader.partitions(start, planned[0]))
    assert len(parts) == (4 if server.key == "redis6" else 5)  # which does not tell how many there are
    assert sorted(query.read(parts)) == sorted(first)


def test_progress_tells_where_the_streams_end(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 30)
    query = drive(streams=stream, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    query.step()
    told = query.reader.reportLatestOffset()
    assert told is not None
    assert told["streams"][stream]["id"] == added[-1]
