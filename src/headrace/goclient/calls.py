"""Typed calls of the protocol: what the Go client sends in several commands goes in one script each.

In a cluster a lock may be in another slot than its entry (:func:`is_apart`). A script about the entry gets a lock
beside the entry then, and the protocol's lock has calls of its own: ways.py puts them in order.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.goclient.protocol import FIELD, Announcement, GoNames
from headrace.names import keys_of
from headrace.redis import commands
from headrace.redis.calls import Call, Entry, load, text
from headrace.redis.replies import Move, PendingRow
from headrace.redis.topology import slot_of

Way = Literal["retry", "release", "unparseable"]

LETTERS = 100  # dead letters moved at a time

_HOLD = load("go_hold")
_LOCK = load("go_lock")
_UNLOCK = load("go_unlock")
_DONE = load("go_done")
_REQUEUE = load("go_requeue")


class Said(NamedTuple):
    """A script's word: ok, gone, taken or locked, and by whom."""

    kind: str
    holder: str = ""

    @classmethod
    def of(cls, raw: bytes) -> Said:
        kind, _, rest = text(raw).partition(" ")
        return cls(kind, rest.rpartition(" ")[0] if kind == "taken" else rest)


class Seat(NamedTuple):
    """Who speaks: one process of one pod. The consumer outlives a restart of the pod, the lock's value does not."""

    names: GoNames
    consumer: str
    value: str
    lock_ms: int
    spreads: bool = False  # keys are on several servers: one script may not name keys of two slots


def is_apart(seat: Seat, data_stream: str, id_: str) -> bool:
    """Whether the lock of an entry is where no script about the entry can reach it."""
    return seat.spreads and slot_of(seat.names.lock(data_stream, id_)) != slot_of(seat.names.stream)


def buries_apart(seat: Seat) -> bool:
    """The same for the dead letters."""
    return seat.spreads and slot_of(seat.names.dead_letters) != slot_of(seat.names.stream)


def _lock_beside(seat: Seat, data_stream: str, id_: str) -> str:
    if is_apart(seat, data_stream, id_):
        return keys_of(seat.names.stream).lock(id_)
    return seat.names.lock(data_stream, id_)


def _letters_beside(seat: Seat) -> str:
    return keys_of(seat.names.stream).dead_letters if buries_apart(seat) else seat.names.dead_letters


def announce(names: GoNames, announcement: Announcement) -> Call[str]:
    return Call(("XADD", names.stream, "*", FIELD, announcement.json()), text)


def read(seat: Seat, count: int, block_ms: int) -> Call[list[Entry]]:
    return commands.read(keys_of(seat.names.stream), seat.names.group, seat.consumer, count, block_ms)


def hold(seat: Seat, data_stream: str, id_: str) -> Call[Said]:
    names = seat.names
    lock = _lock_beside(seat, data_stream, id_)
    words = (2, names.stream, lock, names.group, seat.consumer, seat.value, seat.lock_ms, id_)
    return Call(words, Said.of, _HOLD)


def done(seat: Seat, data_stream: str, id_: str) -> Call[Said]:
    names = seat.names
    lock = _lock_beside(seat, data_stream, id_)
    words = (2, names.stream, lock, names.group, seat.consumer, seat.value, id_)
    return Call(words, Said.of, _DONE)


def requeue(
    seat: Seat,
    data_stream: str,
    id_: str,
    way: Way,
    *,
    min_idle_ms: int = 0,
    max_retries: int = 0,
    maxlen: int = 0,
    until_ms: int = 0,
) -> Call[Move]:
    """``until_ms``: after this server time a missing lock is no reason for a retry (SPEC 20)."""
    names = seat.names
    keys = (names.stream, _letters_beside(seat), _lock_beside(seat, data_stream, id_))
    words = (names.group, way, seat.consumer, seat.value, min_idle_ms, max_retries, maxlen, id_, until_ms)
    return Call((3, *keys, *words), Move.of, _REQUEUE)


def pending(seat: Seat, start: str, count: int, min_idle_ms: int = 0, end: str = "+") -> Call[list[PendingRow]]:
    keys = keys_of(seat.names.stream)
    return commands.pending_rows(keys, seat.names.group, count, start=start, end=end, min_idle_ms=min_idle_ms)


def mine(seat: Seat, start: str) -> Call[list[PendingRow]]:
    """A page of what is pending for this consumer."""
    keys = keys_of(seat.names.stream)
    return commands.pending_rows(keys, seat.names.group, start=start, owner=seat.consumer)


def server_ms(seat: Seat) -> Call[int]:
    """The clock of the server that has the entries."""
    return commands.server_ms().aimed(seat.names.stream)


def entry(seat: Seat, id_: str) -> Call[list[tuple[bytes, list[bytes]]]]:
    return commands.entries(seat.names.stream, id_, id_, 1)


# ── what is in another slot ──


def lock(seat: Seat, data_stream: str, id_: str) -> Call[Said]:
    return Call((1, seat.names.lock(data_stream, id_), seat.value, seat.lock_ms), Said.of, _LOCK)


def unlock(seat: Seat, data_stream: str, id_: str) -> Call[int]:
    return Call((1, seat.names.lock(data_stream, id_), seat.value), int, _UNLOCK)


def holder(seat: Seat, data_stream: str, id_: str) -> Call[str]:
    """Whose lock it is; "": nobody's."""
    return Call(("GET", seat.names.lock(data_stream, id_)), _text)


def _text(reply: bytes | None) -> str:
    return "" if reply is None else text(reply)


def letters(seat: Seat) -> Call[list[tuple[bytes, list[bytes]]]]:
    """What was buried beside the entries and has yet to come where the protocol has its dead letters."""
    return commands.entries(_letters_beside(seat), count=LETTERS)


def append_letter(seat: Seat, fields: list[bytes], maxlen: int) -> Call[str]:
    limit = ("MAXLEN", "~", maxlen) if maxlen else ()
    return Call(("XADD", seat.names.dead_letters, *limit, "*", *fields), text)


def drop_letter(seat: Seat, id_: bytes) -> Call[int]:
    return commands.delete(_letters_beside(seat), [id_.decode()])
