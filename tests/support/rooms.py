"""The app that owner processes of the crash tests run: every message it handles is noted before and after its ack.

Settings come from HEADRACE_ROOMS, a JSON object: url, stream (the announcements), history, owner (options of
@rooms.owner), app (options of App), slow_s (a handler's time for a message). A payload may say more:

    {"do": "block", "s": 1}   block the event loop
    {"do": "gil", "s": 1}     compute in native code that holds the GIL
    {"do": "raise"}           fail
    {"do": "kill"}            SIGKILL the own process
    {"do": "finish"}          finish the room
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from typing import Any

from headrace import App, AssignmentTaken
from tests.support.history import Pen
from tests.support.workers import hold_gil

settings: dict[str, Any] = json.loads(os.environ["HEADRACE_ROOMS"])
pen = Pen(settings["history"])
app = App(settings["url"], **settings.get("app", {}))
rooms = app.assignments(settings["stream"])


@rooms.owner(**settings.get("owner", {}))
async def own(room: Any) -> None:
    about = {"name": room.name, "owner": room.owner, "epoch": room.epoch}
    pen.note("enter", after=room.position, info=room.info, attempt=room.attempt, **about)
    async for message in room:
        note = {**about, "id": message.id, "n": message.payload["n"]}
        pen.note("start", **note)
        try:
            if await act(room, message.payload):
                return
            await room.ack(message)
        except AssignmentTaken as taken:
            pen.note("refused", holder=taken.holder, **note)
            raise
        pen.note("acked", **note)
    pen.note("leave", after=room.position, **about)


async def act(room: Any, payload: dict[str, Any]) -> bool:
    """What the payload says. True: the room is finished."""
    kind = payload.get("do", "")
    if settings.get("slow_s"):
        await asyncio.sleep(settings["slow_s"])
    if kind == "block":
        time.sleep(payload["s"])
    elif kind == "gil":
        hold_gil(payload["s"])
    elif kind == "raise":
        raise RuntimeError("as the payload says")
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "finish":
        await room.finish()
    return bool(kind == "finish")


def main() -> None:
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(relativeCreated)d %(levelname)s %(process)d %(message)s"
    )
    app.run(burst="--burst" in sys.argv)
