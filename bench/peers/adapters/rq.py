"""rq: one job at a time, for that is what an rq worker does; results off (result_ttl=0). Where speed is measured its
SimpleWorker, which does not fork for every job and is far quicker; elsewhere its default Worker. It has no async
jobs.

Fastest recovery: jobs with Retry(max=10), job_monitoring_interval and maintenance_interval 1 s; a job counts as alive
for a minute more than the former. By default there is no retry, and what a dead worker held is moved to the failed
jobs.
"""

from __future__ import annotations

import sys
from typing import Any

import rq
from redis import Redis

from bench.peers.contract import FUNCTIONS, Payload, begin, serve_adds_sync

role, order = begin(sys.argv)
connection = Redis.from_url(order.url)
queue = rq.Queue("bench", connection=connection)
job_options: dict[str, Any] = {"retry": rq.Retry(max=10)} if order.fastest else {}


def add(kind: str, payloads: list[Payload]) -> None:
    prepare = rq.Queue.prepare_data
    queue.enqueue_many([prepare(FUNCTIONS[kind], (payload,), result_ttl=0, **job_options) for payload in payloads])


if role == "add":
    serve_adds_sync(add)
else:
    options: dict[str, Any] = {"job_monitoring_interval": 1, "maintenance_interval": 1} if order.fastest else {}
    worker_class = rq.SimpleWorker if order.count else rq.Worker
    worker_class([queue], connection=connection, **options).work(logging_level="ERROR")
