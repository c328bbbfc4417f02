"""Data loss: found by the rules of loss.py, under a query and under a running task; fatal, or counted."""

from __future__ import annotations

import random
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


def test_rows_that_were_counted_as_lost_are_behind_a_batch_that_its_limit_ends(
    drive: Drive, server: Server, stream: str
) -> None:
    query = drive(failOnDataLoss="false", maxOffsetsPerTrigger=5)
    fill(server, stream, 10)
    query.drain()
    fill(server, stream, 20)
    trim(server, stream, 12)
    assert len(query.step() or []) == 5
    assert query.lost(stream) == (8, 0)
    assert query.offset["streams"][stream]["n"] == 10 + 8 + 5
    trim(server, stream, 3)  # of the seven that are left
    assert len(query.drain()) == 3
    assert query.lost(stream) == (12, 0)


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


@pytest.mark.servers("redis8", "valkey9", "redis6")
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("unread", [0, 4])
def test_a_stream_whose_last_id_was_set_forward_is_the_same_stream(
    drive: Drive, server: Server, stream: str, fails: str, unread: int
) -> None:
    """The position moves to that id, and that no entry has it proves nothing."""
    client = server.sync()
    query = drive(failOnDataLoss=fails)
    fill(server, stream, 3)
    query.drain()
    more = fill(server, stream, unread)
    for ahead in (1, 2):
        last = int(client.xinfo_stream(stream)["last-generated-id"].partition(b"-")[0])
        client.execute_command("XSETID", stream, f"{last + 3_600_000}-0")
        assert ids(query.drain()) == sorted(more)
        more = [client.xadd(stream, {"n": ahead}, id=f"{last + 3_600_001}-0").decode()]
        assert ids(query.drain()) == more
        assert query.lost(stream) == (0, 0)
        more = []


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_a_start_at_an_id_that_was_set_is_no_loss(server: Server, stream: str) -> None:
    client = server.sync()
    fill(server, stream, 3)
    last = int(client.xinfo_stream(stream)["last-generated-id"].partition(b"-")[0]) + 3_600_000
    client.execute_command("XSETID", stream, f"{last}-0")
    query = Driven(server, streams=stream)
    query.drain()  # pinned at latest
    (late,) = fill(server, stream, 1, id=f"{last + 1}-0")
    assert ids(query.drain()) == [late]
    query.close()


def test_deletions_behind_an_entry_that_was_deleted_unread_are_noticed_too(
    drive: Drive, server: Server, stream: str
) -> None:
    """An id that an entry had is no such id: the position there keeps its rules."""
    query = drive(failOnDataLoss="false")
    fill(server, stream, 3)
    query.drain()
    (end,) = fill(server, stream, 1)
    server.sync().xdel(stream, end)
    query.drain()
    assert query.offset["streams"][stream] == {"id": end, "n": 4, "unknown": 1}
    late = fill(server, stream, 5)
    server.sync().xdel(stream, late[2])
    assert len(query.drain()) == 4
    assert query.lost(stream) == (0, 2)


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


# ── single entries, deleted between the plan and its task ────────────────────────────────────────────

PLANS: dict[str, dict[str, Any]] = {
    "short": {"rows": 50},
    "long": {"rows": 1_000},
    "splits": {"rows": 1_000, "minPartitions": 4},
    "limited": {"rows": 1_000, "maxOffsetsPerTrigger": 600},
    "packed splits": {"rows": 300, "maxRecordsPerPartition": 40},
}


@pytest.mark.parametrize("known", [True, False], ids=["", "first start"])
@pytest.mark.parametrize("plan", PLANS)
def test_entries_deleted_singly_between_plan_and_task_fail_it(
    drive: Drive, server: Server, stream: str, plan: str, known: bool
) -> None:
    """The entry at the position is there, and the next look would find the deletion behind it: only the count tells."""
    query = drive(**{word: value for word, value in PLANS[plan].items() if word != "rows"})
    if known:
        fill(server, stream, 5)
        query.drain()
    added = fill(server, stream, PLANS[plan]["rows"])
    planned = query.plan()
    assert planned is not None
    server.sync().xdel(stream, added[20], added[40])
    with pytest.raises(DataLost) as told:
        query.read(planned[1])
    assert (told.value.stream, told.value.kind) == (stream, "deleted")
    assert told.value.lost == (1 if plan == "packed splits" else 2)


@pytest.mark.parametrize("tries", [1, 3], ids=["", "tasks run again"])
@pytest.mark.parametrize("plan", PLANS)
def test_entries_deleted_singly_between_plan_and_task_are_counted_once(
    drive: Drive, server: Server, stream: str, plan: str, tries: int
) -> None:
    more = {word: value for word, value in PLANS[plan].items() if word != "rows"}
    query = drive(failOnDataLoss="false", **more)
    added = fill(server, stream, PLANS[plan]["rows"])
    planned = query.plan()
    assert planned is not None
    before = set(ids(query.read(planned[1])))
    server.sync().xdel(stream, added[20], added[40])
    for _ in range(tries):
        assert set(ids(query.read(planned[1]))) == before - {added[20], added[40]}
    commit(query, planned)
    assert query.lost(stream) == (2, 0)


def test_entries_deleted_singly_under_a_running_task_fail_it(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 3_000)
    query = drive()
    planned = query.plan()
    assert planned is not None
    reading = (batch for part in planned[1] for batch in query.reader.read(part))
    next(reading)
    server.sync().xdel(stream, added[0], added[2_000], added[2_999])  # the first was read before
    with pytest.raises(DataLost, match="2 rows are lost"):
        list(reading)


def test_entries_deleted_under_a_batch_read_fail_it(server: Server, stream: str) -> None:
    added = fill(server, stream, 30)
    reader = BatchReader(SourceSettings.of({"url": server.url, "streams": stream}, streaming=False), DEFAULT)
    (part,) = reader.partitions()
    server.sync().xdel(stream, added[3])
    with pytest.raises(DataLost, match="1 rows are lost"):
        list(reader.read(part))


def test_available_now_counts_only_up_to_its_end(drive: Drive, server: Server, stream: str) -> None:
    query = drive()
    fill(server, stream, 5)
    query.drain()
    added = fill(server, stream, 50)
    query.reader.prepareForTriggerAvailableNow()
    late = fill(server, stream, 50)
    planned = query.plan()
    assert planned is not None
    server.sync().xdel(stream, late[7])  # the next run's business
    assert ids(query.read(planned[1])) == sorted(added)
    server.sync().xdel(stream, added[7])
    with pytest.raises(DataLost, match="1 rows are lost"):
        query.read(planned[1])


@pytest.mark.servers("redis8", "valkey9", "redis6")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_before_the_plan_is_no_loss_to_a_task(
    drive: Drive, server: Server, stream: str, seed: int
) -> None:
    """Entries come, go singly and are trimmed, read and unread ones; tasks miss none of what was there."""
    chance = random.Random(seed)
    client = server.sync()
    options: dict[str, Any] = {
        "maxOffsetsPerTrigger": chance.choice([7, 40, 10_000]),
        "minPartitions": chance.choice([1, 3]),
        "startingOffsets": chance.choice(["earliest", "latest", f'{{"{stream}": "5-0"}}']),
    }
    if chance.random() < 0.3:
        options["maxSpanPerTrigger"] = "5ms"
    fill(server, stream, chance.randrange(30))
    query = drive(failOnDataLoss="false", **options)
    query.step()  # pins the start
    for _ in range(12):
        fill(server, stream, chance.randrange(60))
        if seed % 3 == 0 and chance.random() < 0.5:
            query.reader.prepareForTriggerAvailableNow()
            fill(server, stream, chance.randrange(10))
        there = [id_.decode() for id_, _ in client.xrange(stream)]
        if chance.random() < 0.5 and there:
            client.xdel(stream, *chance.sample(there, chance.randrange(1, 2 + len(there) // 2)))
        if chance.random() < 0.3:
            trim(server, stream, chance.randrange(1 + len(there)))
        planned = query.plan()
        if planned is None:
            continue
        parts = [part for share in planned[1] for part in share.ranges]  # type: ignore[attr-defined]
        wanted = [id_.decode() for part in parts for id_, _ in client.xrange(part.key, f"({part.start.id}", part.upto)]
        fill(server, stream, chance.randrange(5))
        assert ids(query.read(planned[1])) == sorted(wanted)
        assert not list(client.scan_iter(f"*{stream}*:hr:lost:*"))
        query.offset = planned[0]


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
