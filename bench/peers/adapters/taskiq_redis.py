"""taskiq with RedisStreamBroker: the receiver of `taskiq worker`, uvloop, 32 async tasks and 32 prefetched,
arguments not validated (`--no-parse`), no result backend, acknowledged when saved (the default), reads of 100.

Fastest recovery: idle_timeout=1000 ms (the default is 10 minutes). It claims only after a read that brought something.
"""

from __future__ import annotations

import sys

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.contract import EITHER, Payload, begin, serve_adds, some_at_once

role, order = begin(sys.argv)
options = {"idle_timeout": 1000} if order.fastest else {}
broker = RedisStreamBroker(order.url, consumer_id="0", **options)  # "0": also what was added before the first worker
tasks = {kind: broker.register_task(EITHER[kind], task_name=kind) for kind in order.kinds}


async def adding() -> None:
    async def add(kind: str, payloads: list[Payload]) -> None:
        await some_at_once(tasks[kind].kiq(payload) for payload in payloads)

    await broker.startup()
    await serve_adds(add)
    await broker.shutdown()


async def working() -> None:
    await run_receiver_task(
        broker,
        sync_workers=order.concurrency,
        validate_params=False,
        max_async_tasks=order.concurrency,
        max_prefetch=order.concurrency,
        run_startup=True,
    )


uvloop.run(adding() if role == "add" else working())
