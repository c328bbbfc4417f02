"""The batch reader, and the reading of a task's share, which batch and streaming have in common."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.errors import Unavailable
from headrace.spark.chunks import Decode, Listed, Patience, RangeReader, listed
from headrace.spark.counting import Top
from headrace.spark.keyspace import find_streams
from headrace.spark.loss import lost_error
from headrace.spark.offsets import START, ZERO, Position, before_ms, parse_id
from headrace.spark.pace import Pace
from headrace.spark.packed import SMALL_ROWS, PackedReader
from headrace.spark.plan import Range, Share
from headrace.spark.planner import Planner, losses, range_of
from headrace.spark.rows import Columns, Segment
from headrace.spark.schema import layout_of
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import State, looks, states
from headrace.spark.tally import TalliedReader
from headrace.spark.told import ending_ids, starting_ids
from headrace.spark.wire import Wire

BATCH_ROWS: Final = 10_000

log = logging.getLogger("headrace.spark")


def check_server(settings: SourceSettings) -> None:
    """Reach the server and the named streams once, so that a bad URL, password or key is known at once."""
    link = settings.address.server().sync_link("headrace-spark")
    try:
        link.open()
        states(link, settings.streams)
    except Unavailable as error:
        raise settings.address.unreachable(error) from None
    finally:
        link.close()


class ShareReader:
    """Reads a task's share as Arrow batches. Has no side effects: Spark runs it as often as it likes."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._batch = ""

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        from headrace.spark.vector import Fast

        columns = Columns(layout_of(self._schema))
        fast = Fast(columns) if self._settings.fast else None
        wire = Wire(self._settings.address, "headrace-spark-task")
        try:
            small = [part for part in share.ranges if part.rows <= SMALL_ROWS]
            self._batch = share.batch
            yield from self._read_small(wire, small, columns)
            for part in share.ranges:
                if part.rows > SMALL_ROWS:
                    for chunk in self._reader(wire, part, fast.decode if fast else listed):
                        if isinstance(chunk, Listed):
                            yield columns.batch([(part.key, chunk.entries)])
                        else:
                            assert fast is not None
                            yield fast.batch(part.key, chunk)
        finally:
            wire.close()

    def _reader(self, wire: Wire, part: Range, decode: Decode) -> RangeReader:
        pace = Pace(self._settings.fetch_bytes)  # of its own: how large the entries of another stream are says nothing
        patience = Patience(self._settings.retry_ms)
        strict = self._settings.fail_on_loss
        if strict or not self._batch:
            return RangeReader(wire, part, pace, decode, fail_on_loss=strict, patience=patience)
        return TalliedReader(wire, part, pace, decode, fail_on_loss=strict, patience=patience, batch=self._batch)

    def _read_small(self, wire: Wire, parts: Sequence[Range], columns: Columns) -> Iterator[pa.RecordBatch]:
        """Many short ranges: their rows share batches."""
        segments: list[Segment] = []
        rows = size = 0
        packed = PackedReader(wire, self._settings.fetch_bytes, lambda part: self._reader(wire, part, listed))
        for part, entries, weight in packed.read(parts):
            segments.append((part.key, entries))
            rows, size = rows + len(entries), size + weight
            if rows >= BATCH_ROWS or size >= self._settings.fetch_bytes:
                yield columns.batch(segments)
                segments, rows, size = [], 0, 0
        if segments:
            yield columns.batch(segments)


class BatchReader(DataSourceReader):
    """``spark.read``: what the streams hold at the moment of planning."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._shares = ShareReader(settings, schema)
        layout_of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        wire = Wire(self._settings.address, "headrace-spark-driver")
        try:
            shares = Planner(wire, self._settings).shares(self._ranges(wire))
            batch = f"once-{secrets.token_hex(6)}"
            for share in shares:
                share.batch = batch
            return list(shares) or [Share(())]
        finally:
            wire.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return self._shares.read(partition)

    def _ranges(self, wire: Wire) -> list[Range]:
        there = find_streams(wire.link, self._settings)
        ends, starts = ending_ids(self._settings, there) or {}, self._starts(there)
        seen = looks(wire.link, {key: start.id for key, start in starts.items()})
        if self._settings.starting_ms is None:
            for key, loss in losses(starts, seen):
                if self._settings.fail_on_loss:
                    raise lost_error(key, starts[key].id, loss)
                log.warning("spark.lost stream=%s after=%s kind=%s lost=%s", key, starts[key].id, loss.kind, loss.lost)
        ranges = []
        for key in starts:
            part = range_of(key, starts[key], Top(self._end(ends.get(key), seen[key].state), None), seen[key])
            ranges += [part] if part is not None else []
        return ranges

    def _starts(self, keys: Sequence[str]) -> dict[str, Position]:
        if self._settings.starting_ms is not None:
            return dict.fromkeys(keys, Position(before_ms(self._settings.starting_ms), told=True))
        told = starting_ids(self._settings, keys) or {}
        return {key: Position(told[key], told=told[key] != ZERO) if key in told else START for key in keys}

    def _end(self, told: str | None, state: State) -> str:
        """The last id to read: what is added after the plan is none of it, whatever end was told."""
        if self._settings.ending_ms is not None:
            told = before_ms(self._settings.ending_ms)
        return state.last_id if told is None else min(told, state.last_id, key=parse_id)
