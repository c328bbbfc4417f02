"""Streaming queries on real Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.querying import fill, ids, once_each
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.servers("redis8")

Begin = Callable[..., Any]


def test_available_now_reads_everything_in_batches_of_the_limit(query: Begin, server: Server, prefix: str) -> None:
    hot, cold = f"{prefix}-hot", f"{prefix}-cold"
    added = fill(server, hot, 500) + fill(server, cold, 5)
    one = query(server, streams=f"{hot},{cold}", startingOffsets="earliest", maxOffsetsPerTrigger=200).run()
    assert [len(rows) for rows in one.batches.values()] == [200, 200, 105]
    assert ids(one.rows) == sorted(added)
    late = fill(server, cold, 3)
    one.run()
    assert ids(one.rows) == sorted(added + late)
    assert once_each(one.rows)


def test_latest_is_pinned_and_rows_arrive_by_long_poll(query: Begin, server: Server, stream: str) -> None:
    fill(server, stream, 5)
    one = query(server, streams=stream).start()
    wait_until_sync(lambda: 0 in one.batches, 30, what="the pinning batch")
    one.stop()
    late = fill(server, stream, 3)  # while the query is down
    one.start()
    assert ids(one.wait_for(3)) == late
    more = fill(server, stream, 2)
    assert ids(one.wait_for(5)) == late + more


def test_a_query_at_rest_runs_no_batches(query: Begin, server: Server, prefix: str) -> None:
    """Offsets that were the same but not written the same made 595 batches out of nothing."""
    names = [f"{prefix}-{letter}" for letter in "dbca"]
    for name in names:
        fill(server, name, 2)
    one = query(server, streams=",".join(names), startingOffsets="earliest").start()
    one.wait_for(8)
    fill(server, names[0], 1)
    one.wait_for(9)
    one.handle.processAllAvailable()
    assert len(one.batches) <= 3


def test_the_mirror_group_shows_the_lag(query: Begin, server: Server, stream: str) -> None:
    fill(server, stream, 20)
    one = query(server, streams=stream, startingOffsets="earliest", groupId="spark", onCommit="trim").run()
    assert len(one.rows) == 20
    (group,) = server.sync().xinfo_groups(stream)
    assert (group["name"], group["lag"], group["entries-read"]) == (b"spark", 0, 20)
    assert server.sync().xlen(stream) == 1  # the witness


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_what_a_query_reads_it_writes_once_on_every_server(
    spark: SparkSession, server: Server, stream: str, tmp_path: Path
) -> None:
    """From stream to stream, in two runs of several batches each, while the source is trimmed behind them."""
    source = {"url": server.url, "streams": stream, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "120"}
    rows = spark.readStream.format("redis-streams").options(**source, groupId="spark", onCommit="trim").load()

    def run() -> None:
        writing = rows.repartition("id").writeStream.format("redis-streams").option("url", server.url)
        writing = writing.option("stream", f"{stream}-copy").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writing.trigger(availableNow=True).start().awaitTermination(100)

    for _ in range(2):
        fill(server, stream, 300)
        run()
    copies = [fields[b"number"] for _, fields in server.sync().xrange(f"{stream}-copy")]
    assert sorted(map(int, copies)) == sorted([*range(300), *range(300)])
    assert server.sync().xlen(stream) < 300
    copied = spark.read.format("redis-streams").option("url", server.url).option("streams", f"{stream}-copy").load()
    assert copied.count() == 600


def test_checkpoints_behind_the_batches_are_refused_where_rows_are_written(
    spark: SparkSession, server: Server, stream: str, tmp_path: Path
) -> None:
    """By Spark, for the sink and for foreachBatch; semantics.md says what they would do to a mirror group."""
    rows = spark.readStream.format("redis-streams").option("url", server.url).option("streams", stream).load()
    writing = rows.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    writing = writing.option("asyncProgressTrackingEnabled", "true")
    for into in (
        writing.format("redis-streams").option("url", server.url).option("stream", f"{stream}-copy"),
        writing.foreachBatch(lambda some, _: None),
    ):
        with pytest.raises(Exception, match="does not support async progress tracking"):
            into.start()


def test_a_replayed_batch_has_the_same_rows(query: Begin, server: Server, stream: str) -> None:
    added = fill(server, stream, 300)
    one = query(server, streams=stream, startingOffsets="earliest", maxOffsetsPerTrigger=200)

    def fail_once(batch: int) -> None:
        if batch == 1:
            one.before_batch = None
            raise RuntimeError("as if the driver died")

    one.before_batch = fail_once
    with pytest.raises(Exception, match="as if the driver died"):
        one.run()
    fill(server, stream, 50)
    one.run(minPartitions=4, maxOffsetsPerTrigger=1000)
    assert len(one.batches[1]) == 100
    assert once_each(one.rows)
    assert len(one.rows) == 350
    assert set(added) <= set(ids(one.rows))


def test_a_query_outlives_a_restart_of_the_server(query: Begin, own_server: Any, stream: str) -> None:
    server = own_server("redis8", aof=True, config={"appendfsync": "always"})
    fill(server, stream, 3)
    one = query(server, streams=stream, startingOffsets="earliest").start()
    one.wait_for(3)
    server.kill()
    server.restart()
    server._client = None
    fill(server, stream, 2)
    assert len(one.wait_for(5)) == 5


def test_importing_headrace_loads_no_spark() -> None:
    code = "import sys, headrace, headrace.spark; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    import subprocess
    import sys

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert said.stdout.strip() == "False False"


def test_the_offset_in_the_checkpoint_is_canonical(query: Begin, server: Server, prefix: str) -> None:
    names = [f"{prefix}-b", f"{prefix}-a"]
    for name in names:
        fill(server, name, 1)
    one = query(server, streams=",".join(names), startingOffsets="earliest").run()
    assert json.dumps(one.offset) == json.dumps(one.offset, sort_keys=True)
    assert [about["n"] for about in one.offset["streams"].values()] == [1, 1]


def test_a_wrong_option_beside_a_schema_is_told_by_the_query(spark: Any, server: Server, tmp_path: Any) -> None:
    """There Spark does not ask for the schema, so nothing is looked at before the query starts."""
    reader = spark.readStream.format("redis-streams").schema("x string").option("url", server.url)
    frame = reader.option("streams", "a").option("maxOffsetsPerTrigger", "many").load()
    handle = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="maxOffsetsPerTrigger is 'many'") as told:
        handle.awaitTermination(30)
    assert "UnboundLocalError" not in str(told.value)


def test_sparks_own_deduplication_remembers_keys_of_earlier_batches(
    spark: SparkSession, server: Server, stream: str, tmp_path: Path
) -> None:
    """Offered by Spark, on rows of the source as on any others; what it drops nobody counts."""
    frame = spark.readStream.format("redis-streams").schema("timestamp timestamp, number string")
    rows = frame.option("url", server.url).option("streams", stream).option("startingOffsets", "earliest").load()
    alone = rows.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["number"])
    found: list[str] = []

    def run() -> None:
        writing = alone.writeStream.foreachBatch(lambda some, _: found.extend(row.number for row in some.collect()))
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert writing.start().awaitTermination(100)

    fill(server, stream, 5)
    run()
    fill(server, stream, 8)
    run()
    assert sorted(found) == [str(number) for number in range(8)]
