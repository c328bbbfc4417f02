"""Streaming queries into the sink, and drivers that die: none missing, none twice. A shuffle stands before the sink."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.servers import Server
from tests.support.spark_writing import register

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]

FILES, ROWS = 2, 600  # batches, and rows in each


@pytest.fixture(scope="module", autouse=True)
def faulty(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of numbered rows; a query takes one a batch."""
    folder = Path(tmp_path_factory.mktemp("numbers"))
    for file in range(FILES):
        frame = spark.range(file * ROWS, (file + 1) * ROWS).selectExpr("id as n", "concat('row ', id) as words")
        frame.coalesce(1).write.parquet(str(folder / f"part={file}"))
    return folder


@pytest.fixture
def arrange(spark: SparkSession) -> Iterator[Callable[[int, int], None]]:
    """Other shuffle partitions and another Arrow batch size."""

    def change(partitions: int, arrow_rows: int) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(arrow_rows))

    yield change
    change(2, 10_000)


def reading(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.readStream.schema("n bigint, words string").option("maxFilesPerTrigger", 1)
    return frame.option("recursiveFileLookup", "true").parquet(str(folder))


def streamed(spark: SparkSession, server: Server, stream: str) -> DataFrame:
    """The same rows in as many batches, from a stream."""
    pipe = server.sync().pipeline(transaction=False)
    for number in range(FILES * ROWS):
        pipe.xadd(f"{stream}-in", {"n": number, "words": f"row {number}"})
    pipe.execute()
    options = {"url": server.url, "streams": f"{stream}-in", "maxOffsetsPerTrigger": str(ROWS)}
    frame = spark.readStream.format("redis-streams").schema("n string, words string").options(**options)
    return frame.option("startingOffsets", "earliest").load()


def start(frame: DataFrame, server: Server, stream: str, checkpoint: Path, **options: str) -> StreamingQuery:
    writing = frame.writeStream.format("faulty-sink").option("url", server.url).option("stream", stream)
    writing = writing.option("checkpointLocation", str(checkpoint)).options(**options)
    return writing.trigger(availableNow=True).start()


def run(frame: DataFrame, server: Server, stream: str, checkpoint: Path, **options: str) -> None:
    """All there is to read, through a shuffle, into the sink."""
    query = start(frame.repartition("words"), server, stream, checkpoint, **options)
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def written(server: Server, stream: str) -> list[int]:
    return sorted(int(fields[b"n"]) for _, fields in server.sync().xrange(stream))


def staged(server: Server, stream: str) -> list[bytes]:
    """Lists that would stay for ever."""
    client = server.sync()
    return [key for key in client.scan_iter(f"*{stream}*:hr:stage:*") if client.ttl(key) < 0]


@pytest.mark.parametrize("die_at", ["commit", "2"], ids=["between write and commit", "half-way through publish"])
def test_a_driver_that_died_is_followed_by_one_with_other_splits(
    spark: SparkSession,
    server: Server,
    stream: str,
    numbers: Path,
    tmp_path: Path,
    arrange: Callable[[int, int], None],
    die_at: str,
) -> None:
    frame, checkpoint = reading(spark, numbers), tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="Died"):
        run(frame, server, stream, checkpoint, dieAt=die_at, diedAlready=str(tmp_path / "died"))
    assert len(written(server, stream)) < ROWS
    arrange(5, 37)
    run(frame, server, stream, checkpoint)
    assert written(server, stream) == list(range(FILES * ROWS))
    assert staged(server, stream) == []


def test_a_batch_whose_commit_log_is_gone_adds_nothing_again(
    spark: SparkSession,
    server: Server,
    stream: str,
    tmp_path: Path,
    arrange: Callable[[int, int], None],
) -> None:
    frame, checkpoint = streamed(spark, server, stream), tmp_path / "checkpoint"
    run(frame, server, stream, checkpoint)
    assert (checkpoint / "commits" / "1").exists()
    for file in (checkpoint / "commits").glob("*1*"):
        file.unlink()
    for file in (checkpoint / "commits").glob(".*1*"):
        file.unlink()
    arrange(2, 100)
    run(frame, server, stream, checkpoint)
    assert written(server, stream) == list(range(FILES * ROWS))


def test_a_second_driver_on_a_copy_of_the_checkpoint_adds_nothing_again(
    spark: SparkSession, server: Server, stream: str, numbers: Path, tmp_path: Path
) -> None:
    frame, first, second = reading(spark, numbers), tmp_path / "first", tmp_path / "second"
    with pytest.raises(StreamingQueryException, match="Died"):
        run(frame, server, stream, first, dieAt="commit", diedAlready=str(tmp_path / "died"))
    shutil.copytree(first, second)  # the same query id, so the same query to the sink
    run(frame, server, stream, first)  # at once with the second: test_two_drivers_at_once_publish_every_row_once
    run(frame.coalesce(1), server, stream, second)
    assert written(server, stream) == list(range(FILES * ROWS))


def test_two_writes_in_one_foreach_batch_are_two_writers(
    spark: SparkSession, server: Server, stream: str, tmp_path: Path
) -> None:
    url, fail, source = server.url, [True], streamed(spark, server, stream)

    def both(frame: DataFrame, batch: int) -> None:
        for name, part in (("even", "int(n) % 2 = 0"), ("odd", "int(n) % 2 = 1")):
            writing = frame.where(part).repartition("words").write.format("faulty-sink").option("url", url)
            writing = writing.option("stream", stream).option("txnAppId", f"{stream}-{name}")
            writing.option("txnVersion", str(batch)).mode("append").save()
            if fail:
                fail.clear()
                raise ValueError("after the first write of two")

    def attempt() -> None:
        writing = source.writeStream.foreachBatch(both).trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="after the first write of two"):
        attempt()
    attempt()
    assert written(server, stream) == list(range(FILES * ROWS))


def test_a_server_that_forgot_the_query_is_noticed(
    spark: SparkSession, server: Server, stream: str, numbers: Path, tmp_path: Path
) -> None:
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "numbers"
    shutil.copytree(numbers / "part=0", source / "part=0")
    frame = reading(spark, source)
    run(frame, server, stream, checkpoint)
    server.sync().flushall()
    shutil.copytree(numbers / "part=1", source / "part=1")
    with pytest.raises(StreamingQueryException, match="no batch of this query as its last, and batch 1 came"):
        run(frame, server, stream, checkpoint)
    assert written(server, stream) == []
    run(frame, server, stream, checkpoint, acceptGap="true")
    assert written(server, stream) == list(range(ROWS, 2 * ROWS))
