"""streaQ: concurrency 32 and as many prefetched (its default), uvloop, results off (ttl=0), silent tasks, pickled
arguments (its default).

Fastest recovery: idle_timeout=1 s (the default is 60 s); it renews nine tenths of that apart.
"""

from __future__ import annotations

import logging
import sys

import uvloop
from streaq import Worker

from bench.peers.contract import EITHER, Payload, begin, serve_adds

role, order = begin(sys.argv)
logging.disable(logging.WARNING)
worker = Worker(
    redis_url=order.url,
    concurrency=order.concurrency,
    anyio_kwargs={"use_uvloop": True},
    **({"idle_timeout": 1} if order.fastest else {}),
)
tasks = {kind: worker.task(name=kind, ttl=0, silent=True)(EITHER[kind]) for kind in order.kinds}


async def adding() -> None:
    async def add(kind: str, payloads: list[Payload]) -> None:
        await worker.enqueue_many([tasks[kind].enqueue(payload) for payload in payloads])

    async with worker:
        await serve_adds(add)


if role == "add":
    uvloop.run(adding())
else:
    worker.run_sync()
