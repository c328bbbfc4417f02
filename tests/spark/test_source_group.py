"""Group mode: claimed by the driver, read by id, acked when committed, shared with plain workers."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.spark.group import GroupReader
from headrace.spark.schema import DEFAULT
from headrace.spark.source_options import SourceSettings
from tests.spark.querying import fill, ids, once_each
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "valkey9", "redis6")

GROUP = "billing"


class Shared:
    """A group reader as Spark drives it."""

    def __init__(self, server: Server, **options: Any) -> None:
        texts = {"url": server.url, "mode": "group", "groupid": GROUP, "blockms": "20", "startingoffsets": "earliest"}
        texts |= {word.lower(): str(value) for word, value in options.items()}
        self._settings = SourceSettings.of(texts, streaming=True)
        self.reader = GroupReader(self._settings, DEFAULT)
        self.offset = self.reader.initialOffset()
        self.offset = self.latest()

    def latest(self) -> dict[str, Any]:
        found: dict[str, Any] = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        return json.loads(json.dumps(found))

    def read(self, end: dict[str, Any]) -> list[str]:
        found = []
        for part in self.reader.partitions(self.offset, end):
            copy = pickle.loads(pickle.dumps(self.reader))
            for batch in copy.read(part):
                found += batch.column("id").to_pylist()
        return sorted(found)

    def restart(self) -> None:
        self.reader.stop()
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
    time.sleep(0.35)
    assert query.read(query.latest()) == sorted(added)


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
    assert query.latest() == query.offset
    assert held(server, stream) == 0
    ((_, letter),) = client.xrange("{" + stream + "}:dlq")
    assert letter[b"_original_id"].decode() == id_


@pytest.mark.servers("redis8")
def test_a_query_in_group_mode_runs_on_spark(query: Any, server: Server, stream: str) -> None:
    added = fill(server, stream, 250)
    one = query(server, streams=stream, mode="group", groupId=GROUP, startingOffsets="earliest")
    one.run(maxOffsetsPerTrigger=100)
    assert ids(one.rows) == sorted(added)
    assert once_each(one.rows)
    assert held(server, stream) == 0
