"""The app that worker processes of the crash tests run: what a message does, its payload says.

    {"do": "ok"}                        return at once
    {"do": "sleep", "s": 1}             await; note "lost" as soon as the delivery is lost
    {"do": "block", "s": 1}             block the event loop (in a plain def handler: the thread)
    {"do": "gil", "s": 1}               compute in native code that holds the GIL
    {"do": "kill"}                      SIGKILL the own process
    {"do": "raise"} {"do": "bury"}      fail, or give up
    {"do": "ask"}                       wait until the test makes the file named by "file", then {"then": ...}

Settings come from HEADRACE_SHOP, a JSON object: url, stream, history, handler (its options), app (options of App),
plain (a plain def handler). main() runs it without a supervisor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from headrace import App, Bury, Delivery, DeliveryLost, HeadraceError, Requeue, SyncDelivery
from tests.support.history import Pen
from tests.support.workers import GROUP, hold_gil

settings: dict[str, Any] = json.loads(os.environ["HEADRACE_SHOP"])
pen = Pen(settings["history"])
app = App(settings["url"], **settings.get("app", {}))
orders = app.stream(settings["stream"])


def note(op: str, order: Any, delivery: Delivery[Any] | SyncDelivery[Any], **about: Any) -> None:
    pen.note(
        op,
        id=delivery.id,
        owner=delivery.owner,
        attempt=delivery.attempt,
        n=order.get("n"),
        do=order.get("do"),
        **about,
    )


async def act(order: Any, delivery: Delivery[Any]) -> None:
    """What the payload says, on the event loop."""
    kind = order["do"]
    if kind == "sleep":
        await _sleep(order, delivery)
    elif kind == "block":
        time.sleep(order["s"])
    elif kind == "ask":
        await _ask(order, delivery)
    else:
        act_at_once(order)


def act_at_once(order: Any) -> None:
    """The same for what waits for nobody."""
    kind = order["do"]
    if kind == "block":
        time.sleep(order["s"])
    elif kind == "gil":
        hold_gil(order["s"])
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise RuntimeError(order.get("why", "as the payload says"))
    elif kind == "bury":
        raise Bury(order.get("why", "as the payload says"))


async def _sleep(order: Any, delivery: Delivery[Any]) -> None:
    lost = asyncio.ensure_future(delivery.lost.wait())
    try:
        done, _ = await asyncio.wait({lost}, timeout=order["s"])
        if done:
            note("lost", order, delivery)
    finally:
        lost.cancel()


async def _ask(order: Any, delivery: Delivery[Any]) -> None:
    """Hold still until the test says go on, then end in the way the payload names."""
    while not Path(order["file"]).exists():
        await asyncio.sleep(0.005)
    way = order.get("then", "return")
    try:
        if way == "ack":
            await delivery.ack()
        elif way == "retry":
            await delivery.retry()
        elif way == "bury":
            await delivery.bury("too late")
        elif way == "release":
            await delivery.release()
    except DeliveryLost as refused:
        note("refused", order, delivery, way=way, holder=refused.holder)
        raise
    except HeadraceError as error:
        note("failed", order, delivery, way=way, error=str(error))
        raise


async def handle(order: Any, delivery: Delivery[Any]) -> None:
    note("start", order, delivery)
    await act(order, delivery)
    note("end", order, delivery)


def handle_plain(order: Any, delivery: SyncDelivery[Any]) -> None:
    note("start", order, delivery)
    act_at_once({"do": "block", "s": order["s"]} if order["do"] == "sleep" else order)
    note("end", order, delivery)


chosen = handle_plain if settings.get("plain") else handle
options = settings.get("handler", {})
if "requeue" in options:  # the settings of Requeue, as JSON
    options["recovery"] = Requeue(**options.pop("requeue"))
orders.handler(group=GROUP, **options)(chosen)


def main() -> None:
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(process)d %(message)s")
    app.run(burst="--burst" in sys.argv)
