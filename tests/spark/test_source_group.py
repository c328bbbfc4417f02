"""Group mode: claimed by the driver, read by id, acked when committed, shared with plain workers."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import App, Delivery
from headrace.errors import ConfigError
from headrace.spark.group import GroupReader
from headrace.spark.held import Held
from headrace.spark.loss import DataLost
from headrace.spark.schema import DEFAULT
from headrace.spark.source_options import SourceSettings
from tests.spark.querying import fill, ids, once_each, trim
from tests.support.servers import Server
from tests.support.wait import wait_until, wait_until_sync

pytestmark = pytest.mark.servers("redis8", "valkey9", "redis6")

GROUP = "billing"


class Shared:
    """A group reader as Spark drives it."""

    def __init__(self, server: Server, **options: Any) -> None:
        texts = {"url": server.url, "mode": "group", "groupid": GROUP, "blockms": "20", "startingoffsets": "earliest"}
        texts |= {word.lower(): str(value) for word, value in options.items() if value is not None}
        self._texts = texts
        self._settings = SourceSettings.of(texts, streaming=True)
        self.reader = GroupReader(self._settings, DEFAULT)
        self.offset = self.reader.initialOffset()
        self.offset = self.latest()

    def latest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        return json.loads(json.dumps(found))

    @property
    def next(self) -> dict[str, Any]:
        """The offset after this one."""
        return {**self.offset, "seq": self.offset["seq"] + 1}

    def wait(self) -> dict[str, Any]:
        """The end of the next batch, when there is one."""
        return wait_until_sync(lambda: None if (end := self.latest()) == self.offset else end, 10, what="a batch")

    def read(self, end: dict[str, Any]) -> list[str]:
        found = []
        for part in self.reader.partitions(self.offset, end):
            copy = pickle.loads(pickle.dumps(self.reader))
            for batch in copy.read(part):
                found += batch.column("id").to_pylist()
        return sorted(found)

    def restart(self, **changed: Any) -> None:
        self.reader.stop()
        self._texts |= {word.lower(): str(value) for word, value in changed.items()}
        self._settings = SourceSettings.of(self._texts, streaming=True)
        self.reader = GroupReader(self._settings, DEFAULT)


@pytest.fixture
def share(server: Server, stream: str) -> Iterator[Callable[..., Shared]]:
    begun: list[Shared] = []

    def begin(**options: Any) -> Shared:
        begun.append(Shared(server, **{"streams": stream, **options}))
        return begun[-1]

    yield begin
    for one in begun:
        one.reader.stop()


def held(server: Server, stream: str) -> int:
    return int(server.sync().xpending(stream, GROUP)["pending"])


def test_a_batch_is_acked_when_the_next_one_is_asked_for(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    added = fill(server, stream, 30)
    query = share()
    end = query.latest()
    assert query.read(end) == sorted(added)
    assert held(server, stream) == 30
    query.offset = end
    assert query.latest() == end
    assert held(server, stream) == 0
    owners = [row["name"].decode() for row in server.sync().xinfo_consumers(stream, GROUP)]
    assert not [name for name in owners if name.endswith("-1")]


def test_a_replayed_batch_reads_the_same_rows_and_takes_no_others(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    added = fill(server, stream, 10)
    query = share()
    end = query.latest()
    fill(server, stream, 10)
    query.restart()
    assert query.latest() == end  # asked again before the batch was written down
    assert query.read(end) == sorted(added)


def test_messages_trimmed_under_a_batch_fail_it(share: Callable[..., Shared], server: Server, stream: str) -> None:
    fill(server, stream, 30)
    query = share()
    end = query.latest()
    trim(server, stream, 10)
    with pytest.raises(DataLost, match="20 rows are lost"):
        query.read(end)


def test_messages_trimmed_under_a_batch_are_counted_once_where_that_is_wanted(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    """Its tasks run again, and after a restart with other splits."""
    added = fill(server, stream, 250)
    query = share(failOnDataLoss="false")
    end = query.latest()
    trim(server, stream, 10)
    for splits in (1, 3, 3):
        query.restart(minPartitions=splits)
        assert query.read(end) == sorted(added[-10:])
    query.offset = end
    query.offset = query.latest()
    assert query.offset == {**end, "lost": {stream: 240}}  # written down without a message more
    assert query.read(query.offset) == []
    assert query.latest() == query.offset
    late = fill(server, stream, 3)
    end = query.wait()
    assert query.read(end) == late
    assert end["lost"] == {stream: 240}
    assert held(server, stream) == 3
    assert not list(server.sync().scan_iter(f"*{stream}*:hr:lost:*"))


def test_workers_and_spark_share_the_messages(share: Callable[..., Shared], server: Server, stream: str) -> None:
    added = fill(server, stream, 20)
    query = share(maxOffsetsPerTrigger=5)
    end = query.latest()
    ours = query.read(end)
    ((_, entries),) = server.sync().xreadgroup(GROUP, "worker", {stream: ">"}, count=100)
    theirs = [id_.decode() for id_, _ in entries]
    assert len(ours) == 5
    assert sorted(ours + theirs) == sorted(added)


def test_what_a_dead_worker_held_is_taken_over_after_its_lease(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    added = fill(server, stream, 4)
    query = share(lease="300ms")
    server.sync().xreadgroup(GROUP, "dead", {stream: ">"}, count=4)
    assert query.latest() == query.offset
    assert query.read(query.wait()) == sorted(added)


def test_a_running_batch_is_renewed_and_not_robbed(share: Callable[..., Shared], server: Server, stream: str) -> None:
    fill(server, stream, 3)
    query = share(lease="300ms")
    end = query.latest()
    query.read(end)
    time.sleep(0.6)
    idle = [row["time_since_delivered"] for row in server.sync().xpending_range(stream, GROUP, "-", "+", 10)]
    assert max(idle) < 300


def test_a_delivery_tried_too_often_is_buried(share: Callable[..., Shared], server: Server, stream: str) -> None:
    client = server.sync()
    (id_,) = fill(server, stream, 1)
    query = share(lease="300ms", maxAttempts=2)
    client.xreadgroup(GROUP, "dead", {stream: ">"})
    client.xclaim(stream, GROUP, "dead", 0, [id_], retrycount=2, idle=1000)
    assert query.wait() == query.next  # an empty batch
    assert query.read(query.next) == []
    assert held(server, stream) == 0
    ((_, letter),) = client.xrange("{" + stream + "}:dlq")
    assert letter[b"_original_id"].decode() == id_
    assert letter[b"_error"] == b"Exhausted"


def test_a_burial_has_the_prefix_of_the_groups_workers(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    client = server.sync()
    (id_,) = fill(server, stream, 1)
    query = share(lease="300ms", maxAttempts=2, prefix="shop_")
    client.xreadgroup(GROUP, "dead", {stream: ">"})
    client.xclaim(stream, GROUP, "dead", 0, [id_], retrycount=2, idle=1000)
    assert query.wait() == query.next  # an empty batch: what it took was buried
    assert query.read(query.next) == []
    ((_, letter),) = client.xrange("{" + stream + "}:dlq")
    assert letter[b"shop_original_id"].decode() == id_
    assert letter[b"shop_n"] == b"4"
    assert not [name for name in letter if name.startswith(b"_")]


def test_a_driver_thought_dead_takes_nothing_for_a_batch_that_another_finished(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    fill(server, stream, 5)
    zombie = share()
    end = zombie.latest()
    successor = share()
    successor.offset = end  # the same query, on the same checkpoint
    assert successor.latest() == end  # acks the batch; there is nothing more
    late = fill(server, stream, 4)
    assert zombie.latest() == end
    assert zombie.read(end) == []
    assert held(server, stream) == 0
    assert successor.read(successor.latest()) == sorted(late)


def test_a_batch_has_no_more_rows_than_its_limit_over_many_streams(
    share: Callable[..., Shared], server: Server, prefix: str
) -> None:
    names = [f"{prefix}-{number}" for number in range(7)]
    added = [id_ for name in names for id_ in fill(server, name, 20)]
    query = share(streams=",".join(names), maxOffsetsPerTrigger=33)
    found: list[str] = []
    while (end := query.latest()) != query.offset:
        rows = query.read(end)
        assert len(rows) <= 33
        found += rows
        query.offset = end
    assert sorted(found) == sorted(added)


def test_many_small_streams_share_a_task_and_few_requests(
    share: Callable[..., Shared], server: Server, prefix: str
) -> None:
    """A task each made batches of minutes; the driver asked stream by stream, at rest as well."""
    client, names = server.sync(), [f"{prefix}-{number:03}" for number in range(120)]
    added = [id_ for name in names for id_ in fill(server, name, 2)]
    query = share(streams=",".join(names))
    end = query.latest()
    assert len(query.reader.partitions(query.offset, end)) == 1
    assert query.read(end) == sorted(added)
    query.offset = end
    assert query.latest() == end  # acked
    assert sum(held(server, name) for name in names) == 0

    def calls() -> tuple[int, int]:
        about = client.info("all")
        asked = sum(one["calls"] for name, one in about.items() if name.startswith("cmdstat_"))
        return asked, sum(about[f"cmdstat_{name}"]["calls"] for name in ("xpending", "evalsha"))

    before = calls()
    for _ in range(5):
        assert query.latest() == end
    asked, ours = (after - first for after, first in zip(calls(), before, strict=True))
    assert ours <= 5 * 2 * len(names)  # one question for work; and once in a while how long a lease is
    assert asked <= 5 * 9 * len(names)  # with those inside


def test_a_task_has_no_more_rows_than_it_may_and_streams_are_split_evenly(
    share: Callable[..., Shared], server: Server, prefix: str
) -> None:
    names = [f"{prefix}-{number}" for number in range(6)]
    added = [id_ for number, name in enumerate(names) for id_ in fill(server, name, 40 if number == 0 else 4)]
    query = share(streams=",".join(names), maxRecordsPerPartition=10)
    end = query.latest()
    parts = query.reader.partitions(query.offset, end)
    sizes = [sum(len(ids) for _, ids in part.pieces) for part in parts if isinstance(part, Held)]
    assert max(sizes) <= 10
    assert len(sizes) <= 7
    assert query.read(end) == sorted(added)


def test_messages_lost_of_several_streams_of_a_task_are_counted_by_stream(
    share: Callable[..., Shared], server: Server, prefix: str
) -> None:
    names = [f"{prefix}-{number}" for number in range(3)]
    for name in names:
        fill(server, name, 10)
    query = share(streams=",".join(names), failOnDataLoss="false")
    end = query.latest()
    trim(server, names[0], 4)
    trim(server, names[2], 9)
    assert len(query.read(end)) == 23
    query.offset = end
    assert query.latest()["lost"] == {names[0]: 6, names[2]: 1}


@pytest.mark.servers("redis8")
def test_large_messages_of_a_group_are_asked_for_by_their_size(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    for _ in range(40):
        server.sync().xadd(stream, {"blob": b"x" * 50_000})
    query = share(fetchBytes="200KB")
    (part,) = query.reader.partitions(query.offset, query.latest())
    batches = list(query.reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches[1:]) < 500_000


def test_streams_that_a_pattern_finds_later_are_read_from_their_beginning(
    share: Callable[..., Shared], server: Server, prefix: str
) -> None:
    client = server.sync()
    added = fill(server, f"{prefix}-a", 3)
    client.xadd("{" + prefix + "-a}:dlq", {"not": "work"})
    query = share(streams=None, streamsPattern=f"*{prefix}*", patternInterval="1ms")
    end = query.latest()
    assert query.read(end) == sorted(added)
    query.offset = end
    later = fill(server, f"{prefix}-b", 2)
    end = query.latest()
    assert query.read(end) == sorted(later)
    query.offset = end
    client.delete(f"{prefix}-b")
    assert query.latest() == end  # a stream that has gone is no more
    assert client.xinfo_groups("{" + prefix + "-a}:dlq") == []


@pytest.mark.parametrize("behind", ["a committed batch", "a batch that is read"])
def test_a_stream_of_a_pattern_that_goes_holds_up_no_other(
    share: Callable[..., Shared], server: Server, prefix: str, behind: str
) -> None:
    for letter in "ab":
        fill(server, f"{prefix}-{letter}", 2)
    query = share(streams=None, streamsPattern=f"{prefix}-*", retryTimeout="10s")  # looked up every 10 s
    end = query.latest()
    if behind == "a batch that is read":
        server.sync().delete(f"{prefix}-a")
        assert len(query.read(end)) == 2
    else:
        assert len(query.read(end)) == 4
        server.sync().delete(f"{prefix}-a")
    query.offset = end
    (late,) = fill(server, f"{prefix}-b", 1)
    begun = time.monotonic()
    assert query.read(query.wait()) == [late]
    assert time.monotonic() - begun < 2


def test_a_stream_of_a_pattern_with_an_odd_name_is_left_out(
    share: Callable[..., Shared], server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    added = fill(server, f"{prefix}-a", 2)
    for odd in ("-{}", "- \n"):
        fill(server, prefix + odd, 1)
    query = share(streams=None, streamsPattern=f"{prefix}-*", patternInterval="1ms")
    end = query.wait()
    assert query.read(end) == added
    query.offset = end
    assert query.latest() == end
    assert caplog.text.count("spark.skipped") == 2  # said once


@pytest.mark.parametrize("most", [100, 3])
def test_a_run_to_an_end_takes_what_dead_workers_left_however_short_it_is(
    share: Callable[..., Shared], server: Server, stream: str, most: int
) -> None:
    added = fill(server, stream, 7)
    client = server.sync()
    query = share(lease="600ms", maxOffsetsPerTrigger=most)
    client.xreadgroup(GROUP, "dead", {stream: ">"}, count=7)
    client.xclaim(stream, GROUP, "dead", 0, added, idle=1000, justid=True)
    late = fill(server, stream, 1)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    found: list[str] = []
    while (end := query.latest()) != query.offset:
        found += query.read(end)
        query.offset = end
    assert sorted(found) == sorted(added + late)


def test_a_run_to_an_end_does_not_wait_for_workers_that_are_alive(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    fill(server, stream, 2)
    query = share(lease="20s")
    server.sync().xreadgroup(GROUP, "busy", {stream: ">"}, count=2)
    query.reader.prepareForTriggerAvailableNow()
    begun = time.monotonic()
    assert query.latest() == query.offset
    assert time.monotonic() - begun < 2


def test_the_owners_of_a_batch_are_entered_with_their_lease_and_leave_with_it(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    fill(server, stream, 2)
    query = share(lease="7s")
    query.offset, before = query.latest(), query.offset
    owners = server.sync().hgetall("{" + stream + "}:hr:owners:" + GROUP)
    ((_, about),) = [(name, about) for name, about in owners.items() if name.startswith(b"spark-")]
    assert json.loads(about)["lease_ms"] == 7_000
    assert json.loads(about)["kind"] == "spark"
    assert before != query.offset
    query.latest()
    assert not [name for name in server.sync().hgetall("{" + stream + "}:hr:owners:" + GROUP) if name]


def test_a_replayed_copy_is_read_as_the_original(share: Callable[..., Shared], server: Server, stream: str) -> None:
    packed = b"6:number1:7"
    server.sync().xadd(stream, {"_original_id": "1-1", "_only": GROUP, "_packed": packed})
    server.sync().xadd(stream, {"_original_id": "1-1", "_only": "others", "_packed": packed})
    query = share()
    (part,) = query.reader.partitions(query.offset, query.latest())
    (batch,) = query.reader.read(part)
    assert batch.column("fields").to_pylist() == [[("number", b"7")]]


IGNORED = {
    "startingTimestamp": "0",
    "endingTimestamp": "5",
    "endingOffsets": "latest",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "1s",
    "maxSpanPerTrigger": "1s",
    "onCommit": "none",
    "parser": "plain",
}


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("word", IGNORED)
def test_an_option_that_group_mode_would_ignore_is_refused(word: str) -> None:
    options = {"url": "redis://localhost", "streams": "s", "mode": "group", "groupId": GROUP, word: IGNORED[word]}
    with pytest.raises(ConfigError, match=word):
        SourceSettings.of(options, streaming=None)


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("word", ["lease", "maxAttempts", "prefix"])
def test_an_option_of_group_mode_is_refused_elsewhere(word: str) -> None:
    with pytest.raises(ConfigError, match=f"{word} is for mode group"):
        SourceSettings.of({"url": "redis://localhost", "streams": "s", word: "5"}, streaming=None)


# ── several at once ──


def drain(query: Shared, until: threading.Event, rows: list[str]) -> None:
    """Batch after batch, each committed, until there is nothing more to come."""
    while True:
        last = until.is_set()
        end = query.latest()
        if end == query.offset:
            if last:
                return
            continue
        rows += query.read(end)
        query.offset = end


def test_two_drivers_of_one_group_share_the_messages_and_none_is_in_both(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    fed = threading.Event()
    found: list[list[str]] = [[], []]
    queries = [share(maxOffsetsPerTrigger=7) for _ in found]
    threads = [
        threading.Thread(target=drain, args=(query, fed, rows)) for query, rows in zip(queries, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    added = [id_ for _ in range(20) for id_ in fill(server, stream, 20)]
    fed.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found[0] + found[1]) == sorted(added)
    assert found[0]
    assert found[1]
    assert held(server, stream) == 0


async def test_spark_and_headrace_workers_share_one_group(
    share: Callable[..., Shared], server: Server, stream: str
) -> None:
    """SPEC 5: what fails at a worker comes back and may go to Spark; what Spark holds no worker takes."""
    app, seen, failed = App(server.url), [], set()
    orders = app.stream(stream, dict)

    @orders.handler(group=GROUP, concurrency=4, lease="1s", backoff="50ms")
    async def bill(order: dict[str, Any], delivery: Delivery[Any]) -> None:
        await asyncio.sleep(0.001)
        if delivery.attempt == 1 and len(failed) < 10:
            failed.add(delivery.id)
            raise ValueError("try again")
        seen.append(delivery.id)

    fed, ours = threading.Event(), list[str]()
    query = share(maxOffsetsPerTrigger=9, lease="1s")
    spark = threading.Thread(target=drain, args=(query, fed, ours))
    spark.start()
    try:
        async with app.worker():
            for number in range(300):
                await orders.add({"number": number})
            added = [id_.decode() for id_, _ in server.sync().xrange(stream)]
            await wait_until(lambda: set(seen) | set(ours) == set(added), 30, what="every message at one of the two")
    finally:
        fed.set()
        await asyncio.to_thread(spark.join, 30)
        await app.close()
    assert sorted(seen + ours) == sorted(added)
    assert seen
    assert ours
    assert held(server, stream) == 0


# ── on Spark ──


@pytest.mark.servers("redis8")
def test_a_query_in_group_mode_runs_on_spark(query: Any, server: Server, stream: str) -> None:
    added = fill(server, stream, 250)
    one = query(server, streams=stream, mode="group", groupId=GROUP, startingOffsets="earliest")
    one.run(maxOffsetsPerTrigger=100)
    assert ids(one.rows) == sorted(added)
    assert once_each(one.rows)
    assert held(server, stream) == 0


@pytest.mark.servers("redis8")
def test_a_batch_that_failed_is_read_again_with_the_same_rows(query: Any, server: Server, stream: str) -> None:
    added = fill(server, stream, 40)
    one = query(server, streams=stream, mode="group", groupId=GROUP, startingOffsets="earliest")
    fails = [True]

    def fail(batch: int) -> None:
        if fails and batch > 0:
            fails.clear()
            raise ValueError("the output was not to be had")

    one.before_batch = fail
    one.start(maxOffsetsPerTrigger=15)
    assert "not to be had" in one.wait_for_end()
    fill_later = fill(server, stream, 3)
    one.run(maxOffsetsPerTrigger=15)
    assert ids(one.batches[1]) == sorted(added[:15])
    assert ids(one.rows) == sorted(added + fill_later)
    assert once_each(one.rows)
