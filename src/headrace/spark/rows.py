"""From entries as hiredis gives them to Arrow batches: whole columns at a time, no loop over rows where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.schema import Layout

MS_DIGITS: Final = 13  # of an id made by a clock between 2001 and 2286
MICROSECONDS: Final = 1000
LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999; an id may be larger than any time, and is then null

Segment = tuple[str, list[Any]]
"""A stream, and some of its entries."""


class Columns:
    """Makes record batches of one layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.schema = layout.arrow

    def batch(self, segments: Sequence[Segment]) -> pa.RecordBatch:
        """One batch of the entries of one or more streams."""
        entries = segments[0][1] if len(segments) == 1 else [entry for _, some in segments for entry in some]
        table = Entries(entries)
        arrays = []
        for at, own in enumerate(self.layout.own):
            kind = self.schema.field(at).type
            if own is None:
                arrays.append(table.field(self.layout.fields[at], text=self.layout.text[at]))
            elif own == "stream":
                arrays.append(_stream_column(segments))
            elif own == "id":
                arrays.append(table.ids)
            elif own == "timestamp":
                arrays.append(timestamps(table.ids).cast(kind))
            else:
                arrays.append(table.map(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class Entries:
    """Entries taken apart: ids, and names and values of all of them in two flat lists."""

    def __init__(self, entries: list[Any]) -> None:
        self.count = len(entries)
        self.ids = pa.array([entry[0] for entry in entries], pa.string())
        self._pairs = [entry[1] for entry in entries]
        self._widths = {len(pairs) for pairs in self._pairs}
        flat = list(chain.from_iterable(self._pairs))
        self.names: list[bytes] = flat[::2]
        self.values: list[bytes] = flat[1::2]
        self.same = self._same_names()

    def _same_names(self) -> list[bytes] | None:
        """The names of every entry in order, if they are the same throughout. Compared in C, column by column."""
        if len(self._widths) != 1:
            return None
        width = len(self._pairs[0]) // 2
        names = self.names[:width]
        if all(self.names[at::width].count(name) == self.count for at, name in enumerate(names)):
            return names
        return None

    def map(self, kind: pa.DataType) -> pa.Array:
        """Names and values as a map. Repeated names are kept, as the stream has them."""
        if self.same is not None:
            width = len(self.same)
            offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(width)
            names = as_text(self.same).take(pa.array(np.tile(np.arange(width), self.count)))
        else:
            lengths = np.fromiter((len(pairs) // 2 for pairs in self._pairs), np.int32, self.count)
            offsets = np.concatenate(([np.int32(0)], np.cumsum(lengths, dtype=np.int32)))
            names = as_text(self.names)
        return pa.MapArray.from_arrays(pa.array(offsets), names, pa.array(self.values, pa.binary()), type=kind)

    def field(self, name: bytes, *, text: bool) -> pa.Array:
        """The values of one field, null where an entry has none. Of repeated names the first counts."""
        if self.same is not None:
            if name not in self.same:
                return pa.nulls(self.count, pa.string() if text else pa.binary())
            found: list[bytes | None] = [*self.values[self.same.index(name) :: len(self.same)]]
        else:
            found = [_value_of(pairs, name) for pairs in self._pairs]
        return as_text(found) if text else pa.array(found, pa.binary())


def _value_of(pairs: list[bytes], name: bytes) -> bytes | None:
    names = pairs[::2]
    return pairs[2 * names.index(name) + 1] if name in names else None


def as_text(values: Sequence[bytes | None]) -> pa.Array:
    """Bytes as strings. What is not UTF-8 gets replacement characters: one such value must not stop a query."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values], pa.string())


def timestamps(ids: pa.Array) -> pa.Array:
    """The time inside ids, in µs. Ids of a clock all have 13 digits before their dash; any other are split."""
    dashes = pc.find_substring(ids, "-")
    if pc.all(pc.equal(dashes, MS_DIGITS), min_count=0).as_py():
        ms = pc.utf8_slice_codeunits(ids, 0, MS_DIGITS).cast(pa.int64())
        return pc.multiply(ms, MICROSECONDS)
    numbers = [int(id_.partition("-")[0]) for id_ in ids.to_pylist()]
    return pa.array([number * MICROSECONDS if number <= LAST_MS else None for number in numbers], pa.int64())


def _stream_column(segments: Sequence[Segment]) -> pa.Array:
    keys = pa.array([key for key, _ in segments], pa.string())
    counts = [len(entries) for _, entries in segments]
    return keys.take(pa.array(np.repeat(np.arange(len(segments)), counts)))
