"""FastStream on Redis Streams: one subscriber a handler with a consumer group, max_workers=32, max_records=32,
uvloop, no logger, no argument validation (apply_types=False), acknowledged as by default. Its `batch=True`, which
hands one handler a list that succeeds or fails as a whole, is another programming model and is not used; nor is
Headrace's.

Fastest recovery: claim_min_idle_time=1000 ms (XREADGROUP CLAIM, Redis 8.4+). By default nothing is ever claimed.
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from bench.peers.contract import EITHER, Payload, begin, owner, serve_adds, some_at_once

role, order = begin(sys.argv)
broker = RedisBroker(order.url, logger=None, apply_types=False)


async def adding() -> None:
    async def add(kind: str, payloads: list[Payload]) -> None:
        await some_at_once(broker.publish(payload, stream=kind) for payload in payloads)

    # A group that a subscriber creates begins at the end: what was added before would never be read.
    async with Redis.from_url(order.url) as client:
        for kind in order.kinds:
            await client.xgroup_create(kind, "bench", "0", mkstream=True)
    await broker.start()
    await serve_adds(add)
    await broker.stop()


def subscribe(kind: str) -> None:
    options: dict[str, Any] = {"claim_min_idle_time": 1000} if order.fastest else {}
    stream = StreamSub(kind, group="bench", consumer=owner(), max_records=order.concurrency, **options)
    broker.subscriber(stream=stream, max_workers=order.concurrency)(EITHER[kind])


if role == "add":
    uvloop.run(adding())
else:
    for name in order.kinds:
        subscribe(name)
    uvloop.run(FastStream(broker, logger=None).run())
