"""Takeover: from an announcement in this owner's hands to its data stream (SPEC 42, 43b).

What a take may answer, and what follows:

    ok       this owner may acknowledge from now on, and goes on after the position
    done     finished by an owner that died before it could end the announcement: ended now
    stale    this assignment was taken with a higher count (a failover lost a claim, the group was made again, a dead
             letter was replayed): the count is raised, and it is taken again, all its attempts before it
    newer    a later announcement of the same stream was taken: this one is ended
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from headrace import points
from headrace.assignment import Assignment
from headrace.member import Member
from headrace.redis import ownership
from headrace.redis.gather import Calls
from headrace.redis.ownership import Place, Take

log = logging.getLogger("headrace")

_AS_USUAL: Literal["", "afresh", "force"] = ""
ROUNDS = 10  # counts can be raised by others while we raise ours, but not for ever


class Takeover:
    def __init__(self, member: Member, calls: Calls, data: Calls, place: Callable[[str], Place], start: str) -> None:
        self._member = member
        self._calls = calls  # to the announcement stream's slot
        self._data = data  # to wherever a data stream is
        self._place = place
        self._start = start

    async def take(self, assignment: Assignment, name: str) -> tuple[Assignment, Take | None]:
        """The assignment, with its count as it is now, and the stream. None: it is not this owner's, or has ended."""
        place, how = self._place(name), _AS_USUAL
        for _ in range(ROUNDS):
            call = ownership.take(
                *(place, assignment.id, assignment.count, self._member.owner), how=how, start=self._start
            )
            took = await self._data.call(call)
            points.reached("takeover.answered")
            if took.kind == "ok":
                return assignment, took
            if took.kind == "stale":
                raised = await self._raise(assignment, took.count + 1)
                if raised is None:
                    return assignment, None
                assignment, how = raised, "afresh"
            elif took.kind == "newer" and await self._is_current(assignment, name):
                how = "force"  # ids have gone back: the announcement stream was deleted, or the clock set back
            else:
                await self.end(assignment, name)
                return assignment, None
        log.error("assignment.contested stream=%s name=%s: left to whoever has it", self._member.stream, name)
        return assignment, None

    async def end(self, assignment: Assignment, name: str) -> None:
        """End the announcement of a stream that is done."""
        member = self._member
        call = ownership.finished(member.keys, member.group, member.owner, assignment.id, assignment.count, name)
        word = await self._calls.call(call)
        points.reached("takeover.ended")
        log.debug("assignment.ended stream=%s name=%s: %s", member.stream, name, word.kind)

    async def _is_current(self, assignment: Assignment, name: str) -> bool:
        return await self._calls.call(ownership.id_of(self._member.keys, name)) == assignment.id.decode()

    async def _raise(self, assignment: Assignment, to: int) -> Assignment | None:
        member = self._member
        call = ownership.lift(member.keys, member.group, member.owner, assignment.id, assignment.count, to)
        word: Any = await self._calls.call(call)
        points.reached("takeover.raised")
        if word.kind == "ok" or (word.kind, word.holder, word.count) == ("taken", member.owner, to):
            return replace(assignment, count=to)
        return None
