"""Batch reads on real Spark: rows, columns, options, tables about the queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.datasource import RedisStreams
from headrace.spark.schema import DEFAULT
from headrace.spark.source import BatchReader
from headrace.spark.source_checks import NOT_OF_TABLES
from headrace.spark.source_options import SourceSettings
from tests.spark.querying import fill
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8")  # the rules themselves run on all servers, without Spark

Read = Callable[..., Any]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.servers("redis8", "valkey9")
def test_rows_come_back_as_they_were_added(read: Read, server: Server, stream: str) -> None:
    client = server.sync()
    client.xadd(stream, {"name": "Ada", "raw": b"\xff\r\n\x00"}, id="1731700000000-1")
    client.xadd(stream, {"name": "Bo"}, id="1731700000001-0")  # fewer fields than the first
    gone = client.xadd(stream, {"name": "gone"})
    client.xdel(stream, gone)
    rows = read(server, streams=stream).collect()
    assert [(row.stream, row.id, row.timestamp.timestamp(), dict(row.fields)) for row in rows] == [
        (stream, "1731700000000-1", 1731700000.0, {"name": b"Ada", "raw": b"\xff\r\n\x00"}),
        (stream, "1731700000001-0", 1731700000.001, {"name": b"Bo"}),
    ]


@pytest.mark.servers("redis8", "redis6")
def test_a_schema_names_fields_as_columns(read: Read, server: Server, stream: str) -> None:
    client = server.sync()
    client.xadd(stream, {"name": "Ada", "id": "own"})
    client.xadd(stream, {"name": b"\xff"})
    rows = read(server, "name string, `fields.id` binary, id string", streams=stream).collect()
    assert [(row.name, row["fields.id"]) for row in rows] == [("Ada", b"own"), ("�", None)]
    assert all("-" in row.id for row in rows)


def test_a_long_stream_is_split_and_read_once(read: Read, server: Server, stream: str) -> None:
    added = fill(server, stream, 5000)
    frame = read(server, streams=stream, minPartitions=3)
    found = [row.id for row in frame.select("id").collect()]
    assert sorted(found) == sorted(added)
    assert frame.rdd.getNumPartitions() == 3


def test_many_small_streams_share_a_task(read: Read, server: Server, prefix: str) -> None:
    for number in range(250):
        server.sync().xadd(f"{prefix}-{number}", {"number": number})
    frame = read(server, streamsPattern=f"{prefix}-*")
    assert frame.select("stream").distinct().count() == 250
    assert frame.rdd.getNumPartitions() == 1


def test_a_stream_that_is_empty_or_not_there_has_no_rows(read: Read, server: Server, stream: str) -> None:
    server.sync().xgroup_create(f"{stream}-made", "g", mkstream=True)
    assert read(server, streams=f"{stream}-made,{stream}-never").count() == 0


def test_ids_and_times_bound_a_read(read: Read, server: Server, stream: str) -> None:
    for ms in (1000, 2000, 3000, 4000):
        server.sync().xadd(stream, {"at": ms}, id=f"{ms}-0")
    by_id = read(
        server,
        streams=stream,
        startingOffsets=json.dumps({stream: "1000-0"}),
        endingOffsets=json.dumps({stream: "3000-0"}),
    )
    by_time = read(server, streams=stream, startingTimestamp=2000, endingTimestamp="1970-01-01T00:00:04Z")
    assert [row.id for row in by_id.collect()] == ["2000-0", "3000-0"]
    assert [row.id for row in by_time.collect()] == ["2000-0", "3000-0"]


@pytest.mark.parametrize("end", ["latest", "an id", "a time"])
def test_what_is_added_after_the_plan_is_not_read_whatever_the_end(server: Server, stream: str, end: str) -> None:
    added = fill(server, stream, 3)
    ends = {
        "latest": {"endingoffsets": "latest"},
        "an id": {"endingoffsets": json.dumps({stream: "9999999999999-0"})},
        "a time": {"endingtimestamp": "2099-01-01T00:00:00Z"},
    }
    settings = SourceSettings.of({"url": server.url, "streams": stream, **ends[end]}, streaming=False)
    reader = BatchReader(settings, DEFAULT)
    (part,) = reader.partitions()
    fill(server, stream, 2)
    assert [id_ for batch in reader.read(part) for id_ in batch.column("id").to_pylist()] == added


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "a"}, "did you mean 'streams'"),
        ({}, "either streams or streamsPattern"),
        ({"streams": "a", "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger is 'many'"),
        ({"streams": "a", "startingOffsets": '{"b": "1-0"}'}, "startingOffsets names 'b'"),
        ({"streams": "a", "onCommit": "trim"}, "needs groupId"),
        ({"streams": "a", "url": "redis://:geheim@127.0.0.1:1"}, "Connection refused"),
        ({"streams": "a", "url": "redis+cluster://:geheim@127.0.0.1:1"}, "no node of the cluster answers"),
    ],
)
def test_a_wrong_option_is_one_clear_error(server: Server, options: dict[str, str], said: str) -> None:
    given = {word.lower(): text for word, text in {"url": server.url, **options}.items()}
    with pytest.raises(HeadraceError, match=said) as told:
        RedisStreams(given).schema()
    assert "geheim" not in str(told.value)


@pytest.mark.parametrize("table", [None, "groups"])
def test_trimming_what_a_batch_read_has_read_is_refused(server: Server, stream: str, table: str | None) -> None:
    """It would trim nothing, in silence."""
    given = {"url": server.url, "streams": stream, "groupId": "g", "onCommit": "trim"}
    given |= {"table": table} if table else {}
    with pytest.raises(ConfigError, match="onCommit is trim, and a batch read trims nothing"):
        SourceSettings.of(given, streaming=False)


def test_limits_of_a_stream_are_said_to_do_nothing_in_a_batch_read_and_change_no_row(
    server: Server, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream and a batch often share their options."""
    added = fill(server, stream, 3)
    words = {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "9", "maxTriggerDelay": "1s", "blockMs": "5"}
    words |= {"maxSpanPerTrigger": "1ms", "groupId": "g", "onCommit": "setid"}
    reader = BatchReader(SourceSettings.of({"url": server.url, "streams": stream, **words}, streaming=False), DEFAULT)
    (part,) = reader.partitions()
    assert [id_ for batch in reader.read(part) for id_ in batch.column("id").to_pylist()] == added
    (line,) = [line for line in caplog.messages if "spark.unused" in line]
    assert all(word in line for word in words)
    caplog.clear()
    SourceSettings.of({"url": server.url, "streams": stream, "startingOffsets": "earliest"}, streaming=False)
    SourceSettings.of({"url": server.url, "streams": stream, **words}, streaming=True)
    SourceSettings.of({"url": server.url, "streams": stream, "table": "groups", "groupId": "g"}, streaming=False)
    assert not caplog.messages


@pytest.mark.parametrize("word", NOT_OF_TABLES)
def test_a_choice_of_rows_is_refused_beside_a_table(word: str) -> None:
    text = {"startingTimestamp": "5", "endingTimestamp": "5", "failOnDataLoss": "false"}.get(word, "latest")
    given = {"url": "redis://localhost", "streams": "s", "table": "groups", word: text}
    with pytest.raises(ConfigError, match=f"{word} does nothing for table groups"):
        SourceSettings.of(given, streaming=None)


def test_what_a_table_does_not_read_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = {"url": "redis://localhost", "streams": "s", "table": "groups", "fetchBytes": "1MB", "blockMs": "5"}
    SourceSettings.of(given, streaming=False)
    assert "spark.unused options=blockMs,fetchBytes" in caplog.text


def test_a_wrong_option_is_told_at_load(read: Read, server: Server) -> None:
    with pytest.raises(Exception, match="did you mean 'streams'"):
        read(server, stream="a")


def test_a_wrong_password_is_told_at_load_and_not_printed(read: Read, own_server: Any) -> None:
    server = own_server("redis8", config={"requirepass": "richtig"}, tcp=True)
    port = server.port
    with pytest.raises(Exception, match="WRONGPASS") as told:
        read(server, url=f"redis://:geheim@127.0.0.1:{port}", streams="a")
    assert "geheim" not in str(told.value)
    options = {"url": f"redis://127.0.0.1:{port}", "redis.password": "richtig", "streams": "a"}
    assert RedisStreams(options).schema()


def test_a_key_of_another_type_is_told_at_load(read: Read, server: Server, prefix: str) -> None:
    server.sync().set(f"{prefix}-string", "x")
    with pytest.raises(Exception, match="is not a stream"):
        read(server, streams=f"{prefix}-string")


def test_a_schema_of_other_types_is_refused(read: Read, server: Server, stream: str) -> None:
    with pytest.raises(Exception, match="column 'amount' is double"):
        read(server, "amount double", streams=stream).count()


@pytest.mark.servers("redis8", "valkey9")
def test_tables_tell_who_holds_what(read: Read, server: Server, stream: str) -> None:
    client = server.sync()
    added = fill(server, stream, 5)
    client.xgroup_create(stream, "billing", "0")
    client.xreadgroup("billing", "worker-1", {stream: ">"}, count=3)
    (group,) = read(server, streams=stream, table="groups").collect()
    assert (group.group, group.owners, group.lag, group.pending, group.waiting) == ("billing", 1, 2, 3, 0)
    pending = read(server, streams=stream, table="pending", groupId="billing").collect()
    assert [(row.id, row.owner, row.state, row.attempts) for row in pending] == [
        (id_, "worker-1", "delivered", 1) for id_ in added[:3]
    ]
    (owner,) = read(server, streams=stream, table="owners").collect()
    assert (owner.owner, owner.pending) == ("worker-1", 3)
    assert read(server, streams=stream, table="dead-letters").count() == 0


def test_dead_letters_are_a_table_with_their_reasons(read: Read, server: Server, stream: str) -> None:
    from headrace.names import keys_of
    from headrace.redis import scripts
    from headrace.redis.connect import Server as Core

    client = server.sync()
    (id_,) = fill(server, stream, 1)
    client.xgroup_create(stream, "billing", "0")
    client.xreadgroup("billing", "worker-1", {stream: ">"})
    about = {"original_id": id_, "group": "billing", "owner": "worker-1", "attempts": "1", "reason": "bad"}
    link = Core(server.url).sync_link()
    extra = {f"_{name}": value for name, value in about.items()}
    link.call(scripts.bury(keys_of(stream), "billing", "worker-1", id_.encode(), 1, extra=extra))
    link.close()
    (row,) = read(server, streams=stream, table="dead-letters").collect()
    assert (row.original_id, row.group, row.attempts, row.reason) == (id_, "billing", 1, "bad")
    assert dict(row.fields)["word"] == b"hello"


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("on", [True, False], ids=["pushed", "not pushed"])
def test_filters_on_one_frame_do_not_take_rows_from_each_other(
    read: Read, spark: SparkSession, server: Server, prefix: str, on: bool
) -> None:
    a, b = f"{prefix}-a", f"{prefix}-b"
    fill(server, a, 10)
    fill(server, b, 7)
    spark.conf.set(PUSHDOWN, on)
    try:
        frame = read(server, streams=f"{a},{b}")
        assert frame.where(f"stream = '{a}'").count() == 10
        assert frame.count() == 17
        parts = read(server, streams=f"{a},{b}")
        assert parts.where(f"stream = '{a}'").union(parts.where(f"stream = '{b}'")).count() == 17
    finally:
        spark.conf.set(PUSHDOWN, False)
