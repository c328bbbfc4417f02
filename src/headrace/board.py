"""The board: memory that a child process shares with its supervising parent, and that outlives the child.

    header     magic, number of clients, number of marks; two stamps (CLOCK_MONOTONIC, the same for all processes)
    clients    the server's ids of the child's connections (0: none), so that the parent can wait until they are closed
    marks      48 bytes a started delivery: length of its id (0: free), lane, id

A mark is valid once its length byte is written, which comes last; it is cleared by that byte alone. A child killed
half-way through leaves a free mark, and its handler had not started then.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.message import Delivery

MAGIC: Final = 0x48524231
_HEADER: Final = struct.Struct("<IIIxxxxdd")
_THREAD_AT: Final = 16
_LOOP_AT: Final = 24
_CLIENTS_AT: Final = _HEADER.size
_STAMP: Final = struct.Struct("<d")
_CLIENT: Final = struct.Struct("<Q")
_MARK: Final = 48
CLIENTS: Final = 64  # connections of a child that are told; the parent waits a little longer when there are more
MAX_LANES: Final = 256


class Board:
    """Both sides of the shared memory: the child writes it, the parent reads it."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        magic, self._clients, self._marks, _, _ = _HEADER.unpack_from(memory, 0)
        if magic != MAGIC:
            raise ConfigError("this is no board of Headrace: was the file descriptor passed on?")
        self._marks_at = _CLIENTS_AT + self._clients * _CLIENT.size
        self._free = list(range(self._marks - 1, -1, -1))

    @classmethod
    def create(cls, fd: int, *, marks: int) -> Board:
        """The child's side: size the file for so many started deliveries."""
        size = _CLIENTS_AT + CLIENTS * _CLIENT.size + marks * _MARK
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        _HEADER.pack_into(memory, 0, MAGIC, CLIENTS, marks, 0.0, 0.0)
        return cls(memory)

    @classmethod
    def attach(cls, fd: int) -> Board:
        """The parent's side."""
        return cls(mmap.mmap(fd, os.fstat(fd).st_size))

    def close(self) -> None:
        self._memory.close()

    # ── stamps ──

    def stamp_thread(self, now: float) -> None:
        """The lifeline's thread runs: the process is neither paused nor holding the GIL."""
        _STAMP.pack_into(self._memory, _THREAD_AT, now)

    def stamp_loop(self, now: float) -> None:
        """The event loop turned."""
        _STAMP.pack_into(self._memory, _LOOP_AT, now)

    @property
    def thread_stamp(self) -> float:
        return float(_STAMP.unpack_from(self._memory, _THREAD_AT)[0])

    @property
    def loop_stamp(self) -> float:
        return float(_STAMP.unpack_from(self._memory, _LOOP_AT)[0])

    # ── connections ──

    def tell_clients(self, ids: list[int]) -> None:
        padded = (ids + [0] * CLIENTS)[:CLIENTS]
        for at, client_id in enumerate(padded):
            _CLIENT.pack_into(self._memory, _CLIENTS_AT + at * _CLIENT.size, client_id)

    def clients(self) -> list[int]:
        ids = (_CLIENT.unpack_from(self._memory, _CLIENTS_AT + at * _CLIENT.size)[0] for at in range(self._clients))
        return [int(client_id) for client_id in ids if client_id]

    # ── marks ──

    def lane(self, index: int) -> LaneMarks:
        if index >= MAX_LANES:
            raise ConfigError(f"one process serves at most {MAX_LANES} handlers: start more processes with fewer")
        return LaneMarks(self, index)

    def mark(self, lane: int, raw_id: bytes) -> int:
        """Write a mark and answer its place. Without a free place (never, if sized right): -1."""
        if not self._free:
            return -1
        slot = self._free.pop()
        at = self._marks_at + slot * _MARK
        self._memory[at + 2 : at + 2 + len(raw_id)] = raw_id
        self._memory[at + 1] = lane
        self._memory[at] = len(raw_id)
        return slot

    def clear(self, slot: int) -> None:
        self._memory[self._marks_at + slot * _MARK] = 0
        self._free.append(slot)

    def started(self, lane: int) -> list[bytes]:
        """The ids that were started in a lane and have not ended. Read by the parent once the child is dead."""
        found = []
        for slot in range(self._marks):
            at = self._marks_at + slot * _MARK
            length = self._memory[at]
            if length and self._memory[at + 1] == lane:
                found.append(self._memory[at + 2 : at + 2 + length])
        return found


class LaneMarks:
    """The marks of one lane: what :class:`headrace.marks.Marks` asks for."""

    __slots__ = ("_board", "_index")

    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self._index = index

    def started(self, delivery: Delivery[Any]) -> None:
        delivery.mark_slot = self._board.mark(self._index, delivery.raw_id)

    def ended(self, delivery: Delivery[Any]) -> None:
        if delivery.mark_slot >= 0:
            self._board.clear(delivery.mark_slot)
            delivery.mark_slot = -1
