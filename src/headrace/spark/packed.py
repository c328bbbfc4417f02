"""Short ranges of many streams: their requests go together, as long as their answers stay small together.

Nobody knows beforehand how large the entries of a stream are, and those of its neighbour may be a thousand times as
large. So the first few rows of each range are asked for, of few ranges to begin with; most short ranges end there. What
is left is put together by what those rows weighed. A range too large to share an answer is read by itself, in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.spark.chunks import Chunk, Listed
from headrace.spark.pace import ROOM, Pace, weight
from headrace.spark.plan import Range
from headrace.spark.wire import Wire

SMALL_ROWS: Final = 200  # a range of so few rows shares a request with others
TOGETHER: Final = 100  # ranges in one request
TOUCH: Final = 3  # rows of a range that say how large the others are; among them the witness

Piece = tuple[Range, list[Any], int]
"""A range, some of its entries, and what they weigh."""

Alone = Callable[[Range], Iterable[Chunk]]
"""Reads one range by itself, and says what is wrong with it."""


@dataclass(slots=True)
class Bundle:
    """Ranges whose rows fit into one answer, as far as is known."""

    parts: list[Range] = field(default_factory=list)
    size: int = 0


class PackedReader:
    """Reads the short ranges of a task on its wire."""

    def __init__(self, wire: Wire, fetch_bytes: int, alone: Alone) -> None:
        self._wire = wire
        self._fetch_bytes = fetch_bytes
        self._alone = alone
        self._pace = Pace(fetch_bytes, most=TOGETHER)  # in ranges

    def read(self, parts: Sequence[Range]) -> Iterator[Piece]:
        for some in self._pace.parts(parts):
            known: list[tuple[Range, int]] = []
            size = 0
            for part, entries in self._ask(some, TOUCH):
                size += weight(entries)
                if _is_whole(part, entries, TOUCH):
                    yield from _piece(part, entries)
                elif entries:
                    known.append((part, weight(entries) * (part.rows + 1) // len(entries)))
                else:
                    yield from self._by_itself(part)
            self._pace.learn(len(some), size)
            yield from self._rest(known)

    def _rest(self, known: Sequence[tuple[Range, int]]) -> Iterator[Piece]:
        """What the first rows were not all of."""
        for bundle in self._bundles(known):
            if bundle.size > self._fetch_bytes:
                for part in bundle.parts:
                    yield from self._by_itself(part)
                continue
            for part, entries in self._ask(bundle.parts, SMALL_ROWS + 2):
                if _is_whole(part, entries, SMALL_ROWS + 2):
                    yield from _piece(part, entries)
                else:
                    yield from self._by_itself(part)

    def _bundles(self, known: Sequence[tuple[Range, int]]) -> list[Bundle]:
        bundles: list[Bundle] = []
        for part, size in known:
            if not bundles or bundles[-1].size + size > self._fetch_bytes:
                bundles.append(Bundle())
            bundles[-1].parts.append(part)
            bundles[-1].size += size
        return bundles

    def _by_itself(self, part: Range) -> Iterator[Piece]:
        for chunk in self._alone(part):
            assert isinstance(chunk, Listed)
            yield part, chunk.entries, weight(chunk.entries)

    def _ask(self, parts: Sequence[Range], most: int) -> list[tuple[Range, list[Any]]]:
        """Up to so many rows of each, one write for each server. Of what cannot be read this way there are none."""
        servers: dict[object, list[Range]] = {}
        for part in parts:
            servers.setdefault(self._wire.place(part.key), []).append(part)
        found: list[tuple[Range, list[Any]]] = []
        for some in servers.values():
            commands = [_command(part, most) for part in some]
            try:
                answers = self._wire.ask(commands, self._fetch_bytes * ROOM)
            except HeadraceError:  # or too large an answer: reading one by one tries again, and says what is wrong
                answers = [[] for _ in some]
            found += zip(some, answers, strict=True)
        return found


def _count(part: Range, most: int) -> int:
    return min(part.rows + 2, most)  # one more than there can be, with the witness: then all have come


def _command(part: Range, most: int) -> tuple[str | int, ...]:
    return ("XRANGE", part.key, part.witness, part.upto, "COUNT", _count(part, most))


def _is_whole(part: Range, entries: Sequence[Any], most: int) -> bool:
    """Whether all of a range has come, and nothing was taken away: neither its beginning nor one of its rows."""
    if not entries or len(entries) >= _count(part, most) or entries[0][0].decode() != part.witness:
        return False
    return not part.exact or len(entries) - _read_before(part) >= part.rows


def _read_before(part: Range) -> bool:
    """Whether the first entry of an answer is there as a witness only."""
    return part.witness == part.start.id


def _piece(part: Range, entries: list[Any]) -> Iterator[Piece]:
    rows = entries[_read_before(part) :]
    if rows:
        yield part, rows, weight(rows)
