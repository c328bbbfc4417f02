"""The batch reader, and the reading of a task's share, which batch and streaming have in common."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError, Unavailable
from headrace.spark.chunks import Decode, Listed, Pace, Patience, RangeReader, listed
from headrace.spark.keyspace import find_streams
from headrace.spark.loss import lost_error
from headrace.spark.offsets import START, ZERO, Position, before_ms, parse_id
from headrace.spark.plan import Range, Share
from headrace.spark.planner import Planner, losses, range_of
from headrace.spark.rows import Columns, Segment
from headrace.spark.schema import layout_of
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import looks, states
from headrace.spark.tally import TalliedReader
from headrace.spark.wire import Wire

SMALL_ROWS: Final = 200  # a range of so few rows shares a request with others
TOGETHER: Final = 100  # ranges in one request
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
        pace = Pace(self._settings.fetch_bytes)
        try:
            small = [part for part in share.ranges if part.rows <= SMALL_ROWS]
            self._batch = share.batch
            yield from self._read_small(wire, small, columns)
            for part in share.ranges:
                if part.rows > SMALL_ROWS:
                    for chunk in self._reader(wire, part, pace, fast.decode if fast else listed):
                        if isinstance(chunk, Listed):
                            yield columns.batch([(part.key, chunk.entries)])
                        else:
                            assert fast is not None
                            yield fast.batch(part.key, chunk)
        finally:
            wire.close()

    def _reader(self, wire: Wire, part: Range, pace: Pace, decode: Decode) -> RangeReader:
        patience = Patience(self._settings.retry_ms)
        strict = self._settings.fail_on_loss
        if strict or not self._batch:
            return RangeReader(wire, part, pace, decode, fail_on_loss=strict, patience=patience)
        return TalliedReader(wire, part, pace, decode, fail_on_loss=strict, patience=patience, batch=self._batch)

    def _read_small(self, wire: Wire, parts: Sequence[Range], columns: Columns) -> Iterator[pa.RecordBatch]:
        """Many short ranges: their first requests go together, their rows share batches."""
        segments: list[Segment] = []
        rows = size = 0
        for at in range(0, len(parts), TOGETHER):
            for part, entries, weight in self._some(wire, parts[at : at + TOGETHER]):
                segments.append((part.key, entries))
                rows, size = rows + len(entries), size + weight
                if rows >= BATCH_ROWS or size >= self._settings.fetch_bytes:
                    yield columns.batch(segments)
                    segments, rows, size = [], 0, 0
        if segments:
            yield columns.batch(segments)

    def _some(self, wire: Wire, parts: Sequence[Range]) -> Iterator[tuple[Range, list[Any], int]]:
        """Ask for some ranges in one write. One that cannot be read this way is read by itself."""
        commands = [
            ("XRANGE", part.key, part.witness, part.upto, "COUNT", min(part.rows, SMALL_ROWS) + 2) for part in parts
        ]
        pace = Pace(self._settings.fetch_bytes)
        if not parts:
            return
        if self._heavy(wire, parts):
            answers: list[Any] = [None] * len(parts)
        else:
            answers = self._try_together(wire, commands)
        for part, command, entries in zip(parts, commands, answers, strict=True):
            whole = entries is not None and len(entries) < int(command[-1])
            if whole and entries and entries[0][0].decode() == part.witness:
                rows = entries[1:] if part.witness == part.start.id else entries
                if rows:
                    yield part, rows, _weight(rows)
                continue
            for chunk in self._reader(wire, part, pace, listed):
                assert isinstance(chunk, Listed)
                yield part, chunk.entries, _weight(chunk.entries)

    def _heavy(self, wire: Wire, parts: Sequence[Range]) -> bool:
        """Whether the entries are so large that asking for many streams at once would take too much memory."""
        part = max(parts, key=lambda one: one.rows)
        try:
            wire.send([("XRANGE", part.key, part.witness, part.upto, "COUNT", 1)])
            size = wire.receive().size
        except HeadraceError:
            return True  # reading one by one tries again
        return size * sum(one.rows + 1 for one in parts) > 4 * self._settings.fetch_bytes

    @staticmethod
    def _try_together(wire: Wire, commands: Sequence[Any]) -> list[Any]:
        """One write for each server. What cannot be read this way is None."""
        servers: dict[object, list[int]] = {}
        for at, command in enumerate(commands):
            servers.setdefault(wire.place(command[1]), []).append(at)
        answers: list[Any] = [None] * len(commands)
        for some in servers.values():
            try:
                for at, answer in zip(some, wire.ask([commands[at] for at in some]), strict=True):
                    answers[at] = answer
            except HeadraceError:
                continue  # reading one by one tries again, and says what is wrong
        return answers


def _weight(entries: Sequence[Any]) -> int:
    return sum(map(len, entries[0][1])) * len(entries) if entries else 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a filter leaves to read: some streams, or times. None: everything."""

    streams: frozenset[str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None  # the first ms that is not read

    def start(self, start: Position) -> Position:
        """Where reading begins; the entry there need not exist, so nothing is counted from it."""
        moved = ZERO if self.from_ms is None else before_ms(self.from_ms)
        return start if parse_id(moved) <= start.number else Position(moved)

    def end(self, end: str) -> str:
        bound = end if self.until_ms is None else before_ms(max(0, self.until_ms))
        return min(end, bound, key=parse_id)


class BatchReader(DataSourceReader):
    """``spark.read``: what the streams hold at the moment of planning."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        self._settings = settings
        self._shares = ShareReader(settings, schema)
        self._bounds = Bounds()
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
        wanted = self._bounds.streams
        keys = [key for key in find_streams(wire.link, self._settings) if wanted is None or key in wanted]
        starts = {key: self._start(key) for key in keys}
        seen = looks(wire.link, {key: start.id for key, start in starts.items()})
        if self._settings.starting_ms is None:
            for key, loss in losses(starts, seen):
                if self._settings.fail_on_loss:
                    raise lost_error(key, starts[key].id, loss)
                log.warning("spark.lost stream=%s after=%s kind=%s lost=%s", key, starts[key].id, loss.kind, loss.lost)
        begun = {key: self._bounds.start(start) for key, start in starts.items()}
        seen |= looks(wire.link, {key: start.id for key, start in begun.items() if start is not starts[key]})
        found = (range_of(key, begun[key], self._end(key, seen[key].state.last_id), seen[key]) for key in keys)
        return [part for part in found if part is not None]

    def _start(self, key: str) -> Position:
        if self._settings.starting_ms is not None:
            return Position(before_ms(self._settings.starting_ms))
        if isinstance(self._settings.starting, dict):
            return Position(self._settings.starting[key]) if key in self._settings.starting else START
        return START

    def _end(self, key: str, last_id: str) -> str:
        return self._bounds.end(self._told_end(key, last_id))

    def _told_end(self, key: str, last_id: str) -> str:
        if self._settings.ending_ms is not None:
            return before_ms(self._settings.ending_ms)
        if isinstance(self._settings.ending, dict):
            return str(self._settings.ending.get(key, last_id))
        return last_id
