"""Typed calls of the protocol: what the Go client sends in several commands goes in one script each."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from headrace.goclient.protocol import FIELD, Announcement, GoNames
from headrace.names import keys_of
from headrace.redis import commands
from headrace.redis.calls import Call, Entry, load, text
from headrace.redis.replies import Move

_HOLD = load("go_hold")
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


def announce(names: GoNames, announcement: Announcement) -> Call[str]:
    return Call(("XADD", names.stream, "*", FIELD, announcement.json()), text)


def read(seat: Seat, count: int, block_ms: int) -> Call[list[Entry]]:
    return commands.read(keys_of(seat.names.stream), seat.names.group, seat.consumer, count, block_ms)


def hold(seat: Seat, data_stream: str, id_: str) -> Call[Said]:
    names = seat.names
    words = (2, names.stream, names.lock(data_stream, id_), names.group, seat.consumer, seat.value, seat.lock_ms, id_)
    return Call(words, Said.of, _HOLD)


def done(seat: Seat, data_stream: str, id_: str) -> Call[Said]:
    names = seat.names
    words = (2, names.stream, names.lock(data_stream, id_), names.group, seat.consumer, seat.value, id_)
    return Call(words, Said.of, _DONE)


def requeue(
    seat: Seat,
    data_stream: str,
    id_: str,
    way: Literal["retry", "release", "unparseable"],
    *,
    min_idle_ms: int = 0,
    max_retries: int = 0,
    maxlen: int = 0,
) -> Call[Move]:
    names = seat.names
    keys = (names.stream, names.dead_letters, names.lock(data_stream, id_))
    words = (names.group, way, seat.consumer, seat.value, min_idle_ms, max_retries, maxlen, id_)
    return Call((3, *keys, *words), Move.of, _REQUEUE)


def pending(seat: Seat, start: str, count: int, min_idle_ms: int = 0, end: str = "+") -> Call[Any]:
    keys = keys_of(seat.names.stream)
    return commands.pending_rows(keys, seat.names.group, count, start=start, end=end, min_idle_ms=min_idle_ms)


def entry(seat: Seat, id_: str) -> Call[list[tuple[bytes, list[bytes]]]]:
    return commands.entries(seat.names.stream, id_, id_, 1)
