"""The app that workers of an ordered stream run: every message is noted when it starts and when it is done.

Settings come from HEADRACE_ORDERED, a JSON object: url, stream, history, slow_s. A payload {"kill": true} ends the
process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

from headrace import App, Delivery
from tests.support.history import Pen

settings: dict[str, Any] = json.loads(os.environ["HEADRACE_ORDERED"])
pen = Pen(settings["history"])
app = App(settings["url"])
orders = app.stream(settings["stream"], partitions=4)


@orders.handler(group="billing", ordered=True, lease="500ms", max_attempts=2, backoff="50ms", rebalance=True)
async def bill(order: dict[str, Any], delivery: Delivery[Any]) -> None:
    pen.note("start", key=order["key"], n=order["n"], attempt=delivery.attempt, stream=delivery.stream)
    if order.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(settings["slow_s"])
    pen.note("done", key=order["key"], n=order["n"], attempt=delivery.attempt, stream=delivery.stream)


if __name__ == "__main__":
    app.run()
