"""The owner of streams under test: does what each message says, and notes what came of it.

    (nothing)   ack
    announce    announce another stream, then ack
    raise       raise at the room's first try, then ack
    return      ack, and hand the room back
    aside       set the message aside, in the dead letters of its stream
    grave       raise Bury: the announcement goes to the dead letters
    finish      finish the room

Its notes are `room-start`, and `room-ack` for every way in which a message ends: invoke before it is said, ok when the
server has it, fail when it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from headrace import App, AssignmentTaken, Bury
from tests.support.history import Pen

TRIES: Final = 8  # of a room without progress: one death, one refusal, and room for more


def own(app: App, streams: list[str], lease_s: float, pen: Pen) -> None:
    """Own what is announced in these streams."""
    for stream in streams:
        rooms = app.assignments(stream, lease=lease_s, rebalance=True, max_attempts=TRIES, backoff="50ms")
        rooms.owner()(Tenant(pen, rooms).live)


class Tenant:
    """The handler of every room of one announcement stream."""

    def __init__(self, pen: Pen, rooms: Any) -> None:
        self._pen = pen
        self._rooms = rooms

    async def live(self, room: Any) -> None:
        async for message in room:
            about = {"name": room.name, "epoch": room.epoch, "n": message.payload["n"]}
            note: dict[str, Any] = {"id": message.id, "owner": room.owner, **about}
            self._pen.note("room-start", **note)
            if not await self._act(room, message, note):
                return

    async def _act(self, room: Any, message: Any, note: dict[str, Any]) -> bool:
        """False: the room is to be left."""
        do = message.payload.get("do", "")
        if do == "announce":
            await self._rooms.announce(message.payload["name"])
        elif do == "raise" and room.attempt == 1:
            raise RuntimeError("as the message says")
        elif do == "grave":
            self._pen.note("room-ack", "invoke", **note)
            raise Bury("as the message says")
        if do == "finish":
            await self._end(room.finish(), note)
        elif do == "aside":
            await self._end(room.bury(message, "as the message says"), note)
        else:
            await self._end(room.ack(message), note)
        return do not in ("return", "finish")

    async def _end(self, ending: Awaitable[None], note: dict[str, Any]) -> None:
        self._pen.note("room-ack", "invoke", **note)
        try:
            await ending
        except AssignmentTaken:
            self._pen.note("room-ack", "fail", **note)
            raise
        self._pen.note("room-ack", "ok", **note)
