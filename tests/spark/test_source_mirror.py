"""The mirror group: right lag, trimming that spares other groups, and what a missing group says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.loss import DataLost
from tests.spark.querying import Driven, fill
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "valkey9", "redis6")

Drive = Callable[..., Driven]


@pytest.fixture
def drive(server: Server, stream: str) -> Iterator[Drive]:
    begun: list[Driven] = []

    def begin(**options: Any) -> Driven:
        begun.append(
            Driven(server, **{"streams": stream, "startingOffsets": "earliest", "groupId": "spark", **options})
        )
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def group_of(server: Server, stream: str) -> dict[str, Any]:
    found = {group["name"]: group for group in server.sync().xinfo_groups(stream)}
    return dict(found[b"spark"])


def test_the_group_follows_what_is_committed(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 30)
    query = drive(maxOffsetsPerTrigger=10)
    query.step()
    query.plan()  # asks after the committed batch
    group = group_of(server, stream)
    assert group["last-delivered-id"].decode() == added[9]
    assert group.get("lag") == (None if server.key == "redis6" else 20)
    query.drain()
    assert group_of(server, stream).get("lag") == (None if server.key == "redis6" else 0)


def test_trimming_never_cuts_what_another_group_has_not_finished(drive: Drive, server: Server, stream: str) -> None:
    client = server.sync()
    added = fill(server, stream, 20)
    client.xgroup_create(stream, "billing", "0")
    client.xreadgroup("billing", "worker", {stream: ">"}, count=10)
    client.xack(stream, "billing", *added[:5])
    query = drive(onCommit="trim")
    assert len(query.drain()) == 20
    assert [id_.decode() for id_, _ in client.xrange(stream)] == added[5:]
    client.xack(stream, "billing", *added)
    fill(server, stream, 1)
    assert len(query.drain()) == 1
    assert client.xrange(stream, count=1)[0][0].decode() == added[9]  # what billing read last


def test_a_stream_made_again_is_noticed_by_its_missing_group(drive: Drive, server: Server, stream: str) -> None:
    added = fill(server, stream, 3)
    query = drive()
    query.drain()
    client = server.sync()
    client.delete(stream)
    for id_ in ("1-1", "1-2", added[-1]):  # the same id, and as many entries: no counter tells
        client.xadd(stream, {"a": 1}, id=id_)
    query.again(streams=stream, groupId="spark")
    with pytest.raises(DataLost, match="was deleted"):
        query.plan()
    query.again(streams=stream, groupId="spark", failOnDataLoss="false")
    assert len(query.drain()) == 3
    assert query.lost(stream) == (0, 1)
    assert group_of(server, stream)["last-delivered-id"].decode() == added[-1]


def test_a_key_that_appears_later_gets_its_group(drive: Drive, server: Server, prefix: str) -> None:
    query = drive(streams=f"{prefix}-a,{prefix}-b")
    assert query.drain() == []
    for name in (f"{prefix}-a", f"{prefix}-b"):
        fill(server, name, 2)
        assert len(query.drain()) == 2
        assert query.plan() is None
        assert group_of(server, name)["pending"] == 0


def test_a_group_that_workers_use_is_not_moved(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 3)
    server.sync().xgroup_create(stream, "spark", "0")
    server.sync().xreadgroup("spark", "worker", {stream: ">"}, count=1)
    with pytest.raises(ConfigError, match="has consumers"):
        drive().plan()


def test_without_a_group_nothing_is_written(drive: Drive, server: Server, stream: str) -> None:
    fill(server, stream, 3)
    query = drive(onCommit="none")
    assert len(query.drain()) == 3
    assert server.sync().xinfo_groups(stream) == []


def test_a_stream_that_comes_after_a_latest_start_is_followed_from_its_beginning(
    drive: Drive, server: Server, stream: str
) -> None:
    query = drive(startingOffsets="latest", maxOffsetsPerTrigger=2)
    assert query.step() == []  # pins the start
    assert query.plan() is None
    added = fill(server, stream, 3)
    assert len(query.step() or []) == 2
    query.again(streams=stream, groupId="spark")
    assert [id_ for _, id_ in query.drain()] == added[2:]
    assert group_of(server, stream).get("lag") == (None if server.key == "redis6" else 0)
