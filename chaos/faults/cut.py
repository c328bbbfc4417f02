"""The way to the server: cut, cut in the middle of a reply, held, slow, or answering for a server that cannot."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.crew import Worker
    from chaos.stage import Stage
    from tests.support.proxy import Proxy

REFUSALS = {
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "MASTERDOWN": b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
    "CLUSTERDOWN": b"-CLUSTERDOWN The cluster is down\r\n",
    "TRYAGAIN": b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
}


def _one(stage: Stage, rng: random.Random) -> tuple[Worker, Proxy] | None:
    joined = [worker for worker in stage.crew.alive if worker.joined]
    if not joined:
        return None
    worker = rng.choice(joined)
    return worker, stage.proxy_of(worker)


async def cut(stage: Stage, rng: random.Random, /, *, storm: int = 1) -> None:
    """Reset every connection of every worker, `storm` times in short order."""
    stage.note_fault("cut", stage.crew.alive)
    for _ in range(storm):
        for proxy in stage.proxies:
            await proxy.cut()
        await asyncio.sleep(rng.uniform(0.01, 0.06))


async def cut_mid_frame(stage: Stage, rng: random.Random, /) -> None:
    """Cut a worker's connections in the middle of the next reply that is longer than a word."""
    found = _one(stage, rng)
    if found is None:
        return
    worker, proxy = found
    stage.note_fault("cut mid-frame", [worker])
    share, done = rng.uniform(0.0, 0.95), asyncio.Event()

    def middle(data: bytes) -> int | None:
        if len(data) < 40 or done.is_set():
            return None
        done.set()
        return int(len(data) * share)

    proxy.cut_reply = middle
    try:
        await asyncio.wait_for(done.wait(), 1.0)
    except TimeoutError:
        stage.failed_fault("cut mid-frame")  # nothing long enough came by
    finally:
        proxy.cut_reply = None


async def partition(stage: Stage, rng: random.Random, /, *, leases: float = 2.0, one_way: bool = False) -> None:
    """Hold what passes between one worker and the server; `one_way`: the server hears it, it hears nothing."""
    found = _one(stage, rng)
    if found is None:
        return
    worker, proxy = found
    stage.note_fault("one-way partition" if one_way else "partition", [worker], excuses=True)
    if one_way:
        proxy.hold_replies = True
    else:
        proxy.holding = True
    await asyncio.sleep(leases * stage.lease_s)
    proxy.hold_replies = proxy.holding = False
    stage.healed_fault("partition", [worker])


async def slow(
    stage: Stage, rng: random.Random, /, *, delay_s: float = 0.0, bytes_per_s: int = 0, s: float = 3.0
) -> None:
    """200 ms there and back, or 10 kB a second, for one worker: slow is not dead, and nothing may be taken from it."""
    found = _one(stage, rng)
    if found is None:
        return
    worker, proxy = found
    stage.note_fault("latency" if delay_s else "throttle", [worker])
    proxy.delay_s, proxy.bytes_per_s = delay_s, bytes_per_s
    await asyncio.sleep(s)
    proxy.delay_s, proxy.bytes_per_s = 0.0, 0
    stage.healed_fault("slow", [worker])


async def refuse(stage: Stage, rng: random.Random, /, *, word: str = "LOADING", s: float = 0.5) -> None:
    """Every command of every worker is answered with an error of a server that cannot serve just now."""
    stage.note_fault(word, stage.crew.alive)
    for proxy in stage.proxies:
        proxy.refusal = REFUSALS[word]
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    for proxy in stage.proxies:
        proxy.refusal = None
    stage.healed_fault(word)
