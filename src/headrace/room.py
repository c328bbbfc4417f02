"""A room: one data stream in the hands of its owner, message after message, and the ways to say what became of it.

    async for message in room:          ends when this owner is to hand the room on; raises when it was taken over
        ...
        await room.ack(message)         everything up to here is done: fenced, durable, answered

Returning hands the room back; finish() ends it for good.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from headrace.errors import AssignmentTaken, NotOwned
from headrace.fields import find_field, headers_of, key_of
from headrace.message import Lost

T = TypeVar("T")


class OwnedMessage(Generic[T]):
    """One message of an owned stream."""

    __slots__ = ("_decode", "_payload", "fields", "foreign", "number", "raw_id")

    def __init__(self, raw_id: bytes, fields: list[bytes], number: int, decode: Callable[[Sequence[bytes]], T]) -> None:
        self.raw_id = raw_id
        self.fields = fields  # names and values in turn, as they are in the stream
        self.number = number  # since the takeover, from 1
        self.foreign = False  # a replayed copy for another group: passed over
        self._decode = decode
        self._payload: list[T] = []

    def __repr__(self) -> str:
        return f"<OwnedMessage {self.id}>"

    @property
    def id(self) -> str:
        return self.raw_id.decode()

    @property
    def payload(self) -> T:
        """Raises DecodeError: whether an undecodable message is skipped (ack it) or stops the room is yours to say."""
        if not self._payload:
            self._payload.append(self._decode(self.fields))
        return self._payload[0]

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self.fields)

    @property
    def key(self) -> str | None:
        return key_of(self.fields)

    def field(self, name: str) -> bytes | None:
        """The first field of that name."""
        return find_field(self.fields, name.encode())


class Lease(Protocol):
    """How long this owner may be sure that nobody else owns what it owns (heartbeat.Post)."""

    @property
    def sure_until(self) -> float: ...
    async def confirmed(self) -> None: ...


class RoomWays(Protocol):
    """What a room needs of its holding."""

    async def begin(self, room: Room[Any]) -> None: ...
    async def ack(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool) -> None: ...
    def ack_soon(self, room: Room[Any], raw_id: bytes, number: int) -> None: ...
    async def bury(self, room: Room[Any], message: OwnedMessage[Any], reason: str, error: str, attempts: int) -> None:
        """To the dead letters of the stream, and the position past it."""

    def unpacked(self, fields: list[bytes]) -> list[bytes] | None:
        """The fields of a message as they were added; None for a replayed copy that is for another group."""

    async def finish(self, room: Room[Any], *, delete: bool) -> None: ...
    def hungry(self, room: Room[Any]) -> None: ...


class Room(Generic[T]):
    """Made by a takeover. ``info`` is what announce() was given, ``attempt`` how often a handler has begun since the
    last progress, ``former`` the owner whose lease ended, if that is how it came here."""

    def __init__(
        self,
        ways: RoomWays,
        lease: Lease,
        name: str,
        *,
        info: Any,
        owner: str,
        epoch: int,
        position: bytes,
        tries: int,
        former: str,
        prefetch: int,
        decode: Callable[[Sequence[bytes]], T],
        read: int = 0,
    ) -> None:
        self.name = name
        self.info = info
        self.owner = owner
        self.epoch = epoch
        self.former = former
        self.attempt = tries + 1
        self.lost = Lost()
        self.holder = ""  # who took it over, once it is lost
        self.cursor = position  # last id read, by the feed
        self.looked = position  # the cursor when it could last be told that nothing was trimmed (gaps.py)
        self.missing: int | None = None  # how many seem to be gone since, until that is certain
        self.acked = 0  # number of the last message acknowledged
        self.acked_id = position
        self.begun = False  # a try is noted on the server, and no ack has come since
        self.noted = tries  # there, since the last progress
        self.ended = False  # finished or given back
        self.stopping = False
        self.counted = False  # whoever reads notes each try itself, when it begins
        self._ways = ways
        self._lease = lease
        self._prefetch = prefetch
        self._decode = decode
        self._queue: deque[OwnedMessage[T]] = deque()
        self._read = 0  # messages put into the queue
        self._read_before = read  # by earlier owners, acknowledged
        self._given = 0  # number of the last message given to the handler
        self._full = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "ended" if self.ended else "owned"
        return f"<Room {self.name!r} {state}, after {self.position}>"

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    @property
    def position(self) -> str:
        """The last acknowledged id; whoever owns the room next goes on after it."""
        return self.acked_id.decode()

    @property
    def progress(self) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
        """The last id read, and the last one acknowledged; each with the messages up to there, by all owners."""
        return (self.cursor, self._read_before + self._read), (self.acked_id, self._read_before + self.acked)

    @property
    def idle(self) -> bool:
        """Whether everything that was read is acknowledged."""
        return self.acked == self._read

    # ── reading ──

    def __aiter__(self) -> Room[T]:
        return self

    async def __anext__(self) -> OwnedMessage[T]:
        """The next message. Safe to cancel: nothing is taken out before it is given."""
        while True:
            self.check()
            if self.stopping or self.ended:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            if time.monotonic() > self._lease.sure_until:
                await self._lease.confirmed()  # paused or cut off for a lease: somebody else may have it by now
            elif not self._queue:
                self._changed.clear()
                await self._changed.wait()
            elif self._given == 0 and not self.begun and not self.counted:
                await self._ways.begin(self)  # noted before the first message only: later crashes show in the next try
            elif (message := self._next()).foreign:
                await self.ack(message)
            else:
                return message

    def _next(self) -> OwnedMessage[T]:
        message = self._queue.popleft()
        self._given = message.number
        if self._full and len(self._queue) <= self._prefetch // 2:
            self._full = False
            self._ways.hungry(self)
        return message

    # ── saying what became of it ──

    async def ack(self, message: OwnedMessage[T]) -> None:
        """This message and all before it are done. Raises AssignmentTaken if another owner has the room."""
        self._check_owned()
        await self._ways.ack(self, message.raw_id, message.number, begins=False)

    async def ack_and_go_on(self, message: OwnedMessage[T]) -> None:
        """The same; if the next message is here, its first try is noted in the same step (ADR 12)."""
        self._check_owned()
        begins = bool(self._queue) and not self.stopping
        await self._ways.ack(self, message.raw_id, message.number, begins=begins)

    def ack_soon(self, message: OwnedMessage[T]) -> None:
        """The same without waiting for the answer, for streams that must be quick. Acks on their way are gathered, and
        answered before the room is left; if one is refused, the next message raises AssignmentTaken."""
        self._check_owned()
        self._ways.ack_soon(self, message.raw_id, message.number)

    async def bury(self, message: OwnedMessage[T], reason: str, *, error: str = "", attempts: int = 1) -> None:
        """Never again: to the dead letters of the stream, all before it is done. Replayed, it comes again at the end.

        One step on the server, fenced as an ack is.
        """
        self._check_owned()
        await self._ways.bury(self, message, reason, error, attempts)

    async def note_try(self) -> None:
        """The message at hand is tried once more: counted on the server, so that it survives this process."""
        self._check_owned()
        await self._ways.begin(self)

    def forget_try(self) -> None:
        """What was noted stays counted when the room is handed back now: no handler is at work."""
        self.begun = False

    async def finish(self, *, delete: bool = True) -> None:
        """The stream is at its end: mark it done, delete its data unless told to keep it, end the announcement.

        That is yours to know: nobody looks whether messages are left. With ``delete`` those that were not read, or
        not acknowledged, are deleted with the stream, and no dead letter tells of them. With ``delete=False`` they
        stay, and are read when the stream is announced again.
        """
        self.check()
        if not self.ended:
            await self._ways.finish(self, delete=delete)

    def _check_owned(self) -> None:
        self.check()
        if self.ended:
            raise NotOwned(f"{self.name} was finished or handed back here: nothing can be acknowledged any more")

    def check(self) -> None:
        if self.is_lost:
            raise AssignmentTaken(stream=self.name, holder=self.holder)

    async def pause(self, seconds: float) -> bool:
        """Wait, for the next attempt at a message. False: the room is to be left, or was lost, before that."""
        until = time.monotonic() + seconds
        while not (self.stopping or self.ended or self.is_lost):
            self._changed.clear()
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                return True
        self.check()
        return False

    # ── what the feed and the holding say, on the event loop ──

    @property
    def space(self) -> int:
        """How many messages may still be read ahead."""
        return max(0, self._prefetch - len(self._queue))

    def put(self, entries: Sequence[tuple[bytes, list[bytes]]]) -> None:
        """Take what was read, at most as much as there is space; the cursor says how far that was."""
        taken = entries[: self.space]
        if not taken:
            return
        for raw_id, fields in taken:
            self._read += 1
            own = self._ways.unpacked(fields)
            message = OwnedMessage(raw_id, fields if own is None else own, self._read, self._decode)
            message.foreign = own is None
            self._queue.append(message)
        self.cursor = taken[-1][0]
        self._changed.set()

    @property
    def full(self) -> bool:
        return self._full

    def fill(self) -> None:
        """No space is left: the feed is told when half of it is free again."""
        self._full = True

    def progressed(self, raw_id: bytes, number: int, *, begun: bool = False) -> None:
        """The position has moved. ``begun``: and a try of the next message is noted."""
        if number > self.acked:
            self.acked, self.acked_id, self.begun, self.noted = number, raw_id, begun, int(begun)

    def lose(self, holder: str) -> bool:
        """Another owner has it. False: that was known, or it had ended here."""
        if self.is_lost or self.ended:
            return False
        self.holder = holder
        self.lost.set()
        self._queue.clear()
        self._changed.set()
        return True

    def stop(self) -> None:
        """End the iteration before the next message."""
        self.stopping = True
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._queue.clear()
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """The data cannot be read for good: whoever iterates is told."""
        self._error = error
        self._changed.set()
