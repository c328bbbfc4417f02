"""Which stream each row goes to: one for all, the one its column `stream` names, or the partition of its key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.partitions import Partitions
from headrace.spark.sink_options import SinkOptions
from headrace.spark.sink_rows import Layout, texts

Part = tuple[str, pa.RecordBatch]
"""A target, and its rows in their order. "": nobody named a target."""


class Targets(Protocol):
    def split(self, batch: pa.RecordBatch) -> Iterator[Part]: ...


def targets_of(layout: Layout, options: SinkOptions) -> Targets:
    """The option wins over the column, as with Kafka: rows of the source carry the stream they came from, and a copy
    must not go back there."""
    if options.partitions:
        return ByPartition(Partitions(options.stream, options.partitions), layout, options.partition_key)
    if options.stream or layout.stream_at is None:
        return OneTarget(options.stream)
    return ByColumn(layout.stream_at)


class OneTarget:
    def __init__(self, stream: str) -> None:
        self._stream = stream

    def split(self, batch: pa.RecordBatch) -> Iterator[Part]:
        yield self._stream, batch


class ByColumn:
    def __init__(self, at: int) -> None:
        self._at = at

    def split(self, batch: pa.RecordBatch) -> Iterator[Part]:
        coded = pc.fill_null(batch.column(self._at).cast(pa.string()), "").dictionary_encode()
        yield from _sorted_out(batch, coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist())


class ByPartition:
    """Rows of one key go to one partition, the one that every other program computes. Rows without a key take turns."""

    def __init__(self, partitions: Partitions, layout: Layout, key: str) -> None:
        self._names = partitions.names
        self._turn = itertools.cycle(range(partitions.count))
        self._layout = layout
        self._key = key

    def split(self, batch: pa.RecordBatch) -> Iterator[Part]:
        count = len(self._names)
        keys = self._keys(batch) if self._key else [None] * batch.num_rows
        codes = [next(self._turn) if key is None else crc32(key) % count for key in keys]
        yield from _sorted_out(batch, np.array(codes, np.int64), self._names)

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        layout = self._layout
        if layout.fields_at is not None:
            found = [dict(entry or ()).get(self._key) for entry in batch.column(layout.fields_at).to_pylist()]
        else:
            found = texts(batch.column(layout.positions[layout.names.index(self._key)]))
        return [value.encode() if isinstance(value, str) else value for value in found]


def _sorted_out(batch: pa.RecordBatch, codes: npt.NDArray[Any], names: Sequence[str]) -> Iterator[Part]:
    """The parts of a batch by the number of their target."""
    counts = np.bincount(codes, minlength=len(names)).tolist()
    if batch.num_rows in counts:
        yield names[counts.index(batch.num_rows)], batch
        return
    ordered = batch.take(pa.array(np.argsort(codes, kind="stable")))
    start = 0
    for name, count in zip(names, counts, strict=True):
        if count:
            yield name, ordered.slice(start, count)
            start += count
