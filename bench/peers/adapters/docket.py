"""docket (pydocket): concurrency 32, reads of as many as are free (its default), uvloop, records of executions off
(execution_ttl=0). Where speed is measured a minimum_check_interval of 1 ms: so long it sleeps whenever all its slots
are taken, and at its default of 250 ms it would do 128 tasks a second. Its tasks are async only.

Fastest recovery: redelivery_timeout=1 s (the default is 5 minutes); it renews four times in that.
"""

from __future__ import annotations

import logging
import sys
from datetime import timedelta

import uvloop
from docket import Docket, Worker

from bench.peers.contract import COROUTINES, Payload, begin, serve_adds

role, order = begin(sys.argv)
logging.disable(logging.WARNING)
options = {"redelivery_timeout": timedelta(seconds=1)} if order.fastest else {}
if order.count:
    options["minimum_check_interval"] = timedelta(milliseconds=1)


async def main() -> None:
    async with Docket(name="bench", url=order.url, execution_ttl=timedelta(0)) as docket:
        for kind in order.kinds:
            docket.register(COROUTINES[kind], names=[kind])

        async def add(kind: str, payloads: list[Payload]) -> None:
            await docket.add_many([docket.call(COROUTINES[kind])(payload) for payload in payloads])

        if role == "add":
            await serve_adds(add)
            return
        async with Worker(docket, name=order.worker, concurrency=order.concurrency, **options) as worker:
            await worker.run_forever()


uvloop.run(main())
