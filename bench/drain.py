"""One process that empties a stream and says what it cost: ``python -m bench.drain headrace|raw|sleeps ...``.

A process of its own for every run, so that CPU time and memory are those of this run alone. ``raw`` is the loop to
compare with: redis-py on asyncio with hiredis and RESP2, XREADGROUP and XACK with the same batch size, no handler, no
fence, nothing renewed. ``sleeps`` runs the handler alone, without any server: what this machine's event loop can do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1_000_000


def rss_mb() -> float:
    """What this process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MB


def drain(kind: str, **options: Any) -> dict[str, Any]:
    """Run one drain in a process of its own and return its figures."""
    words = [sys.executable, "-m", "bench.drain", kind]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


# ── inside the process ──


@dataclass(frozen=True, slots=True)
class End:
    """When the last message was acknowledged, and what the process held then."""

    at: float
    rss_mb: float

    @classmethod
    def now(cls) -> End:
        return cls(time.perf_counter(), rss_mb())


async def _raw(options: argparse.Namespace) -> End:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(options.url, protocol=2)
    stream, group, left = options.stream, options.group, options.count
    await client.xgroup_create(stream, group, "0")
    while left > 0:
        found: Any = await client.xreadgroup(group, "raw", {stream: ">"}, count=options.concurrency)
        ids = [entry[0] for entry in found[0][1]]
        await client.xack(stream, group, *ids)
        left -= len(ids)
    end = End.now()
    await client.aclose()
    return end


async def _headrace(options: argparse.Namespace) -> End:
    from headrace import App

    app = App(options.url)
    done, left, pause_s = asyncio.Event(), options.count, options.handler_ms / 1000

    async def empty(payload: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def busy(payload: dict[str, Any]) -> None:
        await asyncio.sleep(pause_s)
        await empty(payload)

    handler = app.stream(options.stream).handler(group=options.group, concurrency=options.concurrency)
    handler(busy if pause_s else empty)
    async with app.worker() as worker:
        await done.wait()
        while options.settle and any(lane.slots.held for lane in worker.lanes):
            await asyncio.sleep(0.001)  # the last acks are part of the work
        return End.now()


async def _sleeps(options: argparse.Namespace) -> End:
    left, pause_s = options.count, options.handler_ms / 1000

    async def runner() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(runner() for _ in range(options.concurrency)))
    return End.now()


def _run(work: Coroutine[Any, Any, End], *, ours: bool) -> End:
    """Workers run on the loop of `headrace run`, the others on asyncio's own."""
    if not ours:
        return asyncio.run(work)
    from headrace import loop

    return loop.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drain")
    parser.add_argument("kind", choices=("headrace", "raw", "sleeps"))
    parser.add_argument("--url", default="")
    parser.add_argument("--stream", default="orders")
    parser.add_argument("--group", default="group")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="stop after so many messages")
    parser.add_argument("--handler-ms", type=float, default=0.0)
    parser.add_argument("--settle", type=int, default=1, help="0: others wait behind these, do not wait for an end")
    options = parser.parse_args()
    work = {"headrace": _headrace, "raw": _raw, "sleeps": _sleeps}[options.kind]
    if options.kind == "headrace":
        import headrace  # noqa: F401 - loading the modules is not part of the work
    if options.kind == "raw":
        import redis.asyncio  # noqa: F401
    begun, cpu = time.perf_counter(), time.process_time()
    end = _run(work(options), ours=options.kind == "headrace")
    seconds, cpu = end.at - begun, time.process_time() - cpu
    figures = {"seconds": seconds, "cpu_s": cpu, "rss_mb": end.rss_mb, "msgs_per_s": options.count / seconds}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
