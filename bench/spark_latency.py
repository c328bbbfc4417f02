"""From XADD to a row in a memory sink, at a steady 100 messages a second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import datetime
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
    settings = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    with session(**settings) as spark, tempfile.TemporaryDirectory() as checkpoint:
        reader = spark.readStream.format("redis-streams").schema("number string").option("url", arena.url)
        frame = reader.option("streams", "steady").option("startingOffsets", "earliest").load()
        query = frame.writeStream.format("memory").queryName("seen").option("checkpointLocation", checkpoint).start()
        try:
            arena.client.xadd("steady", {"number": -1})
            _until(lambda: _rows(query) >= 1)  # the JVM and the Python workers are there
            added = _add_steadily(arena, WARM_SECONDS + seconds)
            _until(lambda: _rows(query) > len(added))
            seen = _arrivals(query)[1:]
        finally:
            query.stop()
    late = [there - at for there, at in zip(seen, added, strict=True)][WARM_SECONDS * RATE :]
    say(f"p50 {quantile(late, 0.5):.2f} s, p99 {quantile(late, 0.99):.2f} s")
    shares = {f"p{share}_s": round(quantile(late, share / 100), 3) for share in (50, 95, 99)}
    return [{**arena.words, "rows": len(late), **shares}]


def _rows(query: Any) -> int:
    if query.exception():
        raise RuntimeError(f"the query ended: {query.exception()}")
    return sum(one.numInputRows for one in query.recentProgress)


def _arrivals(query: Any) -> list[float]:
    """When each row was in the sink, in the order of the stream: when its batch was there, but not yet committed."""
    found: list[float] = []
    for one in query.recentProgress:
        begun = datetime.fromisoformat(one.timestamp).timestamp()
        spent = one.durationMs
        there = begun + (spent.get("triggerExecution", 0) - spent.get("commitOffsets", 0)) / 1000
        found += [there] * one.numInputRows
    return found


def _add_steadily(arena: Arena, seconds: float) -> list[float]:
    """Add messages; answers when each was added."""
    begun = time.time()
    added: list[float] = []
    for number in range(int(seconds * RATE)):
        time.sleep(max(0.0, begun + number / RATE - time.time()))
        added.append(time.time())
        arena.client.xadd("steady", {"number": number})
    return added


def _until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        if time.monotonic() > until:
            raise RuntimeError("the rows did not come")
        time.sleep(0.05)
