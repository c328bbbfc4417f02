"""1,000,000 entries of 5 fields in 8 streams, read by Spark on two cores; beside it a redis-py loop in one process.

The loop reads with redis-py and hiredis, XRANGE by XRANGE, and does nothing with what it gets. ``tuples_ratio`` is how
much quicker the reader is than one that yields tuples, the usual way to write a source. Binary values and entries of
100 kB are measured too; memory is the peak of the largest Python worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.report import Criterion, Report, Run, lowest
from bench.spark_field import LARGE_BYTES, cpu_s, fill, peak_mb, session, source, worker_pids

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

    from bench.arena import Arena

ROWS: Final = 1_000_000
LARGE_ROWS: Final = 4_000
STREAMS: Final = 8
ROUNDS: Final = 3
LOOP_COUNT: Final = 5_000

CRITERIA: Final = (
    Criterion("ratio", "≥", 1.0, {"values": "text"}),
    Criterion("tuples_ratio", "≥", 4.0, {"values": "text"}),
    Criterion("worker_rss_mb", "≤", 300, unit=" MB"),
)
SHOWN: Final = (
    "version",
    "values",
    "rows",
    "rows_per_s",
    "loop_rows_per_s",
    "ratio",
    "tuples_ratio",
    "client_cpu_us_per_row",
    "worker_rss_mb",
)


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-read",
        f"{ROWS:,} entries of 5 fields in {STREAMS} streams, read on two cores; beside a redis-py loop in one process",
        "≥ 1.0 × the loop, ≥ 4 × tuples, ≤ 300 MB a worker",
        runs,
        CRITERIA,
        SHOWN,
        lowest("ratio", values="text"),
        _cell,
    )


def _cell(runs: list[Run]) -> str:
    """What the README says of one server."""
    names = {"large": f"{LARGE_BYTES // 1000} kB entries"}
    figures = []
    for run in runs:
        tuples = f", {run['tuples_ratio']:.1f} × tuples" if run.get("tuples_ratio") else ""
        name = names.get(run["values"], run["values"])
        figures.append(f"{name} {run['ratio']:.2f} × ({run['rows_per_s']:,} rows/s{tuples})")
    return f"{', '.join(figures)}; {max(run['worker_rss_mb'] for run in runs)} MB"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    runs = []
    with session() as spark:
        for values, most in (("text", ROWS), ("binary", ROWS), ("large", LARGE_ROWS)):
            arena.client.flushall()
            rows = max(STREAMS, int(most * scale) // STREAMS * STREAMS)
            names = [f"bench-{number}" for number in range(STREAMS)]
            for name in names:
                fill(arena, name, rows // STREAMS, values)
            runs.append(_run(spark, arena, names, values, rows))
            say(f"{values}: {runs[-1]['rows_per_s']:,} rows/s, the loop {runs[-1]['loop_rows_per_s']:,}")
    return runs


def _run(spark: SparkSession, arena: Arena, names: list[str], values: str, rows: int) -> Run:
    frame = source(spark, arena, streams=",".join(names))
    _consume(frame)  # warm: the JVM, the Python workers, the code in both
    pids = worker_pids()
    before = cpu_s(pids)
    ours = [_timed(lambda: _consume(frame)) for _ in range(ROUNDS)]
    cpu = (cpu_s(pids) - before) / ROUNDS
    loop = [_timed(lambda: _loop(arena.client, names)) for _ in range(ROUNDS)]
    run = {
        **arena.words,
        "values": values,
        "rows": rows,
        "rows_per_s": round(rows / median(ours)),
        "loop_rows_per_s": round(rows / median(loop)),
        "ratio": round(median(loop) / median(ours), 3),
        "client_cpu_us_per_row": round(cpu / rows * 1e6, 2),
        "worker_rss_mb": round(peak_mb(worker_pids())),
    }
    if values == "text":
        tuples = _tuples(spark, arena, names)
        _consume(tuples)
        run["tuples_ratio"] = round(_timed(lambda: _consume(tuples)) / median(ours), 2)
    return run


def _consume(frame: Any) -> None:
    """Have Spark make every row and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def _timed(step: Callable[[], None]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def _loop(client: redis.Redis, names: list[str]) -> None:
    for name in names:
        start = "-"
        while page := client.xrange(name, start, "+", count=LOOP_COUNT):
            start = "(" + page[-1][0].decode()  # type: ignore[index,union-attr]


def _tuples(spark: SparkSession, arena: Arena, names: list[str]) -> Any:
    """The same rows through a source that yields tuples."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    url = os.fspath(arena.socket)

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(name) for name in names]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            import redis

            client = redis.Redis(unix_socket_path=url)
            start = "-"
            while page := client.xrange(partition.value, start, "+", count=LOOP_COUNT):
                for id_, fields in page:  # type: ignore[union-attr,misc]
                    at = datetime.fromtimestamp(int(id_.partition(b"-")[0]) / 1000, UTC)
                    yield partition.value, id_.decode(), at, {name.decode(): value for name, value in fields.items()}
                start = "(" + page[-1][0].decode()  # type: ignore[index,union-attr]

    class Tuples(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench-tuples"

        def schema(self) -> str:
            return "stream string, id string, timestamp timestamp, fields map<string,binary>"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Tuples)
    return spark.read.format("bench-tuples").load()
