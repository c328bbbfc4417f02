"""Reads ranges chunk by chunk, and notices when the stream is cut under it.

Each request begins at the last id that was read, and that entry must come first again: a stream is trimmed from its
beginning, so as long as the last entry read is there, none behind it was trimmed. Where it is not, one look says what
happened, by the rules of loss.py. Entries that are deleted singly leave the others where they are: where the plan knew
how many there were, fewer at the end are a loss too. Nothing here changes anything on the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headrace.errors import HeadraceError, Verdict, classify
from headrace.policy import reconnect_delay_ms
from headrace.redis.calls import text
from headrace.spark.loss import Loss, judge, lost_error
from headrace.spark.offsets import Position, parse_id
from headrace.spark.pace import Pace
from headrace.spark.plan import Range
from headrace.spark.state import look_calls, read_look
from headrace.spark.wire import AnswerTooLarge, Reply, Wire

RETRY_MS: Final = 30_000

Command = tuple[bytes | str | int | float, ...]
log = logging.getLogger("headrace.spark")


class Chunk(Protocol):
    """Some entries of one stream in order: lists of hiredis, or positions in a buffer."""

    count: int

    def id_at(self, at: int) -> str: ...
    def without_first(self) -> Chunk: ...


@dataclass(slots=True)
class Listed:
    """Entries as hiredis gives them: [id, [name, value, ...]]."""

    entries: list[Any]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.entries)

    def id_at(self, at: int) -> str:
        return text(self.entries[at][0])

    def without_first(self) -> Listed:
        return Listed(self.entries[1:])


def listed(wire: Wire, reply: Reply) -> Listed:
    """The plain way to read an answer."""
    return Listed(wire.checked(reply)[0])


Decode = Callable[[Wire, Reply], Chunk]


@dataclass(slots=True)
class Patience:
    """How long a server that has gone is waited for. Reads may be repeated at will."""

    limit_ms: int = RETRY_MS

    def keep_trying(self, step: Callable[[], Any]) -> Any:
        until = time.monotonic() + self.limit_ms / 1000
        tries = 0
        while True:
            try:
                return step()
            except HeadraceError as error:
                tries += 1
                delay_s = reconnect_delay_ms(tries, 0.5) / 1000
                if classify(error) is not Verdict.RETRY or time.monotonic() + delay_s > until:
                    raise
                log.warning("spark.retry tries=%d error=%s", tries, error)
                time.sleep(delay_s)


class RangeReader:
    """One range on one wire. Iterating yields its chunks; the next one is asked for before a chunk is given out."""

    def __init__(self, wire: Wire, part: Range, pace: Pace, decode: Decode, *, fail_on_loss: bool, patience: Patience):
        self._wire = wire
        self._part = part
        self._pace = pace
        self._decode = decode
        self._fail_on_loss = fail_on_loss
        self._patience = patience
        self._at = part.start  # everything up to here was given out
        self._witness = part.witness  # the entry that the next answer must begin with
        self._asked = 0
        self._upto = parse_id(part.upto)
        self._given = 0
        self._lost_some = False  # and it was told already

    def __iter__(self) -> Iterator[Chunk]:
        done = False
        while not done:
            chunk = self._patience.keep_trying(self._next)
            found = chunk.count
            if found and chunk.id_at(0) == self._witness:
                full = found >= self._asked
                rows = chunk.without_first() if self._witness == self._at.id else chunk
            else:
                rows, full = self._mend()
            self._advance(rows)
            done = not full or parse_id(self._at.id) >= self._upto
            if not done:
                self._send()
            if rows.count:
                self._given += rows.count
                yield rows
        self._compare()

    def begin(self) -> Command:
        """The first request, for one who sends those of many ranges at once."""
        self._asked = self._pace.count + (self._witness == self._at.id)
        return ("XRANGE", self._part.key, self._witness, self._part.upto, "COUNT", self._asked)

    def _send(self) -> None:
        self._wire.send([self.begin()])

    def _next(self) -> Chunk:
        reply = self._receive()
        chunk = self._decode(self._wire, reply)
        self._pace.learn(chunk.count, reply.size)
        return chunk

    def _receive(self) -> Reply:
        """The next answer; asked for again, and less of it, while it is too large."""
        while True:
            if not self._wire.waiting:
                self._send()
            try:
                return self._wire.receive(self._pace.most_bytes)
            except AnswerTooLarge:
                self._pace.shrink()

    def _advance(self, rows: Chunk) -> None:
        if rows.count:
            n = None if self._at.n is None else self._at.n + rows.count
            self._at = Position(rows.id_at(rows.count - 1), n)
            self._witness = self._at.id

    def _mend(self) -> tuple[Chunk, bool]:
        """The witness is gone. Judge what that means, and read on from the same moment."""
        part, count = self._part, self._pace.count

        def look() -> Any:
            calls = look_calls(part.key, self._at.id, part.upto, count)
            return read_look(part.key, self._wire.link.pipe(calls))

        seen, entries = self._patience.keep_trying(look)
        loss = judge(self._at, seen)
        if not loss and self._witness != self._at.id:
            loss = Loss("trimmed", None)  # the first entry of the range was there when it was planned
        if loss and self._fail_on_loss:
            raise lost_error(part.key, self._at.id, loss)
        if loss:
            self._note(loss)
        return Listed(entries), len(entries) >= count

    def _compare(self) -> None:
        """The end: entries deleted singly, between two that were read, leave no other trace than that they lack."""
        missing = self._part.rows - self._given
        if not self._part.exact or missing <= 0 or self._lost_some:
            return
        loss = Loss("deleted", missing)
        if self._fail_on_loss:
            raise lost_error(self._part.key, self._part.start.id, loss)
        self._note(loss)

    def _note(self, loss: Loss) -> None:
        """Something is lost, and that is to be lived with."""
        self._lost_some = True
        at = self._at.id
        log.warning("spark.lost stream=%s after=%s kind=%s lost=%s", self._part.key, at, loss.kind, loss.lost)
