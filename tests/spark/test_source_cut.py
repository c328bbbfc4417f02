"""Streams that are cut, emptied and replaced under a query that runs, and under a task that reads, on real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from headrace.spark.loss import DataLost
from tests.spark.querying import fill, ids, trim
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers("redis8")

Begin = Callable[..., Any]


def add_ten_and_keep_three(server: Server, stream: str) -> None:
    pipe = server.sync().pipeline(transaction=True)
    for number in range(10):
        pipe.xadd(stream, {"number": number})
    pipe.xtrim(stream, maxlen=3, approximate=False)
    pipe.execute()


def add_ten_and_keep_none(server: Server, stream: str) -> None:
    pipe = server.sync().pipeline(transaction=True)
    for number in range(10):
        pipe.xadd(stream, {"number": number}, maxlen=0, approximate=False)
    pipe.execute()


def delete_and_make_again(server: Server, stream: str) -> None:
    pipe = server.sync().pipeline(transaction=True)
    pipe.delete(stream)
    for number in range(2):
        pipe.xadd(stream, {"number": number}, id=f"5-{number + 1}")
    pipe.execute()


CUTS = {
    "trimmed": (add_ten_and_keep_three, "7 rows are lost"),
    "maxlen 0": (add_ten_and_keep_none, "10 rows are lost"),
    "made again": (delete_and_make_again, "was deleted"),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_running_query_ends_when_its_stream_is_cut(query: Begin, server: Server, stream: str, cut: str) -> None:
    step, says = CUTS[cut]
    fill(server, stream, 5)
    one = query(server, streams=stream, startingOffsets="earliest").start()
    one.wait_for(5)
    step(server, stream)
    told = one.wait_for_end()
    assert says in told
    assert DataLost.__name__ in told
    assert len(one.rows) == 5


def test_a_running_query_counts_all_of_it_and_goes_on_where_that_is_wanted(
    query: Begin, server: Server, stream: str
) -> None:
    fill(server, stream, 5)
    one = query(server, streams=stream, startingOffsets="earliest", failOnDataLoss="false").start()
    one.wait_for(5)
    add_ten_and_keep_three(server, stream)
    assert len(one.wait_for(8)) == 8
    add_ten_and_keep_none(server, stream)
    late = fill(server, stream, 1)  # whatever was before it is gone
    assert ids(one.wait_for(9))[-1:] == late
    delete_and_make_again(server, stream)
    assert len(one.wait_for(11)) == 11
    at = one.offset["streams"][stream]
    assert (at["lost"], at["unknown"], at["id"]) == (17, 1, "5-2")


# ── under a task ─────────────────────────────────────────────────────────────────────────────────────


def waiting(url: str, name: str) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Takes the first rows of a task, says so, and waits. Behind it the reader fills what buffers there are."""

    def attempt(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        import redis

        client = redis.Redis.from_url(url)
        for batch in batches:
            client.set(f"{name}-reading", 1)
            while not client.exists(f"{name}-go"):
                time.sleep(0.02)
            yield batch

    return attempt


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """A function is handed a few rows at a time, so that Spark does not read on to the end before it begins."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def keep_ten(server: Server, stream: str) -> None:
    trim(server, stream, 10)


def delete_two(server: Server, stream: str) -> None:
    """Two of the last entries but not the last: all that is read before them stays where it is."""
    last = [id_ for id_, _ in server.sync().xrevrange(stream, count=10)]  # type: ignore[union-attr]
    server.sync().xdel(stream, last[3], last[7])


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("cut", "says"), [(keep_ten, "rows are lost"), (delete_two, "2 rows are lost")])
def test_a_stream_trimmed_under_a_task_that_reads_it_ends_the_query(
    spark: SparkSession, server: Server, stream: str, tmp_path: Path, cut: Callable[[Server, str], None], says: str
) -> None:
    """The rows are so large, and asked for so few at a time, that most of them are still on the server. Behind them are
    a shuffle and the sink, which gets none of the batch."""
    pipe = server.sync().pipeline(transaction=False)
    for _ in range(400):
        pipe.xadd(stream, {"word": "x" * 50_000})
    pipe.execute()
    reading = spark.readStream.format("redis-streams").schema("word string").option("url", server.url)
    frame = reading.option("streams", stream).option("startingOffsets", "earliest").option("fetchBytes", "128kb").load()
    slow = F.arrow_udf(waiting(server.url, stream), "string")
    shuffled = frame.select(slow("word").alias("word")).repartition(2)
    writing = shuffled.writeStream.format("redis-streams").options(url=server.url, stream=f"{stream}-out")
    handle = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until_sync(lambda: server.sync().exists(f"{stream}-reading"), 60, what="a task that reads")
        cut(server, stream)
        server.sync().set(f"{stream}-go", 1)
        wait_until_sync(lambda: not handle.isActive, 60, what="the query's end")
        assert says in str(handle.exception())
        assert server.sync().xlen(f"{stream}-out") == 0
    finally:
        handle.stop()
