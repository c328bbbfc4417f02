"""1,000,000 entries of 5 fields in 8 streams, read by Spark on two cores; beside it a redis-py loop in one process.

The loop reads with redis-py and hiredis, XRANGE by XRANGE, and does nothing with what it gets. ``tuples_ratio`` is how
much quicker the reader is than the same one yielding tuples, the usual way to write a source. Binary values and entries
of 100 kB are measured too, and short streams of the latter beside one of tiny rows, packed into few tasks. Memory is
the peak of the largest Python worker, at a quarter of the rows (``quarter_rss_mb``) and at all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.report import Criterion, Report, Run, lowest
from bench.spark_field import LARGE_BYTES, cpu_s, fill, forget_peaks, peak_mb, session, source, worker_pids

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

    from bench.arena import Arena

ROWS: Final = 1_000_000
LARGE_ROWS: Final = 4_000
PACKED_ROWS: Final = 3_000
PACKED_LENGTH: Final = 150  # of a stream so short that it shares requests with others
TINY_ROWS: Final = 190  # of the one among them that has the most
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
    "quarter_rss_mb",
    "worker_rss_mb",
)


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-read",
        f"{ROWS:,} entries of 5 fields in {STREAMS} streams, read on two cores; beside a redis-py loop in one process",
        "text entries ≥ 1.0 × the loop and ≥ 4 × tuples (of the others no ratio is asked); all ≤ 300 MB a worker",
        runs,
        CRITERIA,
        SHOWN,
        lowest("ratio", values="text"),
        _cell,
    )


def _cell(runs: list[Run]) -> str:
    """What the README says of one server."""
    large = f"{LARGE_BYTES // 1000} kB entries"
    names = {"large": large, "packed": f"{large} of short streams"}
    figures = []
    for run in runs:
        tuples = f", {run['tuples_ratio']:.1f} × tuples" if run.get("tuples_ratio") else ""
        name = names.get(run["values"], run["values"])
        figures.append(f"{name} {run['ratio']:.2f} × ({run['rows_per_s']:,} rows/s{tuples})")
    return f"{', '.join(figures)}; {max(run['worker_rss_mb'] for run in runs)} MB"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    runs = []
    with session() as spark:
        for values, most in (("text", ROWS), ("binary", ROWS), ("large", LARGE_ROWS), ("packed", PACKED_ROWS)):
            arena.client.flushall()
            lengths = _lengths(values, int(most * scale))
            runs.append(_run(spark, arena, lengths, values))
            say(f"{values}: {runs[-1]['rows_per_s']:,} rows/s, the loop {runs[-1]['loop_rows_per_s']:,}")
    return runs


def _lengths(values: str, rows: int) -> dict[str, int]:
    """The streams, and how many rows each has."""
    if values != "packed":
        return {f"bench-{number}": max(4, rows // STREAMS) for number in range(STREAMS)}
    count = max(4, rows // PACKED_LENGTH)
    return {"bench-tiny": TINY_ROWS, **{f"bench-{number:04}": PACKED_LENGTH for number in range(count)}}


def _fill(arena: Arena, lengths: dict[str, int], values: str) -> None:
    for name, length in lengths.items():
        kind = "large" if values == "packed" and name != "bench-tiny" else values
        fill(arena, name, length, kind)


def _run(spark: SparkSession, arena: Arena, lengths: dict[str, int], values: str) -> Run:
    names, rows = list(lengths), sum(lengths.values())
    quarter = {name: length // 4 for name, length in lengths.items()}
    _fill(arena, quarter, values)
    frame = source(spark, arena, streams=",".join(names))
    forget_peaks(worker_pids())
    _consume(frame)  # warm: the JVM, the Python workers, the code in both
    quarter_mb = peak_mb(worker_pids())
    _fill(arena, {name: length - quarter[name] for name, length in lengths.items()}, values)
    frame = source(spark, arena, streams=",".join(names))
    forget_peaks(worker_pids())
    _consume(frame)
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
        "quarter_rss_mb": round(quarter_mb),
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
    """The same reader, with the same plan and the same requests, that yields tuples instead of Arrow batches."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from headrace.spark.chunks import Patience, RangeReader, listed
    from headrace.spark.pace import Pace
    from headrace.spark.plan import Share
    from headrace.spark.schema import DEFAULT
    from headrace.spark.source import BatchReader
    from headrace.spark.source_options import SourceSettings
    from headrace.spark.wire import Wire

    settings = SourceSettings.of({"url": arena.url, "streams": ",".join(names)}, streaming=False)

    class Reader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # type: ignore[override]
            assert isinstance(partition, Share)
            wire = Wire(settings.address, "bench-tuples")
            for part in partition.ranges:
                pace = Pace(settings.fetch_bytes)
                for chunk in RangeReader(wire, part, pace, listed, fail_on_loss=True, patience=Patience()):
                    for id_, words in chunk.entries:  # type: ignore[attr-defined]
                        at = datetime.fromtimestamp(int(id_.partition(b"-")[0]) / 1000, UTC)
                        fields = zip([name.decode() for name in words[::2]], words[1::2], strict=True)
                        yield part.key, id_.decode(), at, dict(fields)
            wire.close()

    class Tuples(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bench-tuples"

        def schema(self) -> Any:
            return DEFAULT

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(settings, schema)

    spark.dataSource.register(Tuples)
    return spark.read.format("bench-tuples").load()
