"""saq: concurrency 32, uvloop, hiredis, results off (ttl=-1). It takes one job a round trip.

Fastest recovery: jobs with heartbeat=1 s, no timeout and retries, a sweep every second. By default a job has a timeout
of 10 s and no retry, so what a dead worker held is swept after a minute and given up. A heartbeat is for the handler to
give, by `job.update()`; ours does not, as a handler that blocks or that calls slow code cannot.
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from saq import Job, Queue, Worker

from bench.peers.contract import EITHER, Payload, begin, serve_adds, some_at_once

role, order = begin(sys.argv)
queue = Queue.from_url(order.url)
job_options: dict[str, Any] = {"heartbeat": 1, "timeout": 0, "retries": 10} if order.fastest else {}
worker_options: dict[str, Any] = {"timers": {"sweep": 1}} if order.fastest else {}


def job(kind: str) -> tuple[str, Any]:
    handle = EITHER[kind]

    async def run(context: dict[str, Any], *, payload: Payload) -> None:
        await handle(payload)

    def run_in_thread(context: dict[str, Any], *, payload: Payload) -> None:
        handle(payload)

    return kind, run_in_thread if kind == "plain" else run


async def adding() -> None:
    async def add(kind: str, payloads: list[Payload]) -> None:
        await some_at_once(
            queue.enqueue(Job(function=kind, kwargs={"payload": payload}, ttl=-1, **job_options))
            for payload in payloads
        )

    await queue.connect()
    await serve_adds(add)
    await queue.disconnect()


async def working() -> None:
    await queue.connect()
    functions = [job(kind) for kind in order.kinds]
    await Worker(queue, functions, concurrency=order.concurrency, **worker_options).start()


uvloop.run(adding() if role == "add" else working())
