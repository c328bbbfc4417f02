"""The app that the worker processes of `rescue` and `alive` run. What a message does, its payload says.

    tasks    {"s": 10}                sleep on the event loop
             {"s": 10, "gil_s": 6}    the same, of which native code holds the GIL for 6 s
    plain    {"s": 10}                block a thread
    blocks   {"s": 0.06}              block the event loop

Every handler notes its start and end in a file beside the server, and counts its outcome in a hash that is written with
the acknowledgement: what a former owner would have counted is refused together with its ack.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from headrace import App, Delivery, DeliveryLost, Effect, SyncDelivery
from tests.support.history import Pen

GROUP: Final = "billing"
STREAMS: Final = ("tasks", "plain", "blocks")

settings: dict[str, Any] = json.loads(os.environ.get("BENCH_TASKS", "{}"))
options: dict[str, Any] = {"lease": settings.get("lease_s", 2), "concurrency": settings.get("concurrency", 24)}
pen = Pen(settings.get("history", os.devnull))
app = App()


def outcomes_key(stream: str) -> str:
    """The hash that counts outcomes by message."""
    return f"{{{stream}}}:outcomes"


def note(op: str, delivery: Delivery[Any] | SyncDelivery[Any]) -> None:
    pen.note(op, id=delivery.id, owner=delivery.owner, attempt=delivery.attempt)


def counted(delivery: Delivery[Any] | SyncDelivery[Any]) -> Sequence[Effect]:
    return [Effect.hincrby(outcomes_key(delivery.stream), delivery.id)]


@app.stream("tasks").handler(group=GROUP, **options)
async def task(payload: dict[str, float], delivery: Delivery[Any]) -> None:
    note("start", delivery)
    held_s = payload.get("gil_s", 0.0)
    await asyncio.sleep((payload["s"] - held_s) / 2)
    if held_s:
        hold_gil(held_s)
    await asyncio.sleep((payload["s"] - held_s) / 2)
    note("end", delivery)
    try:
        await delivery.ack(effects=counted(delivery))
    except DeliveryLost:
        note("refused", delivery)
        raise


@app.stream("plain").handler(group=GROUP, **options)
def plain(payload: dict[str, float], delivery: SyncDelivery[Any]) -> None:
    note("start", delivery)
    time.sleep(payload["s"])
    note("end", delivery)
    delivery.ack(effects=counted(delivery))


@app.stream("blocks").handler(group=GROUP, **{**options, "concurrency": 2})
async def block(payload: dict[str, float]) -> None:
    time.sleep(payload["s"])


def hold_gil(seconds: float) -> None:
    """Compute for so long in one call into native code, which gives up the GIL for nobody."""
    sample, took = 1_000_000, 0.0
    while took < 0.05:
        sample *= 2
        begun = time.perf_counter()
        sum(range(sample))
        took = time.perf_counter() - begun
    sum(range(int(sample / took * seconds)))


if __name__ == "__main__":
    app.run()
