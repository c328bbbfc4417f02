"""A Spark driver for tests that kill it: source, shuffle and sink, held, failed or slowed where the test says so.

    python -m tests.support.spark_driver spark://127.0.0.1:7077 '{"spark.speculation": "true"}'

reads one job a line, as JSON, runs it to its end and answers one line that begins with @. The master may be local, with
retries: `local[2,3]`. The test steers it by keys in Redis below the job's `gate`, on the server `gate_url` if that is
another one:

    <gate>:maps           a list: every attempt of a task before the shuffle tells who it is
    <gate>:tasks          the same behind the shuffle
    <gate>:hold:<word>    while it exists, attempts wait before the end of their rows. The word is `a` or `b` (attempts
                          on that worker; `local` without workers), `first` (the first attempt of the first
                          partition), `copies` (second attempts), or where the driver waits: `commit` (all rows
                          staged), `publish` (half-way through it), `done` (all published, and Spark's commit log not
                          written)
    <gate>:fail           so many times an attempt of the first partition fails
    <gate>:driver         a list: where the driver waits
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import redis
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from headrace.spark import staging
from headrace.spark.sink import StreamWriter, make_stream_writer

SETTINGS = {
    "spark.executor.cores": "1",
    "spark.cores.max": "2",  # one executor on each worker
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0",
    "spark.excludeOnFailure.enabled": "false",
    "spark.python.task.killTimeout": "200ms",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b",  # small data, several tasks all the same
}


class Gate:
    """Where attempts and drivers tell of themselves, and wait."""

    def __init__(self, url: str, name: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._name = name

    def tell(self, word: str, about: dict[str, Any]) -> None:
        self._client.rpush(f"{self._name}:{word}", json.dumps(about))

    def wait(self, word: str) -> None:
        while self._client.exists(f"{self._name}:hold:{word}"):
            time.sleep(0.05)

    def fail(self) -> None:
        if self._client.exists(f"{self._name}:fail") and self._client.decr(f"{self._name}:fail") >= 0:
            raise ValueError("this attempt was told to fail")


def told(url: str, name: str) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Hands a column on as it is, before the shuffle: whoever runs this keeps what it shuffles."""

    def attempt(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        Gate(url, name).tell("maps", {"worker": os.environ.get("HEADRACE_TEST_WORKER", "local")})
        yield from batches

    return attempt


def gated(url: str, name: str) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Hands a column on as it is, and waits before its end: most of the rows are staged by then."""

    def attempt(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        gate, context, worker = Gate(url, name), TaskContext.get(), os.environ.get("HEADRACE_TEST_WORKER", "local")
        assert context is not None
        number, part = context.attemptNumber(), context.partitionId()
        gate.tell("tasks", {"worker": worker, "stage": context.stageId(), "part": part, "attempt": number})
        yield from batches
        if part == 0:
            gate.fail()
        gate.wait(worker)
        if number > 0:
            gate.wait("copies")
        elif part == 0:
            gate.wait("first")

    return attempt


class GatedWriter(StreamWriter):
    """The sink as it is; its driver waits at the gate."""

    url = gate = ""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's word
        gate, publish = Gate(self.url, self.gate), staging.publish
        calls = 0

        def stop(word: str) -> None:
            gate.tell("driver", {"batch": batchId, "at": word})
            gate.wait(word)

        def counted(*words: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                stop("publish")
            return publish(*words)

        staging.publish, staging.PUBLISH_AT_ONCE = counted, 1  # type: ignore[misc, assignment]
        stop("commit")
        try:
            super().commit(messages, batchId)
        finally:
            staging.publish = publish
        stop("done")


class GatedSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "gated-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's word
        own = {word: value for word, value in self.options.items() if word.lower() not in ("gate", "gateurl")}
        writer = make_stream_writer(own, schema, overwrite)
        assert isinstance(writer, StreamWriter)
        waiting = GatedWriter(writer._options, writer._layout)
        waiting.url, waiting.gate = self.options["gateUrl"], self.options["gate"]
        return waiting


def run(spark: SparkSession, job: dict[str, Any]) -> None:
    """Read `source`, shuffle, write to `target`: all there is, on `checkpoint`."""
    spark.conf.set("spark.sql.shuffle.partitions", str(job["partitions"]))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(job["arrow_rows"]))
    gate_url = job.get("gate_url", job["url"])
    reading = spark.readStream.format("redis-streams").schema("n string, payload string").option("url", job["url"])
    reading = reading.option("streams", job["source"]).option("startingOffsets", "earliest")
    reading = reading.option("minPartitions", job["splits"]).option("maxOffsetsPerTrigger", job["rows_a_batch"])
    frame = reading.options(**job.get("options", {})).load()
    maps = F.arrow_udf(told(gate_url, job["gate"]), "string")  # type: ignore[attr-defined]  # its stubs lack it
    frame = frame.withColumn("n", maps("n")).repartition(job["partitions"], "n")
    gate = F.arrow_udf(gated(gate_url, job["gate"]), "string")  # type: ignore[attr-defined]  # its stubs lack it
    frame = frame.withColumn("payload", gate("payload"))  # the large one: a small one would wait in a buffer
    writing = frame.writeStream.format("gated-sink").option("url", job["url"]).option("gate", job["gate"])
    writing = writing.option("stream", job["target"]).option("checkpointLocation", job["checkpoint"])
    writing = writing.option("gateUrl", gate_url)
    query = writing.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def wait_for_executors(spark: SparkSession, count: int) -> None:
    """Until they and the driver itself are known."""
    context: Any = spark.sparkContext._jsc.sc()
    until = time.monotonic() + 120
    while context.getExecutorMemoryStatus().size() <= count:
        if time.monotonic() > until:
            raise TimeoutError(f"{count} executors did not come")
        time.sleep(0.05)


def main(master: str, conf: str) -> int:
    settings = {**SETTINGS, **json.loads(conf)}
    spark = SparkSession.builder.master(master).appName("headrace-tests").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    spark.dataSource.register(GatedSink)
    for line in sys.stdin:
        error = None
        try:
            if master.startswith("spark://"):
                wait_for_executors(spark, 2)
            run(spark, json.loads(line))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print("@" + json.dumps({"error": error}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
