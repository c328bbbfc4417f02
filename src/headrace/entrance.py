"""The entrance: what becomes of an assignment that this owner was given. A room, if nothing speaks against it.

cannot be owned     no name, no stream there: to the dead letters
not this owner's    ended by an earlier owner, or taken meanwhile (takeover.py)
exhausted           its handlers have begun max_attempts times without progress: to the dead letters
its owners died     with tries: it waits a while, so that it does not take the same neighbours down again (ADR 12)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headrace.assignment import Assignment
from headrace.errors import AssignmentTaken, CodecError, NameRefused, WrongType
from headrace.handover import Handover
from headrace.policy import crash_delay_ms, spread
from headrace.redis.ownership import Take
from headrace.room import Room
from headrace.takeover import Takeover
from headrace.tenure import Tenure


class Entrance:
    def __init__(
        self,
        takeover: Takeover,
        handover: Handover,
        *,
        max_attempts: int,
        room: Callable[[Assignment, Take], Room[Any]],
    ) -> None:
        self._takeover = takeover
        self._handover = handover
        self._max_attempts = max_attempts
        self._room = room
        self.closed = False  # this owner stops: what still comes goes on at once

    async def enter(self, assignment: Assignment) -> Tenure | None:
        """Take the stream over. None: it is not for this owner. Raises what would befall every assignment."""
        try:
            assignment, took = await self._takeover.take(assignment, assignment.name)
            if took is None:
                return None
            room = self._room(assignment, took)
        except (CodecError, NameRefused, WrongType) as error:
            await self._handover.bury(assignment, type(error).__name__, str(error), 0)
            return None
        try:
            enters = await self._admitted(assignment, room, took.tries)
        except AssignmentTaken:
            return None
        return Tenure(assignment, room) if enters else None

    async def _admitted(self, assignment: Assignment, room: Room[Any], tries: int) -> bool:
        if tries >= self._max_attempts:
            await self._handover.exhausted(assignment, room, tries)
            return False
        delay_ms = crash_delay_ms(tries, self._max_attempts) if assignment.former and tries else 0
        if delay_ms or self.closed:
            await self._handover.later(assignment, room, spread(delay_ms, random.random()) if delay_ms else 0)
            return False
        return True
