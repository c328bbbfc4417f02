"""The sink `redis-streams`: rows become entries of Redis streams, exactly once unless told otherwise.

    df.write.format("redis-streams").option("url", url).option("stream", "orders").mode("append").save()
    df.writeStream.format("redis-streams").option("stream", "orders").option("checkpointLocation", folder).start()

write() runs in tasks, any number of times for the same rows; commit() once on the driver, or not at all, or by two
drivers at once. Nothing set in write() is there in commit(): all that is handed on is the message.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, HeadraceError, NameRefused, Unavailable, WrongType
from headrace.names import check_stream, keys_of
from headrace.options import shown
from headrace.spark import staging
from headrace.spark.keyspace import partition_count
from headrace.spark.options import Address
from headrace.spark.sink_options import SinkOptions, read_options
from headrace.spark.sink_rows import Chunk, Layout, Rows, layout_of, letters_chunk
from headrace.spark.sink_targets import targets_of
from headrace.spark.staging import Batch, PatientLink, StagedList

log = logging.getLogger("headrace.spark")

BUFFER_BYTES: Final = 512 << 10  # of one target's blobs, before they are sent
TASK_BYTES: Final = 8 << 20  # of all targets' blobs
TARGETS_LIMIT: Final = 10_000  # that one task may write to
LETTERS_AT_ONCE: Final = 100
RETRY_MS: Final = 30_000  # as retryTimeout, where it is not told


@dataclass
class Written(WriterCommitMessage):
    """What one task staged."""

    query: str
    lists: list[StagedList] = field(default_factory=list)


class RowRefused(HeadraceError):
    """A row no stream can take, where the write was told to fail on it."""


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of one batch write. Raises ConfigError, or what the server says, before any task runs."""
    return BatchWriter(*_checked(options, schema, overwrite))


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of one batch of a streaming query; Spark asks for a new one each batch."""
    checked, layout = _checked(options, schema, overwrite, patient=True)
    if checked.app:
        raise ConfigError("txnAppId and txnVersion are for batch writes: a streaming query has its own id and batches")
    return StreamWriter(checked, layout)


def check_sink(options: Mapping[str, str]) -> None:
    """Look at all that can be known of a write before its columns are. Raises what make_writer would."""
    checked = read_options(options)
    partitions = _look(checked, 0)
    if checked.partition_key:
        _check_partitioned(checked, partitions)


def _checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, patient: bool = False
) -> tuple[SinkOptions, Layout]:
    """Look at everything that can be known now. What may be repeated waits for its server, as a query that runs does,
    and a write with txnAppId, one of many. A write by itself does not."""
    checked, layout = read_options(options, overwrite=overwrite), layout_of(schema)
    if not checked.stream and layout.stream_at is None:
        raise ConfigError('no target is known: give option("stream", "orders") or a column `stream`')
    patient = patient or bool(checked.app)
    return _partitioned(checked, layout, _look(checked, checked.retry_ms if patient else 0)), layout


def _look(checked: SinkOptions, retry_ms: int) -> int | None:
    """Ask the server whether it lets us in and its target can take rows. Answers how many partitions that has."""
    try:
        with PatientLink(checked.address, retry_ms) as link:
            kind = link.call(staging.type_of(checked.stream or "headrace"))
            partitions = partition_count(link, checked.stream) if checked.stream else None
    except Unavailable as error:
        raise checked.address.unreachable(error) from None
    if checked.stream and kind not in ("stream", "none"):
        raise WrongType(f"{checked.stream} holds a {kind}, not a stream: choose another target")
    return partitions


def _partitioned(checked: SinkOptions, layout: Layout, partitions: int | None) -> SinkOptions:
    """With the number of partitions the target has. Raises ConfigError where the option partitionKey is of no use."""
    if not checked.partition_key:
        return replace(checked, partitions=partitions or 0)
    _check_partitioned(checked, partitions)
    if layout.fields_at is None and checked.partition_key not in layout.names:
        raise ConfigError(f"no column is called {shown(checked.partition_key)}: partitionKey names one of the columns")
    return replace(checked, partitions=partitions or 0)


def _check_partitioned(checked: SinkOptions, partitions: int | None) -> None:
    if partitions is None:
        raise ConfigError(f"{checked.stream or 'the target'} has no partitions: remove the option partitionKey")


# ── in a task ────────────────────────────────────────────────────────────────────────────────────────


class Outlet:
    """Takes the blobs of one task: staged in private lists, or appended at once."""

    def __init__(self, link: PatientLink, options: SinkOptions, query: str, batch: int) -> None:
        self._link, self._options = link, options
        self._query, self._batch = query, batch
        self._token = secrets.token_hex(8)
        self._waiting: dict[str, list[Chunk]] = {}
        self._bytes: dict[str, int] = {}
        self.lists: dict[str, StagedList] = {}

    @property
    def targets(self) -> list[str]:
        """Every stream that anything was put for."""
        return list(self._waiting)

    def put(self, target: str, chunk: Chunk) -> None:
        self._waiting.setdefault(target, []).append(chunk)
        self._bytes[target] = self._bytes.get(target, 0) + len(chunk.blob)
        if self._bytes[target] >= BUFFER_BYTES:
            self._send(target)
        elif sum(self._bytes.values()) >= TASK_BYTES:
            self.flush()

    def flush(self) -> None:
        for target in [target for target, chunks in self._waiting.items() if chunks]:
            self._send(target)

    def _send(self, target: str) -> None:
        chunks, self._waiting[target], self._bytes[target] = self._waiting[target], [], 0
        dead = target == self._options.dead_letters
        if not self._options.exactly_once:
            trim = ("", "", "") if dead else self._options.trim
            self._link.pipe([staging.append(target, trim, chunk.blob) for chunk in chunks])
            return
        known = self.lists.get(target) or self._new_list(target, dead)
        self.lists[target] = known
        blobs = [chunk.blob for chunk in chunks]
        length = self._link.call(staging.stage(known.name, known.blobs, self._options.staging_ttl_s, blobs))
        if length != known.blobs + len(blobs):
            raise staging.StagingLost(f"{known.name}: the list of this task was changed while it wrote: try again")
        rows = known.rows + sum(chunk.rows for chunk in chunks)
        self.lists[target] = StagedList(target, known.name, length, rows, dead)

    def _new_list(self, target: str, dead: bool) -> StagedList:
        if len(self.lists) >= TARGETS_LIMIT:
            raise ConfigError(f"one task writes to more than {TARGETS_LIMIT:,} streams: repartition by `stream` first")
        return StagedList(target, keys_of(target).stage(self._query, self._batch, self._token), 0, 0, dead)


class Task:
    """One run of write(): batches in, blobs out, bad rows to the dead letters."""

    def __init__(self, link: PatientLink, options: SinkOptions, layout: Layout, query: str, batch: int) -> None:
        self._link, self._options = link, options
        self._targets = targets_of(layout, options)
        self._rows = Rows(layout, nulls_empty=options.nulls_empty)
        self._outlet = Outlet(link, options, query, batch)
        self._refusals: dict[str, str] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> list[StagedList]:
        for batch in batches:
            for target, part in self._targets.split(batch):
                self._write(target, part)
            self._bury()
        self._outlet.flush()
        if self._options.replicated:
            self._link.confirm_replica(self._outlet.targets)
        return list(self._outlet.lists.values())

    def forget(self) -> None:
        """Drop what a run that failed has staged: nobody else knows its lists. What cannot be dropped expires."""
        with suppress(HeadraceError), PatientLink(self._options.address, 0) as link:
            staging.drop(link, list(self._outlet.lists.values()))

    def _write(self, target: str, part: pa.RecordBatch) -> None:
        if target not in self._refusals:
            self._refusals[target] = self._refusal(target)
        if self._refusals[target]:
            self._rows.refuse(target, part, self._refusals[target])
            return
        for chunk in self._rows.chunks(target, part):
            self._outlet.put(target, chunk)

    def _refusal(self, target: str) -> str:
        """Why nothing can be written to a target; "" if it can."""
        if not target:
            return "the row names no stream, and the write has no option `stream`"
        if target == self._options.stream:
            return ""  # looked at before; a change since then fails the batch
        if not self._options.partitions and partition_count(self._link, target) is not None:
            return f"{target} is partitioned: name it with the option `stream`"
        try:
            check_stream(target)
        except NameRefused as error:
            return str(error)
        kind = self._link.call(staging.type_of(target))
        return "" if kind in ("stream", "none") else f"{target} holds a {kind}, not a stream"

    def _bury(self) -> None:
        bad, self._rows.bad = self._rows.bad, []
        if bad and not self._options.dead_letters:
            _, target, why = bad[0]
            raise RowRefused(
                f"{len(bad):,} rows cannot be written, the first for {target or 'no stream'}: {why}. "
                "Give the option deadLetters to have such rows put there"
            )
        for start in range(0, len(bad), LETTERS_AT_ONCE):
            self._outlet.put(self._options.dead_letters, letters_chunk(bad[start : start + LETTERS_AT_ONCE]))


def _write(options: SinkOptions, layout: Layout, query: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Written:
    with PatientLink(options.address, options.retry_ms) as link, ExitStack() as failing:
        task = Task(link, options, layout, query, batch)
        failing.callback(task.forget)
        lists = task.run(batches)
        failing.pop_all()
        return Written(query, lists)


# ── on the driver ────────────────────────────────────────────────────────────────────────────────────


def _lists(messages: Sequence[WriterCommitMessage | None]) -> list[StagedList]:
    return [one for message in messages if isinstance(message, Written) for one in message.lists]


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((message.query for message in messages if isinstance(message, Written)), None)


def _commit(options: SinkOptions, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    if options.exactly_once:
        with PatientLink(options.address, options.retry_ms) as link:
            staging.finish(link, batch, _lists(messages))


def _abort(options: SinkOptions, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give up what was staged, after a task failed, or commit() itself, or somebody stopped the query meanwhile.

    Never raises: Spark would show that error in the place of the one that led here. Lists that stay expire.
    """
    lists = _lists(messages)
    if not lists:
        return
    try:
        with PatientLink(options.address, 0) as link:
            staging.abandon(link, batch, lists)
    except HeadraceError as error:
        log.warning("spark.staging_kept query=%s batch=%d error=%s", batch.query, batch.number, error)


class BatchWriter(DataSourceArrowWriter):
    """One df.write. With txnAppId and txnVersion it happens once; without, once each time it is called."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options, self._layout = options, layout
        self._repeatable = options.version >= 0
        self._query = options.app if self._repeatable else f"once-{secrets.token_hex(8)}"
        self._number = max(0, options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, self._layout, self._query, self._number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._batch, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._batch, messages)

    @property
    def _batch(self) -> Batch:
        return Batch(
            query=self._query,
            number=self._number,
            decision=staging.decision_name(self._options.stream, self._query),
            trim=self._options.trim,
            forget_s=0 if self._repeatable else self._options.staging_ttl_s,
            replicated=self._options.replicated,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch of a streaming query, which its query's id and its number name."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options, self._layout = options, layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or batch is None:
            raise ConfigError("this Spark does not tell a task its query and batch: headrace needs Spark 4.2 or newer")
        return _write(self._options, self._layout, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's word
        query = _query_of(messages)
        if query is None:
            raise ConfigError(f"batch {batchId} came without a message of any task: nothing says whose it is")
        _commit(self._options, self._batch(query, batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query = _query_of(messages)
        if query is not None:
            _abort(self._options, self._batch(query, batchId), messages)

    def _batch(self, query: str, number: int) -> Batch:
        return Batch(
            query=query,
            number=number,
            decision=staging.decision_name(self._options.stream, query),
            trim=self._options.trim,
            strict=not self._options.accept_gap,
            replicated=self._options.replicated,
        )


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────


def begun(address: Address, stream: str, app: str, version: int, retry_ms: int = RETRY_MS) -> bool:
    """Whether a write with txnAppId and txnVersion was decided, if no later one of that writer was: the stream gets or
    has got the rows of that try, whatever another brings."""
    with PatientLink(address, retry_ms) as link:
        return version in link.call(staging.last_known(staging.decision_name(stream, app)))


def receipt(address: Address, stream: str, app: str, version: int, retry_ms: int = RETRY_MS) -> staging.Receipt | None:
    """What a write with txnAppId and txnVersion became, if it was the last one of that writer."""
    with PatientLink(address, retry_ms) as link:
        last, words = link.call(staging.last_done(staging.decision_name(stream, app)))
    return staging.read_receipt(words) if last == version and words else None
