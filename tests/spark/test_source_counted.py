"""Losses that are counted instead: each once, with the batch that goes beyond it, and none in silence."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.spark.loss import DataLost
from tests.spark.querying import Driven, fill, ids, trim
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "valkey9")

Drive = Callable[..., Driven]


@pytest.fixture
def drive(server: Server, stream: str) -> Iterator[Drive]:
    begun: list[Driven] = []

    def begin(**options: Any) -> Driven:
        start = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        begun.append(Driven(server, **{"streams": stream, **start, **options}))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def rows_within(query: Driven, seconds: float) -> list[str]:
    """What batches bring in that time, and how many of them have no rows is bounded."""
    found, empty, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until:
        rows = query.step()
        found += rows or []
        empty += rows == []
    assert empty <= 1
    return ids(found)


@pytest.mark.parametrize("how", ["trimmed", "deleted"])
def test_a_loss_of_rows_that_are_held_back_is_counted_once_with_the_rest(
    drive: Drive, server: Server, stream: str, how: str
) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false", minOffsetsPerTrigger=5, maxTriggerDelay="300ms")
    query.step()
    added = fill(server, stream, 10)
    if how == "trimmed":
        trim(server, stream, 3)
    else:
        server.sync().xdel(stream, *added[:7])
    assert rows_within(query, 0.7) == added[7:]
    assert query.lost(stream) == ((7, 0) if how == "trimmed" else (0, 1))


def test_a_run_to_an_end_ends_though_entries_behind_its_end_were_trimmed(
    drive: Drive, server: Server, stream: str
) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.step() or []) == 5
    late = fill(server, stream, 10)
    trim(server, stream, 3)
    assert query.step() is None
    assert query.lost(stream) == (0, 0)  # the next run's business
    query.again(streams=stream, failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    assert ids(query.drain()) == late[7:]
    assert query.lost(stream) == (7, 0)


def test_a_loss_across_the_end_of_a_run_is_shared_with_the_next_one(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false")
    query.drain()
    fill(server, stream, 5)
    query.reader.prepareForTriggerAvailableNow()
    late = fill(server, stream, 10)
    trim(server, stream, 3)
    assert query.drain() == []
    assert query.lost(stream) == (5, 0)
    query.again(streams=stream, failOnDataLoss="false")
    assert ids(query.drain()) == late[7:]
    assert query.lost(stream) == (12, 0)


def test_a_loss_in_a_stream_that_has_to_wait_for_its_turn_is_counted_once(
    drive: Drive, server: Server, prefix: str
) -> None:
    names = [f"{prefix}-{letter}" for letter in "abc"]
    for name in names:
        fill(server, name, 5)
    options = {"streams": ",".join(names), "failOnDataLoss": "false"}
    query = drive(**options)
    query.drain()
    for name in names:
        fill(server, name, 10)
    trim(server, names[0], 1)
    query.again(**options, maxOffsetsPerTrigger=2)
    query.limit = query.reader.getDefaultReadLimit()
    first = [query.step() or [] for _ in range(2)]
    assert {stream for rows in first for stream, _ in rows} == set(names)  # each has had its turn
    assert len(query.drain()) == 17
    assert [query.lost(name) for name in names] == [(9, 0), (0, 0), (0, 0)]


def test_what_tasks_lost_is_written_down_while_another_loss_has_to_wait(
    drive: Drive, server: Server, stream: str
) -> None:
    fill(server, stream, 8)
    query = drive(failOnDataLoss="false", minOffsetsPerTrigger=8, maxTriggerDelay="300ms")
    query.drain()
    fill(server, stream, 10)
    planned = query.plan()
    assert planned is not None
    trim(server, stream, 6)  # under the tasks
    assert len(query.read(planned[1])) == 6
    query.offset = planned[0]
    late = fill(server, stream, 5)
    trim(server, stream, 3)  # of the next batch
    assert rows_within(query, 0.7) == late[2:]
    assert query.lost(stream) == (4 + 2, 0)


@pytest.mark.parametrize("earlier", [False, True], ids=["", "after an earlier loss"])
def test_what_a_batch_lost_before_it_is_replayed_is_counted(
    drive: Drive, server: Server, stream: str, earlier: bool
) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false")
    query.drain()
    if earlier:
        fill(server, stream, 10)
        trim(server, stream, 3)
        query.drain()
    before = query.lost(stream)[0]
    fill(server, stream, 10)
    planned, start = query.plan(), query.offset
    assert planned is not None
    fill(server, stream, 20)
    trim(server, stream, 24)  # four of the batch are left
    for _ in range(2):
        query.again(streams=stream, failOnDataLoss="false")
        assert len(query.read(list(query.reader.partitions(start, planned[0])))) == 4
    query.offset = planned[0]
    assert len(query.drain()) == 20
    assert query.lost(stream) == (before + 6, 0)


def test_a_replayed_batch_does_not_take_what_the_one_before_it_lost_for_its_own(
    drive: Drive, server: Server, stream: str
) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false")
    query.drain()
    for keep in (4, 3):  # each batch of ten is planned, loses rows while its driver is away, and is replayed
        fill(server, stream, 10)
        planned, start = query.plan(), query.offset
        assert planned is not None
        query.again(streams=stream, failOnDataLoss="false")
        trim(server, stream, keep)
        assert len(query.read(list(query.reader.partitions(start, planned[0])))) == keep
        query.offset = planned[0]
    query.drain()
    assert query.lost(stream) == (6 + 7, 0)


def test_a_batch_replayed_when_more_than_it_was_trimmed_counts_its_own_rows(
    drive: Drive, server: Server, stream: str
) -> None:
    fill(server, stream, 5)
    query = drive(failOnDataLoss="false")
    query.drain()
    fill(server, stream, 10)
    planned, start = query.plan(), query.offset
    assert planned is not None
    fill(server, stream, 20)
    trim(server, stream, 15)
    query.again(streams=stream, failOnDataLoss="false")
    assert query.read(list(query.reader.partitions(start, planned[0]))) == []
    query.offset = planned[0]
    assert len(query.drain()) == 15
    assert query.lost(stream) == (15, 0)


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_read_or_counted_as_lost(drive: Drive, server: Server, prefix: str, seed: int) -> None:
    """Streams are trimmed before a batch is planned, under its tasks, and before it is replayed."""
    chance, names = random.Random(seed), [f"{prefix}-{number}" for number in range(1 + seed % 3)]
    options: dict[str, Any] = {"streams": ",".join(names), "failOnDataLoss": "false", "minPartitions": 1 + seed % 2}
    options["maxOffsetsPerTrigger"] = chance.choice([2, 7, 30, 1000])
    added, read = {name: len(fill(server, name, 5)) for name in names}, Counter[str]()
    query = drive(**options)
    read.update(name for name, _ in query.drain())
    for _ in range(10):
        for name in names:
            added[name] += len(fill(server, name, chance.randrange(30)))
            if chance.random() < 0.4:
                trim(server, name, chance.randrange(25))
        if chance.random() < 0.2:
            query.reader.prepareForTriggerAvailableNow()
            added[names[0]] += len(fill(server, names[0], 5))
        if (planned := query.plan()) is None:
            continue
        end, parts = planned
        if chance.random() < 0.3:
            query.again(**options)
            trim(server, names[0], chance.randrange(25))
            parts = list(query.reader.partitions(query.offset, end))
        if chance.random() < 0.3:
            trim(server, names[-1], chance.randrange(25))
        read.update(name for name, _ in query.read(parts))
        query.offset = end
    query.reader.prepareForTriggerAvailableNow()
    read.update(name for name, _ in query.drain())
    assert {name: read[name] + query.lost(name)[0] for name in names} == added
    assert not any(query.lost(name)[1] for name in names)


# ── a stream made again, where the count is not known ────────────────────────────────────────────────

STARTS: dict[str, dict[str, str]] = {
    "an entry": {"startingOffsets": '{"STREAM": "2000-0"}', "maxOffsetsPerTrigger": "3"},
    "between entries": {"startingOffsets": '{"STREAM": "2500-0"}', "maxOffsetsPerTrigger": "3"},
    "a time": {"startingTimestamp": "2500", "maxOffsetsPerTrigger": "3"},
    "a span": {"startingOffsets": '{"STREAM": "2000-0"}', "maxSpanPerTrigger": "3s"},
}


@pytest.mark.parametrize("read", [False, True], ids=["at the start", "after a batch"])
@pytest.mark.parametrize("start", STARTS)
def test_a_key_made_again_is_noticed_after_a_start_by_id_or_time(
    drive: Drive, server: Server, stream: str, start: str, read: bool
) -> None:
    client = server.sync()
    for second in range(1, 11):
        client.xadd(stream, {"a": second}, id=f"{second}000-0")
    query = drive(**{word: text.replace("STREAM", stream) for word, text in STARTS[start].items()})
    if "startingTimestamp" in STARTS[start]:
        assert query.step() == []  # pins the start
    if read:
        assert len(query.step() or []) in (3, 4)
    client.delete(stream)
    fill(server, stream, 4)
    with pytest.raises(DataLost) as told:
        query.plan()
    assert told.value.kind == "rewound"


def test_an_id_before_all_entries_is_no_loss_unless_something_was_removed(
    drive: Drive, server: Server, stream: str
) -> None:
    added = fill(server, stream, 5)
    start = json.dumps({stream: "5-0"})
    assert ids(drive(startingOffsets=start).drain()) == added
    trim(server, stream, 3)
    with pytest.raises(DataLost, match="unknown"):
        drive(startingOffsets=start).drain()
    counting = drive(startingOffsets=start, failOnDataLoss="false")
    assert ids(counting.drain()) == added[2:]
    assert counting.lost(stream) == (0, 1)
