"""Headrace: `app.run()`, one stream a handler, everything as by default; JSON payloads.

Fastest recovery: a lease of 500 ms, the shortest that is documented. No supervising parent, which would hand the
messages of a killed worker back at once: the whole worker is killed here, the parent included.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bench.peers.contract import EITHER, Payload, begin, serve_adds
from headrace import App

role, order = begin(sys.argv)
app = App(order.url)
options: dict[str, Any] = {"group": "bench", "concurrency": order.concurrency}
if order.fastest:
    options["lease"] = 0.5


async def adding() -> None:
    async def add(kind: str, payloads: list[Payload]) -> None:
        await app.stream(kind).add_many(payloads)

    await serve_adds(add)
    await app.close()


if role == "add":
    asyncio.run(adding())
else:
    for kind in order.kinds:
        app.stream(kind).handler(**options)(EITHER[kind])
    app.run()
