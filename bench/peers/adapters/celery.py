"""Celery: one process with a pool of 32 threads, four messages prefetched for each (its default), no gossip, mingle or
heartbeat, results ignored. Acknowledged before the task runs, which is its default. It has no async tasks.

Fastest recovery: acks_late, visibility_timeout=1 s (the default is an hour), looked for every second
(unacked_restore_interval and unacked_restore_throttle 1).
"""

from __future__ import annotations

import logging
import sys

from celery import Celery

from bench.peers.contract import FUNCTIONS, Payload, begin, serve_adds_sync

role, order = begin(sys.argv)
logging.disable(logging.WARNING)
app = Celery("bench", broker=order.url)
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
if order.fastest:
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={
            "visibility_timeout": 1,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
tasks = {kind: app.task(FUNCTIONS[kind], name=kind) for kind in order.kinds}


def add(kind: str, payloads: list[Payload]) -> None:
    with app.producer_or_acquire() as producer:
        for payload in payloads:
            tasks[kind].apply_async((payload,), producer=producer)


if role == "add":
    serve_adds_sync(add)
else:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    app.worker_main(["worker", "--pool=threads", f"--concurrency={order.concurrency}", f"-n{order.worker}@%h", *quiet])
