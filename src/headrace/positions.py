"""Positions: the acknowledgements of owned streams, gathered over all rooms of a shard and sent in one write (SPEC 43).

An ack says "everything up to here", so a room has at most one on its way and the latest wins. What waits for an answer
is told when it comes: done, or taken over. Acks are sent until they are answered; a repeated one is answered "old". One
that got no answer goes again as it was, before any later one: together they would count its messages twice.

Each shard has a sender of its own. One that is away holds up the acks of its own rooms alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headrace import points
from headrace.errors import AssignmentTaken, HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import ownership
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.link import Link
from headrace.redis.shards import Shards
from headrace.room import Room

log = logging.getLogger("headrace")

BATCH = 500  # acks in one write

Watch = Callable[[Coroutine[Any, Any, None], str], None]


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
        server: Server,
        recorder: Recorder,
        *,
        place: Callable[[str], ownership.Place],
        lost: Callable[[Room[Any], str], None],
    ) -> None:
        self.member = member
        self._server = server
        self._recorder = recorder
        self._place = place
        self._lost = lost
        self._senders = Shards(server, self._sender)
        self._at: dict[Room[Any], Sender] = {}  # where the acks of a room are on their way

    def start(self, watch: Watch) -> None:
        """Whoever watches ends the loops, and is told what nobody can help."""
        self._watch = watch

    def _sender(self) -> Sender:
        sender = Sender(self, self._server.link(f"headrace:{self.member.owner}:ack"))
        self._watch(sender.run(), f"positions of {self.member.stream}")
        return sender

    @property
    def links(self) -> list[Link]:
        return [sender.link for sender in self._senders]

    async def close_links(self) -> None:
        for link in self.links:
            await link.close()

    # ── what rooms say ──

    async def ack(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool = False) -> None:
        """Returns when the server has it. Raises AssignmentTaken, and what nobody can help."""
        if number > room.acked:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.put(room, raw_id, number, begins=begins).waiters.append(answer)
            await answer

    def put(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool = False) -> Pending:
        """Send it soon; a room has one ack on its way, and the latest stands for all before it."""
        sender = self._at.get(room)
        if sender is None:
            sender = self._at[room] = self._senders.at(room.name)
        return sender.put(room, raw_id, number, begins=begins)

    async def flushed(self, room: Room[Any]) -> None:
        """Return once no ack of this room is on its way."""
        while (sender := self._at.get(room)) is not None:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sender.next_of(room).waiters.append(answer)
            await asyncio.wait((answer,))
            if not answer.cancelled():
                answer.exception()  # the room is told by others

    # ── what senders ask ──

    def call(self, room: Room[Any], pending: Pending) -> Call[ownership.PositionWord]:
        return ownership.pos_ack(
            self._place(room.name),
            self.member.owner,
            room.epoch,
            pending.raw_id,
            max(0, pending.number - room.acked),
            begins=pending.begins,
        )

    def settle(self, room: Room[Any], pending: Pending, word: ownership.PositionWord | HeadraceError) -> None:
        """The server has answered."""
        labels = self.member.labels
        if isinstance(word, HeadraceError):
            room.fail(word)  # also where nobody waits for the answer
            _tell(pending, word)
        elif word.kind == "taken":
            self._recorder.count("refused_total", 1, outcome="ack", **labels)
            self._lost(room, word.holder)
            _tell(pending, AssignmentTaken(stream=room.name, holder=word.holder))
        else:
            self._recorder.count("acked_total", max(0, pending.number - room.acked), **labels)
            room.progressed(pending.raw_id, pending.number, begun=pending.begins)
            _tell(pending, None)

    def through(self, room: Room[Any]) -> None:
        """Nothing of this room is on its way any more."""
        self._at.pop(room, None)

    def regroup(self, sender: Sender) -> None:
        """A server was away: what another one serves by now goes there."""
        for room in sender.rooms:
            other = self._senders.at(room.name)
            if other is not sender:
                self._at[room] = other
                sender.pass_on(room, other)


class Sender:
    """The acks of the rooms of one shard: one loop, one link."""

    def __init__(self, positions: Positions, link: Link) -> None:
        self.link = link
        self._positions = positions
        self._dirty: dict[Room[Any], Pending] = {}
        self._sending: dict[Room[Any], Pending] = {}
        self._unanswered: dict[Room[Any], Pending] = {}  # may have happened: first, and as they were
        self._changed = asyncio.Event()

    def put(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool) -> Pending:
        pending = self._dirty.get(room)
        if pending is None:
            pending = self._dirty[room] = Pending(raw_id, number, begins)
        elif number > pending.number:
            pending.raw_id, pending.number, pending.begins = raw_id, number, begins
        self._changed.set()
        return pending

    def next_of(self, room: Room[Any]) -> Pending:
        """The ack of a room that is answered next."""
        return self._unanswered.get(room) or self._sending.get(room) or self._dirty[room]

    @property
    def rooms(self) -> list[Room[Any]]:
        """Those with an ack that waits to be sent."""
        return list(self._unanswered | self._dirty)

    def pass_on(self, room: Room[Any], other: Sender) -> None:
        if room in self._unanswered:
            other._unanswered[room] = self._unanswered.pop(room)
        if room in self._dirty:
            other._dirty[room] = self._dirty.pop(room)
        other._changed.set()

    async def run(self) -> None:
        """Send until cancelled. Raises only what nobody can help."""
        tries = 0
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # whoever is ready now goes into the same write
            self._changed.clear()
            try:
                while self._unanswered or self._dirty:
                    await self._send()
                tries = 0
            except HeadraceError as error:
                if classify(error) is not Verdict.RETRY:
                    raise
                if tries in (0, 5) or tries % 20 == 0:
                    stream = self._positions.member.stream
                    log.warning("positions.wait stream=%s tries=%d: %s", stream, tries + 1, error)
                await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=self.link.may_move) / 1000)
                tries += 1
                self._positions.regroup(self)
                self._changed.set()

    async def _send(self) -> None:
        """One write. Raises if some of it has to go again."""
        batch = self._sending = self._next()
        points.reached("positions.sending")
        try:
            answers = await self.link.pipe([self._positions.call(room, pending) for room, pending in batch.items()])
        except HeadraceError:
            self._unanswered, self._sending = self._unanswered | batch, {}
            raise
        points.reached("positions.answered")
        self._sending = {}
        away: HeadraceError | None = None
        for (room, pending), answer in zip(batch.items(), answers, strict=True):
            if isinstance(answer, HeadraceError) and classify(answer) is Verdict.RETRY:
                self._unanswered[room] = pending
                away = answer
                continue
            self._positions.settle(room, pending, answer)
            if room not in self._dirty:
                self._positions.through(room)
        if away is not None:
            raise away

    def _next(self) -> dict[Room[Any], Pending]:
        """One ack each of some rooms."""
        batch = {room: self._unanswered.pop(room) for room in list(islice(self._unanswered, BATCH))}
        ready = (room for room in self._dirty if room not in batch and room not in self._unanswered)
        batch |= {room: self._dirty.pop(room) for room in list(islice(ready, BATCH - len(batch)))}
        return batch


def _tell(pending: Pending, error: BaseException | None) -> None:
    for waiter in pending.waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
