"""500,000 rows through the sink, exactly once, beside a redis-py loop that pipelines XADD in one process.

The rows have five fields and lie in Spark's memory before. ``staged`` is the default of the sink, ``direct`` the same
with delivery = at-least-once. After every run the stream is counted: a row too few or too many fails the bench.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, lowest
from bench.spark_field import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 500_000
ROUNDS: Final = 3
PIPELINE: Final = 1_000  # XADDs of the loop in one write
PARTITIONS: Final = 4

CRITERIA: Final = (Criterion("ratio", "≥", 1.5),)


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-sink",
        f"{ROWS:,} rows of five fields through the sink, exactly once; beside a pipelined redis-py XADD loop",
        "≥ 1.5 × the loop",
        runs,
        CRITERIA,
        ("version", "rows", "rows_per_s", "loop_rows_per_s", "direct_rows_per_s", "small_ms", "ratio"),
        lowest("ratio"),
        lambda runs: f"{runs[0]['ratio']:.2f} × ({runs[0]['rows_per_s']:,.0f} rows/s)",
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    rows = max(5_000, int(ROWS * scale))
    rounds = ROUNDS if scale >= 1 else 1
    with session() as spark:
        frame = _rows(spark, rows)
        _staged(arena, frame.limit(1_000), "warm")
        staged = [_timed(arena, rows, lambda: _staged(arena, frame, "rows")) for _ in range(rounds)]
        direct = [_timed(arena, rows, lambda: _staged(arena, frame, "rows", delivery="at-least-once"))]
        small = [_timed(arena, 10, lambda: _staged(arena, frame.limit(10).coalesce(1), "rows")) for _ in range(5)]
    loop = [_timed(arena, rows, lambda: _loop(arena, rows)) for _ in range(rounds)]
    speed, plain = rows / median(staged), rows / median(loop)
    say(f"staged {speed:,.0f} rows/s, at least once {rows / median(direct):,.0f}, the loop {plain:,.0f}")
    return [
        {
            **arena.words,
            "rows": rows,
            "rows_per_s": round(speed),
            "loop_rows_per_s": round(plain),
            "direct_rows_per_s": round(rows / median(direct)),
            "small_ms": round(median(small) * 1000, 1),
            "ratio": round(speed / plain, 2),
        }
    ]


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "cast(id as string) as id",
        "concat('merchant-', id % 1000) as merchant",
        "cast(id % 10000 / 100 as string) as amount",
        "'EUR' as currency",
        "'abcdefghijklmnopqrstuvwxyz' as note",
    )
    kept = frame.persist()
    kept.count()
    return kept


def _staged(arena: Arena, frame: DataFrame, stream: str, **options: str) -> None:
    writing = frame.write.format("redis-streams").option("url", arena.url).option("stream", stream)
    writing.options(**options).mode("append").save()


def _loop(arena: Arena, rows: int) -> None:
    """What one would write without Spark. Making the rows is part of it, as it is of any producer."""
    for start in range(0, rows, PIPELINE):
        pipe = arena.client.pipeline(transaction=False)
        for number in range(start, min(rows, start + PIPELINE)):
            fields: dict[Any, Any] = {
                "id": number,
                "merchant": f"merchant-{number % 1000}",
                "amount": number % 10000 / 100,
                "currency": "EUR",
                "note": "abcdefghijklmnopqrstuvwxyz",
            }
            pipe.xadd("rows", fields)
        pipe.execute()


def _timed(arena: Arena, rows: int, write: Callable[[], None]) -> float:
    arena.client.delete("rows")
    begun = time.perf_counter()
    write()
    seconds = time.perf_counter() - begun
    found = arena.client.xlen("rows")
    if found != rows:
        raise RuntimeError(f"{found:,} entries are in the stream, and {rows:,} rows were written")
    return seconds
