"""A commit that fails while its server lives: Spark tells the sink to abort, and what was decided stays decided."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.servers import Server
from tests.support.spark_writing import register
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]

ROWS, STREAM = 1_000, "orders"  # five blobs in one task
HEALED = {"full": ("CONFIG", "SET", "maxmemory", "0"), "replica": ("REPLICAOF", "NO", "ONE")}
SAYS = {"full": "out of memory", "replica": "this is a replica"}


@pytest.fixture(scope="module", autouse=True)
def faulty(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of numbered rows; a query takes one a batch."""
    folder = Path(tmp_path_factory.mktemp("numbers"))
    for file in range(2):
        spark.range(file * ROWS, (file + 1) * ROWS, 1, 1).selectExpr("id as n").write.parquet(f"{folder}/part={file}")
    return folder


def reading(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1)
    return frame.option("recursiveFileLookup", "true").parquet(str(folder))


def start(frame: DataFrame, server: Server, folder: Path, **options: str) -> StreamingQuery:
    writing = frame.writeStream.format("faulty-sink").options(url=server.url, stream=STREAM, retryTimeout="1s")
    writing = writing.option("checkpointLocation", str(folder / "checkpoint")).options(**options)
    return writing.trigger(availableNow=True).start()


def run(frame: DataFrame, server: Server, folder: Path, **options: str) -> None:
    query = start(frame, server, folder, **options)
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


def written(server: Server) -> list[int]:
    return sorted(int(fields[b"n"]) for _, fields in server.sync().xrange(STREAM))


def staged(server: Server) -> list[bytes]:
    return [key for key in server.sync().scan_iter("*:hr:stage:*") if server.sync().type(key) == b"list"]


@pytest.mark.parametrize("harm", ["full", "replica"])
def test_a_batch_whose_publishing_failed_for_good_is_finished_by_the_next_start(
    spark: SparkSession, own_server: Callable[..., Server], numbers: Path, tmp_path: Path, harm: str
) -> None:
    server, frame = own_server("redis8"), reading(spark, numbers)
    with pytest.raises(StreamingQueryException, match=SAYS[harm]):
        run(frame, server, tmp_path, harm=harm, harmedAlready=str(tmp_path / "harmed"))
    server.sync().execute_command(*HEALED[harm])
    assert 0 < len(written(server)) < ROWS
    run(frame, server, tmp_path)
    assert written(server) == list(range(2 * ROWS))
    assert staged(server) == []


def test_a_query_that_is_stopped_while_it_publishes_is_finished_by_the_next_start(
    spark: SparkSession, own_server: Callable[..., Server], numbers: Path, tmp_path: Path
) -> None:
    server, frame, harmed = own_server("redis8"), reading(spark, numbers), tmp_path / "harmed"
    query = start(frame, server, tmp_path, harm="hold", harmedAlready=str(harmed))
    wait_until_sync(harmed.exists, 30, what="the middle of publish")
    stopping = threading.Thread(target=query.stop)  # comes back when the commit has ended
    stopping.start()
    wait_until_sync(lambda: not query.isActive, 30, what="the order to stop")
    assert 0 < len(written(server)) < ROWS
    harmed.write_text("go on")
    stopping.join()
    run(frame, server, tmp_path)
    assert written(server) == list(range(2 * ROWS))
    assert staged(server) == []


def test_a_version_whose_publishing_failed_is_finished_when_it_is_written_again(
    spark: SparkSession, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, harmed = own_server("redis8"), tmp_path / "harmed"
    frame = spark.range(0, ROWS, 1, 1).selectExpr("id as n")

    def save(version: int, **options: str) -> None:
        writing = frame.write.format("faulty-sink").options(url=server.url, stream=STREAM, retryTimeout="1s")
        writing.options(txnAppId="etl", txnVersion=str(version), **options).mode("append").save()

    with pytest.raises(PySparkException, match="out of memory"):
        save(0, harm="full", harmedAlready=str(harmed))
    server.sync().config_set("maxmemory", "0")
    assert 0 < len(written(server)) < ROWS
    save(0)
    assert written(server) == list(range(ROWS))
    assert staged(server) == []


def test_a_foreach_batch_whose_write_failed_is_finished_by_the_next_start(
    spark: SparkSession, own_server: Callable[..., Server], numbers: Path, tmp_path: Path
) -> None:
    server, harmed = own_server("redis8"), tmp_path / "harmed"

    def write(frame: DataFrame, batch: int) -> None:
        writing = frame.write.format("faulty-sink").options(url=server.url, stream=STREAM, retryTimeout="1s")
        writing = writing.options(txnAppId="etl", txnVersion=str(batch), harm="full", harmedAlready=str(harmed))
        writing.mode("append").save()

    def attempt() -> None:
        writing = reading(spark, numbers).writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="out of memory"):
        attempt()
    server.sync().config_set("maxmemory", "0")
    assert 0 < len(written(server)) < ROWS
    attempt()
    assert written(server) == list(range(2 * ROWS))
    assert staged(server) == []


def test_a_write_that_nobody_can_repeat_leaves_nothing_when_its_publishing_failed(
    spark: SparkSession, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = own_server("redis8")
    writing = spark.range(0, ROWS, 1, 1).write.format("faulty-sink").mode("append")
    writing = writing.options(url=server.url, stream=STREAM, retryTimeout="1s")
    with pytest.raises(PySparkException, match="out of memory"):
        writing.options(harm="full", harmedAlready=str(tmp_path / "harmed")).save()
    assert server.sync().keys("*") == [STREAM.encode()]


WIDE = "repeat(uuid(), 100) as words"  # 20,000 of them do not fit


def test_a_write_that_does_not_fit_into_the_server_frees_what_it_took(
    spark: SparkSession, own_server: Callable[..., Server]
) -> None:
    server = own_server("redis8", config={"maxmemory": "16mb"})
    writing = spark.range(0, 20_000, 1, 1).selectExpr(WIDE).write.format("faulty-sink").mode("append")
    with pytest.raises(PySparkException, match="out of memory"):
        writing.options(url=server.url, stream=STREAM, retryTimeout="1s").save()
    assert server.sync().keys("*") == []


def test_a_batch_of_a_query_that_does_not_fit_into_the_server_frees_what_it_took(
    spark: SparkSession, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = own_server("redis8", config={"maxmemory": "16mb"})
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=20_000, numPartitions=1).load()
    with pytest.raises(StreamingQueryException, match="out of memory"):
        run(rows.selectExpr(WIDE), server, tmp_path)
    assert server.sync().keys("*") == []
