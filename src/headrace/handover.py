"""Handover: the ways an assignment leaves its owner's hands. The data stream's slot first, the announcement after it.

    back     this owner stops or has too many: free at once; its handler returned it: after a growing moment
    failed   its handler raised: waits for its backoff, or goes to the dead letters after its last attempt
    finish   done for good

Counts never go down for assignments (take.lua); what is not to be counted as an attempt gives its try back in the data
stream's slot instead. Everything here may be repeated; a crash half-way leaves the announcement pending, and an heir
takes it when the owner's lease ends.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, Literal

from headrace import points
from headrace.assignment import RELEASED, Assignment
from headrace.errors import AssignmentTaken, Bury, Retry
from headrace.member import Member
from headrace.message import optional_ms
from headrace.policy import release_delay_ms
from headrace.recorder import Recorder
from headrace.redis import ownership, scripts
from headrace.redis.calls import Word
from headrace.redis.gather import Calls
from headrace.redis.ownership import Place, PositionWord
from headrace.room import OwnedMessage, Room

log = logging.getLogger("headrace")


class Handover:
    def __init__(
        self, member: Member, calls: Calls, data: Calls, recorder: Recorder, place: Callable[[str], Place]
    ) -> None:
        self._member = member
        self._calls = calls
        self._data = data
        self._recorder = recorder
        self._place = place

    async def back(self, assignment: Assignment, room: Room[Any], *, after_ms: int | None = None) -> None:
        """Hand it back untouched. Without a time it waits a moment, longer each time nothing was done."""
        await self._leave(room, failed=False)
        level = 1 if room.acked else assignment.level + 1
        wait_ms = release_delay_ms(level) if after_ms is None else after_ms
        await self._park(assignment, wait_ms, f"{RELEASED}{level}" if after_ms is None else "waiting")
        self._recorder.count("released_total", 1, **self._member.labels)

    async def failed(self, assignment: Assignment, room: Room[Any], error: BaseException) -> None:
        """Its handler raised."""
        settings = self._member.settings
        tries = await self._leave(room, failed=True)
        if tries >= settings.max_attempts or isinstance(error, Bury):
            await self.bury(assignment, type(error).__name__, str(error), tries)
            return
        asked_ms = optional_ms(error.after) if isinstance(error, Retry) else None
        wait_ms = settings.backoff.delay_ms(tries, random.random()) if asked_ms is None else asked_ms
        await self._park(assignment, wait_ms, "waiting")
        self._recorder.count("retried_total", 1, **self._member.labels)

    async def finish(self, assignment: Assignment, room: Room[Any], *, delete: bool) -> None:
        """Done for good. Raises AssignmentTaken."""
        member = self._member
        word = await self._data.call(
            ownership.finish(self._place(room.name), member.owner, room.epoch, assignment.id, delete=delete)
        )
        points.reached("handover.done")
        if word.kind == "taken":
            self._refused("finish", room, word.holder)
        await self._calls.call(
            ownership.finished(member.keys, member.group, member.owner, assignment.id, assignment.count, room.name)
        )
        points.reached("handover.finished")

    async def later(self, assignment: Assignment, room: Room[Any], wait_ms: int) -> None:
        """Not started at all: its earlier handlers have died, so it waits a while."""
        await self._leave(room, failed=False)
        await self._park(assignment, wait_ms, "waiting")

    async def exhausted(self, assignment: Assignment, room: Room[Any], tries: int) -> None:
        await self._leave(room, failed=False)
        reason = f"{tries} owners of {room.name} died or failed without an acknowledgement after {room.position}"
        await self.bury(assignment, "Exhausted", reason, tries)

    async def bury(self, assignment: Assignment, error: str, reason: str, tries: int) -> None:
        """To the dead letters of the announcement stream. The data and its position stay; a replay goes on there."""
        member, settings, id_ = self._member, self._member.settings, assignment.id.decode()
        word: Word = await self._calls.call(
            scripts.bury(
                *(member.keys, member.group, member.owner, assignment.id, assignment.count),
                extra=self._about(member.stream, id_, error, reason, tries),
                maxlen=settings.dead_letters_maxlen,
                prefix=settings.prefix,
            )
        )
        points.reached("handover.buried")
        self._recorder.count("buried_total", 1, **member.labels)
        log.error("assignment.buried stream=%s id=%s: %s %s: %s", member.stream, id_, error, reason, word.kind)

    async def set_aside(
        self, room: Room[Any], message: OwnedMessage[Any], reason: str, error: str, attempts: int
    ) -> PositionWord:
        """One message to the dead letters of its own stream; everything up to it is done."""
        member, settings = self._member, self._member.settings
        word = await self._data.call(
            ownership.set_aside(
                *(self._place(room.name), member.owner, room.epoch, message.raw_id, message.number - room.acked),
                extra=self._about(room.name, message.id, error, reason, attempts),
                maxlen=settings.dead_letters_maxlen,
                prefix=settings.prefix,
            )
        )
        points.reached("handover.set_aside")
        if word.kind == "taken":
            self._recorder.count("refused_total", 1, outcome="bury", **member.labels)
        else:
            self._recorder.count("buried_total", 1, **member.labels)
            log.error("message.buried stream=%s id=%s: %s %s: %s", room.name, message.id, error, reason, word.kind)
        return word

    # ── steps ──

    def _about(self, stream: str, id_: str, error: str, reason: str, attempts: int) -> dict[str, str]:
        """What a dead letter says about its burial."""
        member, settings = self._member, self._member.settings
        about = {
            "original_id": id_,
            "stream": stream,
            "group": member.group,
            "owner": member.owner,
            "attempts": str(attempts),
            "first_ms": id_.partition("-")[0],
            "last_ms": str(int(time.time() * 1000)),
            "error": error,
            "reason": reason.encode("utf-8", "replace")[: settings.error_bytes].decode("utf-8", "ignore"),
        }
        return {settings.prefix + name: value for name, value in about.items()}

    async def _leave(self, room: Room[Any], *, failed: bool) -> int:
        """Give the data stream up. Answers the tries; raises AssignmentTaken."""
        change: Literal[-1, 0, 1] = (1 if failed else 0) - (1 if room.begun else 0)  # type: ignore[assignment]
        left = await self._data.call(ownership.give_up(self._place(room.name), self._member.owner, room.epoch, change))
        points.reached("handover.left")
        if not left.ok:
            self._refused("release", room, left.holder)
        return left.tries

    async def _park(self, assignment: Assignment, wait_ms: int, mark: str) -> None:
        member, count = self._member, assignment.count
        await self._calls.call(
            scripts.park(member.keys, member.group, member.owner, wait_ms, mark, [(assignment.id, count, count)])
        )
        points.reached("handover.parked")

    def _refused(self, outcome: str, room: Room[Any], holder: str) -> None:
        self._recorder.count("refused_total", 1, outcome=outcome, **self._member.labels)
        raise AssignmentTaken(stream=room.name, holder=holder)
