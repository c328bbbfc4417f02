"""What a task of group mode reads: messages that its batch's owner holds, by their ids."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
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


class Held(InputPartition):
    """Deliveries that a task reads: ids of one stream, held by one owner."""

    def __init__(self, key: str, ids: Sequence[str], owner: str) -> None:
        super().__init__(None)
        self.key = key
        self.ids = tuple(ids)
        self.owner = owner


class HeldReader:
    """Reads a task's deliveries as Arrow batches. What is gone from the stream fails it, or is counted."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def read(self, held: Held) -> Iterator[pa.RecordBatch]:
        columns = Columns(layout_of(self._schema))
        wire = Wire(self._settings.address, "headrace-spark-task")
        lost: list[str] = []
        try:
            for some, answers in self._portions(wire, held):
                entries = [answer[0] for answer in answers if answer]
                gone = [id_ for id_, answer in zip(some, answers, strict=True) if not answer]
                if gone and not self._settings.fail_on_loss:
                    log.warning("spark.lost stream=%s after=%s kind=trimmed lost=%d", held.key, gone[0], len(gone))
                    tally_ids(wire.link, held.owner, held.key, gone)
                elif gone:
                    lost += gone
                if entries and not lost:  # else the rest is read only to say how many there are
                    yield columns.batch([(held.key, [self._original(entry) for entry in entries])])
        finally:
            wire.close()
        if lost:
            raise lost_error(held.key, lost[0], Loss("trimmed", len(lost)))

    def _portions(self, wire: Wire, held: Held) -> Iterator[tuple[Sequence[str], list[Any]]]:
        """Some ids, and what the server has of each; asked for again, and fewer, where that is too much at once."""
        patience, pace, at = Patience(self._settings.retry_ms), Pace(self._settings.fetch_bytes, most=AT_ONCE), 0
        while at < len(held.ids):
            some = held.ids[at : at + pace.count]
            commands = [("XRANGE", held.key, id_, id_) for id_ in some]
            try:
                answers = patience.keep_trying(partial(wire.ask, commands, pace.most_bytes))
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
