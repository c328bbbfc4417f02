"""Positions: the acknowledgements of owned streams, gathered over all rooms and sent in one write (SPEC 43).

An ack says "everything up to here", so a room has at most one on its way and the latest wins. What waits for an answer
is told when it comes: done, or taken over. Acks are sent until they are answered; a repeated one is answered "old".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import AssignmentTaken, HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import ownership
from headrace.redis.calls import Call
from headrace.redis.link import Link
from headrace.room import Room

log = logging.getLogger("headrace")

BATCH = 500  # acks in one write


@dataclass(slots=True)
class Pending:
    """The next ack of one room, and who waits for it."""

    raw_id: bytes
    number: int
    begins: bool = False  # the next message gets its handler with the answer
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class Positions:
    def __init__(
        self,
        member: Member,
        link: Link,
        recorder: Recorder,
        *,
        place: Callable[[str], ownership.Place],
        lost: Callable[[Room[Any], str], None],
        read: bool,
    ) -> None:
        self._member = member
        self._link = link
        self._recorder = recorder
        self._place = place
        self._lost = lost
        self._read = read
        self._dirty: dict[Room[Any], Pending] = {}
        self._sending: dict[Room[Any], Pending] = {}
        self._changed = asyncio.Event()

    async def ack(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool = False) -> None:
        """Returns when the server has it. Raises AssignmentTaken, and what nobody can help."""
        if number > room.acked:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.put(room, raw_id, number, begins=begins).waiters.append(answer)
            await answer

    def put(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool = False) -> Pending:
        """Send it soon; a room has one ack on its way, and the latest stands for all before it."""
        pending = self._dirty.get(room)
        if pending is None:
            pending = self._dirty[room] = Pending(raw_id, number, begins)
        elif number > pending.number:
            pending.raw_id, pending.number, pending.begins = raw_id, number, begins
        self._changed.set()
        return pending

    @property
    def is_empty(self) -> bool:
        return not self._dirty and not self._sending

    async def flushed(self, room: Room[Any]) -> None:
        """Return once no ack of this room is on its way."""
        while room in self._dirty or room in self._sending:
            waiting = self._sending.get(room) or self._dirty[room]
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.waiters.append(answer)
            await asyncio.wait((answer,))
            if not answer.cancelled():
                answer.exception()  # the room is told by others

    async def run(self) -> None:
        tries = 0
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # whoever is ready now goes into the same write
            self._changed.clear()
            try:
                while self._dirty:
                    await self._send()
                tries = 0
            except HeadraceError as error:
                self._put_back()
                if classify(error) is not Verdict.RETRY:
                    raise
                if tries in (0, 5) or tries % 20 == 0:
                    log.warning("positions.wait stream=%s tries=%d: %s", self._member.stream, tries + 1, error)
                await asyncio.sleep(reconnect_delay_ms(tries, random.random()) / 1000)
                tries += 1
                self._changed.set()

    async def _send(self) -> None:
        batch = [(room, self._dirty.pop(room)) for room in list(self._dirty)[:BATCH]]
        self._sending = dict(batch)
        calls = [self._call(room, pending) for room, pending in batch]
        answers = await self._link.pipe(calls)
        self._sending = {}
        away: HeadraceError | None = None
        for (room, pending), answer in zip(batch, answers, strict=True):
            if not isinstance(answer, HeadraceError):
                self._settle(room, pending, answer)
            elif classify(answer) is Verdict.RETRY:
                self._again(room, pending)
                away = answer
            else:
                _tell(pending, answer)
        if away is not None:
            raise away

    def _call(self, room: Room[Any], pending: Pending) -> Call[ownership.PositionWord]:
        return ownership.pos_ack(
            self._place(room.name),
            self._member.owner,
            room.epoch,
            pending.raw_id,
            pending.number - room.acked,
            read=self._read,
            begins=pending.begins,
        )

    def _settle(self, room: Room[Any], pending: Pending, word: ownership.PositionWord) -> None:
        labels = self._member.labels
        if word.kind == "taken":
            self._recorder.count("refused_total", 1, outcome="ack", **labels)
            self._lost(room, word.holder)
            _tell(pending, AssignmentTaken(stream=room.name, holder=word.holder))
            return
        self._recorder.count("acked_total", max(0, pending.number - room.acked), **labels)
        room.progressed(pending.raw_id, pending.number, begun=pending.begins)
        _tell(pending, None)

    def _again(self, room: Room[Any], pending: Pending) -> None:
        """Merge what has no answer with what came meanwhile: the later id stands for both."""
        later = self._dirty.get(room)
        if later is None:
            self._dirty[room] = pending
        else:
            later.waiters[:0] = pending.waiters

    def _put_back(self) -> None:
        for room, pending in self._sending.items():
            self._again(room, pending)
        self._sending = {}


def _tell(pending: Pending, error: BaseException | None) -> None:
    for waiter in pending.waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
