"""The payments example over 1,000,000 messages: rows a second from stream to tables, and the books.

The whole of it: decode, validate, deduplicate, enrich, the review stream through the sink, three tables, windows and
the ledger. Filling the stream is not part of the time; starting the query is. A small run before it warms Spark up.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, lowest
from bench.spark_field import session

ROWS: Final = 1_000_000
DIFFERENT: Final = 50_000  # payments made up; the rest repeats them under other ids
EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "payments" / "payments.toml"
STREAM: Final = "payments"
WARM: Final = 2_000

CRITERIA: Final = (Criterion("unaccounted", "=", 0), Criterion("doubled", "=", 0))


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-pipeline",
        f"the payments example, {ROWS:,} rows",
        "in = out + duplicates + quarantined",
        runs,
        CRITERIA,
        ("version", "rows", "rows_per_s", "out", "duplicates", "quarantined", "reviewed", "unaccounted", "doubled"),
        lowest("rows_per_s"),
        lambda runs: f"{runs[0]['rows_per_s']:,} rows/s, books exact",
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    from headrace.spark.pipeline import read_toml
    from headrace.spark.pipeline.run import run

    with session() as spark, tempfile.TemporaryDirectory() as folder:
        example = read_toml(EXAMPLE)
        pipeline = dataclasses.replace(example, folder=folder, source={**example.source, "url": arena.url})
        _fill(arena, WARM)
        run(dataclasses.replace(pipeline, folder=f"{folder}/warm"), spark)
        arena.client.flushall()
        rows = _fill(arena, max(5_000, int(ROWS * scale)))
        say(f"{rows:,} messages are in the stream")
        begun = time.perf_counter()
        totals = run(pipeline, spark, told=lambda progress: say(progress.as_text()))
        seconds = time.perf_counter() - begun
        table = spark.read.parquet(f"{folder}/tables/payments")
        doubled = table.count() - table.select("id").distinct().count()
    reviewed = arena.client.xlen("payments-review")
    counted = totals.out + totals.duplicates + totals.quarantined
    return [
        {
            **arena.words,
            "rows": rows,
            "seconds": round(seconds, 1),
            "rows_per_s": round(rows / seconds),
            "out": totals.out,
            "duplicates": totals.duplicates,
            "quarantined": totals.quarantined,
            "reviewed": reviewed,
            "unaccounted": abs(rows - counted) + abs(reviewed - totals.routes["review"]),
            "doubled": doubled,
        }
    ]


def _fill(arena: Arena, rows: int) -> int:
    """The demo's payments over and over, each time with other ids, so that only the demo's repeats are repeats."""
    from headrace.demo.payments import sendings

    sent = [one.body for one in sendings(min(rows, DIFFERENT))]
    done = 0
    while done < rows:
        turn, part = str(done).encode(), sent[: rows - done]
        for start in range(0, len(part), 1_000):
            pipe = arena.client.pipeline(transaction=False)
            for body in part[start : start + 1_000]:
                pipe.xadd(STREAM, {"payload": body.replace(b'"pay-', b'"pay-' + turn + b"-", 1)})
            pipe.execute()
        done += len(part)
    return done
