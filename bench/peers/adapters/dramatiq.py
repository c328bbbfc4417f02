"""dramatiq: one process with 32 worker threads, twice as many messages prefetched (its default), the default
middleware and AsyncIO. Plain actors, which are its natural ones and quicker than async ones.

Fastest recovery: heartbeat_timeout=3000 ms (the default is 60 s), three times the second that a consumer may sleep
between two heartbeats, and maintenance with every command (by default with one in a thousand).
"""

from __future__ import annotations

import logging
import signal
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.asyncio import AsyncIO

from bench.peers.contract import COROUTINES, FUNCTIONS, Payload, begin, serve_adds_sync

role, order = begin(sys.argv)
logging.disable(logging.WARNING)
options = {"heartbeat_timeout": 3000, "maintenance_chance": 1_000_000} if order.fastest else {}
broker = RedisBroker(url=order.url, **options)
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)
actors = {
    kind: dramatiq.actor({**COROUTINES, **FUNCTIONS}[kind], actor_name=kind, broker=broker) for kind in order.kinds
}


def add(kind: str, payloads: list[Payload]) -> None:
    for payload in payloads:
        actors[kind].send(payload)


if role == "add":
    serve_adds_sync(add)
else:
    dramatiq.Worker(broker, worker_threads=order.concurrency).start()
    signal.pause()
