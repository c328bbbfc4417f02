"""arq: max_jobs=32, uvloop, results off (keep_result=0). Where speed is measured, a poll delay of 1 ms and reads of
1,000 job ids; at its default of half a second between polls it would do some hundred jobs a second.

Fastest recovery: job_timeout=1 s; a job counts as in progress for ten seconds more than that (by default 310 s). A job
that runs longer than its timeout is cancelled, so a timeout below the time that jobs take is no real choice.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop
from arq import Worker, create_pool, func
from arq.connections import RedisSettings

from bench.peers.contract import EITHER, Payload, begin, serve_adds, some_at_once

role, order = begin(sys.argv)
settings = RedisSettings.from_dsn(order.url)
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def job(kind: str) -> Any:
    handle = EITHER[kind]

    async def run(context: dict[Any, Any], payload: Payload) -> None:
        await handle(payload)

    async def run_in_thread(context: dict[Any, Any], payload: Payload) -> None:
        await asyncio.to_thread(handle, payload)

    return func(run_in_thread if kind == "plain" else run, name=kind, keep_result=0)


async def adding() -> None:
    pool = await create_pool(settings)

    async def add(kind: str, payloads: list[Payload]) -> None:
        await some_at_once(pool.enqueue_job(kind, payload) for payload in payloads)

    await serve_adds(add)
    await pool.aclose()


if role == "add":
    asyncio.run(adding())
else:
    options: dict[str, Any] = {"job_timeout": 1, "poll_delay": 0.1} if order.fastest else {}
    if order.count:
        options |= {"poll_delay": 0.001, "queue_read_limit": 1000}
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    Worker([job(kind) for kind in order.kinds], redis_settings=settings, max_jobs=order.concurrency, **options).run()
