"""Data loss: found by the rules of loss.py, under a query and under a running task; fatal, or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.spark.loss import DataLost
from headrace.spark.schema import DEFAULT
from headrace.spark.source import BatchReader
from headrace.spark.source_options import SourceSettings
from tests.spark.querying import Driven, fill, ids, once_each, trim
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "valkey9")

Drive = Callable[..., Driven]


@pytest.fixture
def drive(server: Server, stream: str) -> Iterator[Drive]:
    begun: list[Driven] = []

    def begin(**options: Any) -> Driven:
        begun.append(Driven(server, **{"streams": stream, "startingOffsets": "earliest", **options}))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_a_stream_trimmed_beyond_the_query_fails_with_the_number_of_rows(
    drive: Drive, server: Server, stream: str
) -> None:
    query = drive()
    fill(server, stream, 10)
    query.drain()
    fill(server, stream, 10)
    trim(server, stream, 4)
    with pytest.raises(DataLost, match="6 rows are lost") as told:
        query.plan()
    assert (told.value.stream, told.value.kind, told.value.lost) == (stream, "trimmed", 6)


def test_the_same_is_counted_where_that_is_wanted(drive: Drive, server: Server, stream: str) -> None:
    query = drive(failOnDataLoss="false")
    fill(server, stream, 10)
    query.drain()
    late = fill(server, stream, 10)
    trim(server, stream, 4)
    assert ids(query.drain()) == sorted(late[6:])
    assert query.lost(stream) == (6, 0)
    more = fill(server, stream, 1)
    assert ids(query.drain()) == more
    assert query.lost(stream) == (6, 0)  # once


def test_trimming_what_was_read_loses_nothing(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 10)
    query.drain()
    trim(server, stream, 0)
    assert query.plan() is None
    late = fill(server, stream, 3)
    assert ids(query.drain()) == late


def test_maxlen_zero_loses_every_row_and_is_noticed(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 3)
    query.drain()
    fill(server, stream, 5, maxlen=0, approximate=False)
    with pytest.raises(DataLost, match="5 rows are lost"):
        query.plan()
    query.again(streams=stream, failOnDataLoss="false")
    assert query.drain() == []
    assert query.lost(stream) == (5, 0)
    late = fill(server, stream, 2)
    assert ids(query.drain()) == late


def test_a_deleted_key_is_noticed_without_any_news(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 3)
    query.drain()
    server.sync().delete(stream)
    with pytest.raises(DataLost, match="was deleted"):
        query.plan()


def test_a_deleted_key_of_a_pattern_is_noticed_by_available_now(server: Server, prefix: str) -> None:
    for letter in "ab":
        fill(server, f"{prefix}-{letter}", 3)
    query = Driven(server, streamsPattern=f"{prefix}-*", startingOffsets="earliest")
    assert len(query.drain()) == 6
    server.sync().delete(f"{prefix}-a")
    query.again(streamsPattern=f"{prefix}-*")
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match="was deleted"):
        query.plan()
    query.again(streamsPattern=f"{prefix}-*", failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert query.drain() == []
    assert query.lost(f"{prefix}-a") == (0, 1)
    query.close()


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_a_key_deleted_and_made_again_is_rewound(drive: Drive, server: Server, stream: str) -> None:
    client = server.sync()
    query = drive()
    for number in range(3):
        client.xadd(stream, {"n": number}, id=f"10-{number + 1}")
    query.drain()
    client.delete(stream)
    client.xadd(stream, {"n": 9}, id="5-1")
    with pytest.raises(DataLost) as told:
        query.plan()
    assert told.value.kind == "rewound"
    query.again(streams=stream, failOnDataLoss="false")
    assert query.drain() == [(stream, "5-1")]
    client.xadd(stream, {"n": 10}, id="6-1")
    assert query.drain() == [(stream, "6-1")]
    assert query.lost(stream) == (0, 1)


def test_a_key_made_again_with_higher_ids_is_rewound_too(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 5)
    query.drain()
    server.sync().delete(stream)
    fill(server, stream, 3)
    with pytest.raises(DataLost, match="was deleted"):
        query.plan()


def test_a_rewound_batch_reads_the_same_after_a_restart(drive: Drive, server: Server, stream: str) -> None:
    client = server.sync()
    query = drive()
    client.xadd(stream, {"n": 1}, id="10-1")
    query.drain()
    client.delete(stream)
    client.xadd(stream, {"n": 2}, id="5-1")
    query.again(streams=stream, failOnDataLoss="false")
    planned = query.plan()
    assert planned is not None
    start = query.offset
    client.xadd(stream, {"n": 3}, id="20-1")  # now nothing tells any more that it was rewound, but the offset does
    client.xadd(stream, {"n": 3}, id="20-2")
    query.again(streams=stream, failOnDataLoss="false")
    assert query.read(list(query.reader.partitions(start, planned[0]))) == [(stream, "5-1")]


def test_unread_entries_deleted_singly_are_a_loss(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 3)
    query.drain()
    late = fill(server, stream, 3)
    server.sync().xdel(stream, late[1])
    with pytest.raises(DataLost) as told:
        query.plan()
    assert told.value.kind == "deleted"
    query.again(streams=stream, failOnDataLoss="false")
    assert ids(query.drain()) == [late[0], late[2]]
    assert query.lost(stream) == (0, 1)


def test_read_entries_deleted_singly_are_none(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    early = fill(server, stream, 3)
    query.drain()
    server.sync().xdel(stream, early[0], early[2])
    late = fill(server, stream, 2)
    assert ids(query.drain()) == late


def test_deletions_before_an_earliest_start_are_none(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 10)
    server.sync().xdel(stream, added[4])
    trim(server, stream, 8)  # of nine: the first goes
    query = drive(maxOffsetsPerTrigger=3)
    assert ids(query.drain()) == [*added[1:4], *added[5:]]
    late = fill(server, stream, 2)
    assert ids(query.drain()) == late


def test_a_stream_trimmed_under_a_running_task_fails_it(drive: Drive, server: Server, stream: str) -> None:
    """Without a witness 35,000 of 50,000 rows vanished in silence here."""
    fill(server, stream, 3000)
    query = drive()
    planned = query.plan()
    assert planned is not None
    reading = (batch for part in planned[1] for batch in query.reader.read(part))
    first = next(reading)
    assert first.num_rows < 3000
    trim(server, stream, 500)
    next(reading)  # was asked for before
    with pytest.raises(DataLost):
        list(reading)


def test_trimming_rows_that_the_task_has_read_does_not_fail_it(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 3000)
    query = drive()
    planned = query.plan()
    assert planned is not None
    reading = (batch for part in planned[1] for batch in query.reader.read(part))
    rows = next(reading).num_rows
    trim(server, stream, 3000 - rows + 1)
    assert rows + sum(batch.num_rows for batch in reading) == 3000


def test_a_stream_trimmed_between_plan_and_task_fails_it(drive: Drive, server: Server, stream: str) -> None:
    for rows in (50, 1000):  # a short range is read together with others, a long one by itself
        fill(server, stream, rows)
        query = drive()
        planned = query.plan()
        assert planned is not None
        trim(server, stream, 5)
        with pytest.raises(DataLost):
            query.read(planned[1])


def test_a_task_goes_on_with_what_is_left_where_that_is_wanted(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 1000)
    query = drive(failOnDataLoss="false")
    planned = query.plan()
    assert planned is not None
    trim(server, stream, 100)
    assert ids(query.read(planned[1])) == sorted(added[-100:])


def commit(query: Driven, planned: Any) -> None:
    """The batch is done; whatever was found meanwhile is written down with the next one."""
    query.offset = planned[0]
    query.drain()


@pytest.mark.parametrize("tries", [1, 3], ids=["", "tasks run again"])
@pytest.mark.parametrize("rows", [50, 1000], ids=["short", "long"])
def test_what_tasks_lose_while_they_read_is_counted_once(
    drive: Drive, server: Server, stream: str, rows: int, tries: int
) -> None:
    query = drive(failOnDataLoss="false", minPartitions=4)
    fill(server, stream, 5)
    query.drain()
    added = fill(server, stream, rows)
    planned = query.plan()
    assert planned is not None
    trim(server, stream, 10)
    for _ in range(tries):
        assert ids(query.read(planned[1])) == sorted(added[-10:])
    commit(query, planned)
    assert query.lost(stream) == (rows - 10, 0)
    commit(query, (query.offset, []))
    assert query.lost(stream) == (rows - 10, 0)
    assert not list(server.sync().scan_iter(f"*{stream}*:hr:lost:*"))


def test_what_a_task_loses_in_the_middle_of_a_range_is_counted(drive: Drive, server: Server, stream: str) -> None:
    query = drive(failOnDataLoss="false")
    fill(server, stream, 5)
    query.drain()
    fill(server, stream, 3000)
    planned = query.plan()
    assert planned is not None
    reading = (batch for part in planned[1] for batch in query.reader.read(part))
    given = next(reading).num_rows
    trim(server, stream, 500)
    given += sum(batch.num_rows for batch in reading)
    assert given < 3000
    commit(query, planned)
    assert query.lost(stream) == (3000 - given, 0)


def test_what_a_task_loses_at_the_first_start_is_counted_as_unknown(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 1000)
    query = drive(failOnDataLoss="false")
    planned = query.plan()
    assert planned is not None
    trim(server, stream, 100)
    query.read(planned[1])
    commit(query, planned)
    assert query.lost(stream) == (0, 1)


def test_a_count_that_cannot_be_written_does_not_fail_the_read(
    drive: Drive, server: Server, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = drive(failOnDataLoss="false")
    fill(server, stream, 5)
    query.drain()
    added = fill(server, stream, 50)
    planned = query.plan()
    assert planned is not None
    trim(server, stream, 10)
    for share in planned[1]:
        server.sync().set("{" + stream + "}:hr:lost:" + share.batch, "somebody else's")  # type: ignore[attr-defined]
    assert ids(query.read(planned[1])) == sorted(added[-10:])
    assert "spark.lost.uncounted" in caplog.text


def test_a_batch_read_counts_under_a_name_of_its_own(server: Server, stream: str) -> None:
    fill(server, stream, 5)
    (start,) = [id_.decode() for id_, _ in server.sync().xrange(stream, count=1)]
    options = {"url": server.url, "streams": stream, "failondataloss": "false"}
    settings = SourceSettings.of({**options, "startingoffsets": f'{{"{stream}": "{start}"}}'}, streaming=False)
    reader = BatchReader(settings, DEFAULT)
    (part,) = reader.partitions()
    trim(server, stream, 2)
    assert sum(batch.num_rows for batch in reader.read(part)) == 2
    (key,) = server.sync().scan_iter(f"*{stream}*:hr:lost:once-*")
    assert server.sync().hvals(key) == [b"0 1"]
    assert server.sync().ttl(key) > 0


def test_splits_are_guarded_too(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 1000)
    query = drive(minPartitions=4)
    planned = query.plan()
    assert planned is not None
    assert len(planned[1]) == 4
    trim(server, stream, 600)
    assert len(query.read(planned[1][2:])) == 500
    for part in planned[1][:2]:
        with pytest.raises(DataLost):
            query.read([part])


@pytest.mark.servers("redis6")
def test_an_old_server_cannot_say_how_many(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 10)
    query.drain()
    fill(server, stream, 10)
    trim(server, stream, 4)
    with pytest.raises(DataLost, match="unknown"):
        query.plan()
    query.again(streams=stream, failOnDataLoss="false")
    rows = query.drain()
    assert len(rows) == 4
    assert once_each(rows)
    assert query.lost(stream) == (0, 1)


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_a_batch_replayed_after_a_trim_fails_instead_of_shrinking(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 10)
    query = drive()
    query.drain()
    fill(server, stream, 50)
    planned = query.plan()
    assert planned is not None
    start = query.offset
    trim(server, stream, 10)
    query.again(streams=stream)
    with pytest.raises(DataLost):
        query.reader.partitions(start, planned[0])
