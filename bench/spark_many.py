"""5,000 streams with one new row each: how long a batch of a streaming query takes that reads them all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.report import Criterion, Report, Run, highest
from bench.spark_field import session

if TYPE_CHECKING:
    from bench.arena import Arena

STREAMS: Final = 5_000
ROUNDS: Final = 5
PATIENCE_S: Final = 60.0
CRITERIA: Final = (Criterion("batch_s", "≤", 3.0, unit=" s"),)


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-many",
        f"{STREAMS:,} streams with one new row each, one batch",
        "≤ 3 s",
        runs,
        CRITERIA,
        ("version", "streams", "batch_s", "first_s", "latest_offset_s"),
        highest("batch_s"),
        lambda runs: f"{runs[0]['batch_s']:.2f} s",
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    count = max(50, int(STREAMS * scale))
    names = [f"many:{number}" for number in range(count)]
    _add(arena, names)
    with session() as spark, tempfile.TemporaryDirectory() as checkpoint:
        frame = (
            spark.readStream.format("redis-streams")
            .option("url", arena.url)
            .option("streamsPattern", "many:*")
            .option("startingOffsets", "earliest")
            .load()
        )
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            times = []
            for round_ in range(ROUNDS):
                _until(query, (round_ + 1) * count)
                times.append(_last(query, count))
                _add(arena, names)
        finally:
            query.stop()
    warm = times[1:]
    say(f"a batch of {count:,} streams in {median(one for one, _ in warm):.2f} s")
    return [
        {
            **arena.words,
            "streams": count,
            "batch_s": round(median(one for one, _ in warm), 3),
            "first_s": round(times[0][0], 3),
            "latest_offset_s": round(median(latest for _, latest in warm), 3),
        }
    ]


def _add(arena: Arena, names: list[str]) -> None:
    pipe = arena.client.pipeline(transaction=True)  # at once: one batch sees them all
    for name in names:
        pipe.xadd(name, {"id": 1, "note": "hello"})
    pipe.execute()


def _until(query: object, rows: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while sum(one.numInputRows for one in query.recentProgress) < rows:  # type: ignore[attr-defined]
        if time.monotonic() > until or query.exception():  # type: ignore[attr-defined]
            raise RuntimeError(f"the rows did not come: {query.exception()}")  # type: ignore[attr-defined]
        time.sleep(0.02)


def _last(query: object, rows: int) -> tuple[float, float]:
    """(the whole batch, finding its end) in seconds."""
    full = [one for one in query.recentProgress if one.numInputRows >= rows]  # type: ignore[attr-defined]
    spent = full[-1].durationMs
    return spent["triggerExecution"] / 1000, spent["latestOffset"] / 1000
