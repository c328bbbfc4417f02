"""From XADD to a row in a memory sink, at a steady 100 messages a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bench.report import Criterion, Report, Run, highest, quantile
from bench.spark_field import session

if TYPE_CHECKING:
    from bench.arena import Arena

RATE: Final = 100
SECONDS: Final = 20
WARM_SECONDS: Final = 5
CRITERIA: Final = (Criterion("p50_s", "≤", 0.5, unit=" s"),)


def report(runs: list[Run]) -> Report:
    return Report(
        "spark-latency",
        f"XADD to a row in a memory sink, {RATE} a second",
        "p50 ≤ 0.5 s",
        runs,
        CRITERIA,
        ("version", "rows", "p50_s", "p95_s", "p99_s"),
        highest("p50_s"),
        lambda runs: f"p50 {runs[0]['p50_s']:.2f} s, p99 {runs[0]['p99_s']:.2f} s",
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    seconds = max(3.0, SECONDS * scale)
    with session() as spark, tempfile.TemporaryDirectory() as checkpoint:
        seen: dict[int, float] = {}  # number -> when the batch that has it was in the sink

        def note(frame: Any, _: int) -> None:
            numbers = [int(row.number) for row in frame.collect()]
            now = time.time()
            seen.update(dict.fromkeys(numbers, now))

        reader = spark.readStream.format("redis-streams").schema("number string").option("url", arena.url)
        frame = reader.option("streams", "steady").option("startingOffsets", "earliest").load()
        query = frame.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint).start()
        try:
            arena.client.xadd("steady", {"number": -1})
            _until(lambda: -1 in seen or not query.isActive)  # the JVM and the Python workers are there
            added = _add_steadily(arena, WARM_SECONDS + seconds)
            _until(lambda: len(seen) > len(added) or not query.isActive)
        finally:
            query.stop()
    late = [seen[number] - at for number, at in added.items() if number >= WARM_SECONDS * RATE]
    say(f"p50 {quantile(late, 0.5):.2f} s, p99 {quantile(late, 0.99):.2f} s")
    shares = {f"p{share}_s": round(quantile(late, share / 100), 3) for share in (50, 95, 99)}
    return [{**arena.words, "rows": len(late), **shares}]


def _add_steadily(arena: Arena, seconds: float) -> dict[int, float]:
    """number -> when it was added"""
    begun = time.time()
    added: dict[int, float] = {}
    for number in range(int(seconds * RATE)):
        time.sleep(max(0.0, begun + number / RATE - time.time()))
        added[number] = time.time()
        arena.client.xadd("steady", {"number": number})
    return added


def _until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        if time.monotonic() > until:
            raise RuntimeError("the rows did not come")
        time.sleep(0.05)
