"""20 workers that recover by requeue, 1,000 orphans, half of them with a live lock: who is requeued, and how often.

A dead consumer of the protocol left a thousand messages pending; five hundred have a lock that lives. Twenty workers
scan at once, spread by chance. From their start until every message without a lock was handled as a copy; then the
stream is read from end to end and every copy is counted by the message it was made of.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, highest
from headrace import App, CountingRecorder, Delivery, Requeue
from headrace.names import Keys, keys_of

WORKERS: Final = 20
ORPHANS: Final = 1_000
LOCK_S: Final = 1.0
MIN_IDLE_MS: Final = 30_000
LIMIT_S: Final = 60.0
GROUP: Final = "billing"

CRITERIA: Final = (
    Criterion("missing", "=", 0),
    Criterion("twice", "=", 0),
    Criterion("live_requeued", "=", 0),
    Criterion("seconds", "≤", 10, {}, " s"),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "requeue",
        f"recovery by requeue: {WORKERS} workers, {ORPHANS:,} orphans, half with a live lock",
        "each free one requeued once, none with a live lock",
        runs,
        CRITERIA,
        ("version", "requeued", "twice", "live_requeued", "skipped_alive", "seconds"),
        highest("seconds"),
        lambda runs: (
            f"{runs[0]['requeued']} requeued, {runs[0]['twice']} twice, {runs[0]['live_requeued']} with a live lock; "
            f"{runs[0]['seconds']:.1f} s"
        ),
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    orphans = max(20, int(ORPHANS * scale))
    workers = WORKERS if scale >= 1 else 4
    keys = keys_of("orders")
    ids = _orphans(arena, keys, orphans)
    live = ids[::2]
    for id_ in live:
        arena.client.set(keys.lock(id_), "alive")
    recorder = CountingRecorder()
    seconds = asyncio.run(_recover(arena.url, keys.stream, workers, recorder, len(ids) - len(live)))
    copies = Counter(
        fields[b"_original_id"].decode() for _, fields in arena.client.xrange(keys.stream) if b"_original_id" in fields
    )
    found = {
        "requeued": copies.total(),
        "missing": len(set(ids) - set(live) - set(copies)),
        "twice": sum(count > 1 for count in copies.values()),
        "live_requeued": sum(copies[id_] for id_ in live),
        "skipped_alive": recorder.total("recovery_scan_skipped_alive_total"),
        "seconds": round(seconds, 2),
    }
    say(
        f"{found['requeued']} of {orphans} requeued in {seconds:.2f} s, {found['skipped_alive']} times skipped as alive"
    )
    return [{**arena.words, "workers": workers, "orphans": orphans, **found}]


def _orphans(arena: Arena, keys: Keys, count: int) -> list[str]:
    """Messages that a dead consumer read twice the minimal idle time ago."""
    arena.fill(keys.stream, count)
    client = arena.client
    client.xgroup_create(keys.stream, GROUP, "0")
    client.xreadgroup(GROUP, "dead", {keys.stream: ">"}, count=count)
    ids = [id_.decode() for id_, _ in client.xrange(keys.stream)]
    for at in range(0, count, 500):
        client.xclaim(keys.stream, GROUP, "dead", 0, ids[at : at + 500], idle=2 * MIN_IDLE_MS, justid=True)
    return ids


async def _recover(url: str, stream: str, workers: int, recorder: CountingRecorder, expected: int) -> float:
    app = App(url, recorder=recorder)
    recovery = Requeue(interval="500ms", min_idle=MIN_IDLE_MS / 1000)
    done = 0
    finished = asyncio.Event()

    @app.stream(stream).handler(group=GROUP, lease=LOCK_S, concurrency=50, recovery=recovery)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        nonlocal done
        done += 1
        if done == expected:
            finished.set()

    begun = time.monotonic()
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(app.worker())
        await asyncio.wait_for(finished.wait(), LIMIT_S)
        seconds = time.monotonic() - begun
        await asyncio.sleep(2 * LOCK_S)  # whoever would requeue twice has had its scan by then
    await app.close()
    return seconds
