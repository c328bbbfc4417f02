"""What a task of group mode reads: messages that its batch's owner holds, by their ids."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.redis.letters import open_copy
from headrace.spark.chunks import Patience
from headrace.spark.loss import Loss, lost_error
from headrace.spark.pace import Pace, weight
from headrace.spark.rows import Columns
from headrace.spark.schema import layout_of
from headrace.spark.source_options import SourceSettings
from headrace.spark.tally import tally_ids
from headrace.spark.wire import AnswerTooLarge, Wire

AT_ONCE: Final = 100  # ids in one request, at most

log = logging.getLogger("headrace.spark")


Piece = tuple[str, Sequence[str]]
"""Ids of one stream."""

Message = tuple[str, str]
"""(stream, id)"""


class Held(InputPartition):
    """Deliveries that a task reads: ids of some streams, held by one owner."""

    def __init__(self, pieces: Iterable[Piece], owner: str) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.owner = owner


class HeldReader:
    """Reads a task's deliveries as Arrow batches. What is gone from the stream fails it, or is counted."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def read(self, held: Held) -> Iterator[pa.RecordBatch]:
        columns = Columns(layout_of(self._schema))
        wire = Wire(self._settings.address, "headrace-spark-task")
        lost: dict[str, list[str]] = {}
        try:
            for some, answers in self._portions(wire, held):
                gone: dict[str, list[str]] = {}
                entries: dict[str, list[Any]] = {}
                for (key, id_), answer in zip(some, answers, strict=True):
                    if answer:
                        entries.setdefault(key, []).append(self._original(answer[0]))
                    else:
                        gone.setdefault(key, []).append(id_)
                if self._settings.fail_on_loss:
                    for key, ids in gone.items():
                        lost.setdefault(key, []).extend(ids)
                else:
                    _count(wire, held.owner, gone)
                if entries and not lost:  # else the rest is read only to say how many there are
                    yield columns.batch(list(entries.items()))
        finally:
            wire.close()
        for key, ids in lost.items():
            raise lost_error(key, ids[0], Loss("trimmed", len(ids)))

    def _portions(self, wire: Wire, held: Held) -> Iterator[tuple[Sequence[Message], list[Any]]]:
        """Some messages, and what the server has of each; asked for again, and fewer, where that is too much at once.
        Streams of one server share a request."""
        patience, pace, at = Patience(self._settings.retry_ms), Pace(self._settings.fetch_bytes, most=AT_ONCE), 0
        patience.keep_trying(wire.link.open)  # from then on a cluster's map is known
        pieces = sorted(held.pieces, key=lambda piece: str(wire.place(piece[0])))
        wanted = [(key, id_) for key, ids in pieces for id_ in ids]

        def ask(at: int) -> tuple[list[Message], list[Any]]:
            place = wire.place(wanted[at][0])  # asked anew at each try: slots move
            some = list(takewhile(lambda one: wire.place(one[0]) == place, wanted[at : at + pace.count]))
            return some, wire.ask([("XRANGE", key, id_, id_) for key, id_ in some], pace.most_bytes)

        while at < len(wanted):
            try:
                some, answers = patience.keep_trying(partial(ask, at))
            except AnswerTooLarge:
                pace.shrink()
                continue
            pace.learn(len(some), weight(answers))
            at += len(some)
            yield some, answers

    def _original(self, entry: Any) -> Any:
        """An entry as it was added: replay appends a copy where the original had been trimmed."""
        copy = open_copy(entry[1], self._settings.prefix)
        return entry if copy is None else [entry[0], copy.fields]


def _count(wire: Wire, owner: str, gone: Mapping[str, Sequence[str]]) -> None:
    for key, ids in gone.items():
        log.warning("spark.lost stream=%s after=%s kind=trimmed lost=%d", key, ids[0], len(ids))
        tally_ids(wire.link, owner, key, ids)
