"""From Arrow batches to the blobs that publish.lua reads, and the rows no stream can take.

Columns become fields of the same name, as text: numbers as written, true and false, times in ISO 8601 and UTC; strings
and binary as they are. A column `stream` chooses the target. A column `fields` (map of string or binary) is the whole
entry, as the source gives it; `id` and `timestamp` beside it are the old entry's and are left out.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headrace.errors import ConfigError
from headrace.redis.letters import WIDE

BLOB_ROWS: Final = 200
BLOB_BYTES: Final = 1 << 20  # smaller blobs for larger rows: a script that takes long lets everybody wait
FIELDS_LIMIT: Final = 3_900  # of one row: Lua passes at most about 8,000 words to a command
DAY_US: Final = 86_400_000_000
YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # 0001-01-01 to 9999-12-31, from 1970
OLD_ENTRY: Final = frozenset({"id", "timestamp"})  # of the source, beside `fields`

_STRING_32: Final = struct.Struct(">BI")
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Layout:
    """What each column is for."""

    names: tuple[str, ...]  # the columns that are fields
    positions: tuple[int, ...]
    stream_at: int | None  # the column that chooses the target
    fields_at: int | None  # the column that is the whole entry


def layout_of(schema: StructType) -> Layout:
    """Say what each column is for. Raises ConfigError for a type that has no one text."""
    names = list(schema.names)
    if len(set(names)) != len(names):
        raise ConfigError(f"two columns have the same name: {', '.join(sorted(names))}; rename one")
    stream_at = names.index("stream") if "stream" in names else None
    if stream_at is not None and not isinstance(schema["stream"].dataType, StringType):
        raise ConfigError("the column `stream` chooses the target and must be a string: rename it if it is a field")
    whole = schema["fields"].dataType if "fields" in names else None
    if isinstance(whole, MapType):
        _check_map(whole, names)
        return Layout((), (), stream_at, names.index("fields"))
    positions = tuple(at for at in range(len(names)) if at != stream_at)
    for at in positions:
        _check_type(names[at], schema[at].dataType)
    if not 0 < len(positions) <= FIELDS_LIMIT:
        raise ConfigError(f"{len(positions)} columns are to be fields: give 1 to {FIELDS_LIMIT:,}")
    return Layout(tuple(names[at] for at in positions), positions, stream_at, None)


def _check_map(kind: MapType, names: Sequence[str]) -> None:
    if not isinstance(kind.keyType, StringType) or not isinstance(kind.valueType, (StringType, BinaryType)):
        raise ConfigError("the column `fields` must be a map of string to string or binary")
    others = set(names) - {"stream", "fields"} - OLD_ENTRY
    if others:
        raise ConfigError(f"beside the column `fields` stand {', '.join(sorted(others))}: put them into the map")


_TEXT_TYPES: Final = (
    *(StringType, BinaryType, BooleanType, IntegralType, FloatType, DoubleType, DecimalType, DateType),
    *(TimestampType, TimestampNTZType),
)

_NESTED_TYPES: Final = (ArrayType, MapType, StructType, VariantType)  # what to_json takes


def _check_type(name: str, kind: DataType) -> None:
    if not isinstance(kind, _TEXT_TYPES):
        step = f"to_json({name})" if isinstance(kind, _NESTED_TYPES) else f"string({name})"
        raise ConfigError(f"column {name!r} is a {kind.simpleString()}, which has no one text: write {step}")


# ── values ───────────────────────────────────────────────────────────────────────────────────────────


def _words(column: pa.Array, empty: bool) -> list[Any]:
    """The values of a column as msgpack shall write them."""
    values = texts(column, empty=empty)
    return [_word(value) for value in values] if _has_bytes(values) else values


def texts(column: pa.Array, *, empty: bool = False) -> list[Any]:
    """The values of a column as text or bytes; None for null, or "" with ``empty``."""
    kind = column.type
    if pa.types.is_float64(kind):
        found: list[Any] = [None if value is None else repr(value) for value in column.to_pylist()]
        return ["" if value is None else value for value in found] if empty else found
    if pa.types.is_timestamp(kind):
        column = _times(column)
    elif pa.types.is_decimal(kind):
        column = _decimals(column)
    elif not _is_text(kind):
        column = column.cast(pa.string())
    if empty and column.null_count:
        column = pc.fill_null(column, "" if pa.types.is_string(column.type) else b"")
    try:
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    except (UnicodeDecodeError, pa.ArrowException):  # Spark's strings need not be UTF-8
        values = column.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return values


def _times(column: pa.Array) -> pa.Array:
    """ISO 8601. A column with a zone carries that of the session, which is nobody's business here: UTC."""
    zone = "UTC" if column.type.tz else None
    return pc.strftime(column.cast(pa.timestamp("us", zone)), "%Y-%m-%dT%H:%M:%S" + ("Z" if zone else ""))


def within_years(column: pa.Array) -> pa.Array | None:
    """Which times of a column are in the years 1 to 9999, or null; None: all of them."""
    if pa.types.is_date32(column.type):
        numbers, (first, last) = column.cast(pa.int32()), (at // DAY_US for at in YEARS_US)
    elif pa.types.is_timestamp(column.type):
        numbers, (first, last) = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), YEARS_US
    else:
        return None
    good = pc.fill_null(pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last)), True)
    return None if pc.all(good).as_py() in (True, None) else good


def _decimals(column: pa.Array) -> pa.Array:
    """As Spark shows them. Arrow writes those near zero with an exponent, as 0E-18."""
    shown = column.cast(pa.string())
    if not pc.any(pc.match_substring(shown, "E")).as_py():
        return shown
    return pa.array([None if value is None else format(value, "f") for value in column.to_pylist()], pa.string())


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _has_bytes(values: list[Any]) -> bool:
    return isinstance(next((value for value in values if value is not None), None), bytes)


def _raw(value: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the server's msgpack knows no binary, and its strings hold any bytes."""
    return msgspec.Raw(_STRING_32.pack(0xDB, len(value)) + value)


def _word(value: Any) -> Any:
    return _raw(value) if isinstance(value, bytes) else value


def _entries(column: pa.Array, empty: bool) -> list[list[Any]]:
    """The rows of a map column as names and values in turn. A null map is an entry without fields."""
    rows: list[list[Any]] = []
    for entry in _pairs(column):
        row: list[Any] = []
        for name, value in entry or ():
            if value is not None or empty:
                row += (_word(name), "" if value is None else _word(value))
        rows.append(row)
    return rows


def _pairs(column: pa.Array) -> list[list[tuple[Any, Any]] | None]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return column.cast(pa.map_(pa.binary(), pa.binary())).to_pylist()  # type: ignore[no-any-return]


# ── blobs ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Chunk:
    """A blob and how many rows it has."""

    blob: bytes
    rows: int


class Rows:
    """Reads batches by a layout. `bad` collects (row as a flat list, target, why) until they are taken."""

    def __init__(self, layout: Layout, *, nulls_empty: bool) -> None:
        self.layout = layout
        self._empty = nulls_empty
        self.bad: list[tuple[list[Any], str, str]] = []

    def chunks(self, target: str, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """The blobs of a part. Rows that no stream can take are put aside in `bad`."""
        if batch.num_rows == 0:
            return
        at_once = max(1, min(BLOB_ROWS, BLOB_BYTES * batch.num_rows // max(1, batch.nbytes)))
        if self.layout.fields_at is not None:
            rows = self._good(target, _entries(batch.column(self.layout.fields_at), self._empty))
            for start in range(0, len(rows), at_once):
                part = rows[start : start + at_once]
                yield Chunk(_encode([[], len(part), *part]), len(part))
            return
        batch = self._with_fields(target, self._within_years(target, batch))
        columns = [_words(batch.column(at), self._empty) for at in self.layout.positions]
        for start in range(0, batch.num_rows, at_once):
            parts = [column[start : start + at_once] for column in columns]
            yield Chunk(_encode([self.layout.names, len(parts[0]), *parts]), len(parts[0]))

    def refuse(self, target: str, batch: pa.RecordBatch, why: str) -> None:
        """Put all rows of a part aside."""
        self.bad += [(row, target, why) for row in self._flat(batch)]

    # ── inside ──

    def _flat(self, batch: pa.RecordBatch) -> list[list[Any]]:
        if self.layout.fields_at is not None:
            return _entries(batch.column(self.layout.fields_at), self._empty)
        columns = [_words(batch.column(at), self._empty) for at in self.layout.positions]
        return [
            [
                word
                for name, value in zip(self.layout.names, row, strict=True)
                if value is not None
                for word in (name, value)
            ]
            for row in zip(*columns, strict=True)
        ]

    def _good(self, target: str, rows: list[list[Any]]) -> list[list[Any]]:
        good = []
        for row in rows:
            if not row:
                self.bad.append((row, target, "the row has no fields: all its values are null"))
            elif len(row) > 2 * FIELDS_LIMIT:
                self.bad.append((row, target, f"the row has {len(row) // 2:,} fields: at most {FIELDS_LIMIT:,} fit"))
            else:
                good.append(row)
        return good

    def _within_years(self, target: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows that have a time of a year with five digits: Arrow writes another year for it."""
        found = {at: good for at in self.layout.positions if (good := within_years(batch.column(at))) is not None}
        if not found:
            return batch
        good = reduce(pc.and_, found.values())
        bad = batch.filter(pc.invert(good))
        for at, fits in found.items():  # a letter without it, or it would tell the wrong one
            kept = pc.if_else(fits.filter(pc.invert(good)), bad.column(at), None)
            bad = bad.set_column(at, bad.schema.field(at), kept)
        names = " or ".join(batch.schema.names[at] for at in found)
        self.refuse(target, bad, f"{names} is not in the years 1 to 9999")
        return batch.filter(good)

    def _with_fields(self, target: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the rows of which nothing would be left."""
        columns = [batch.column(at) for at in self.layout.positions]
        if self._empty or any(column.null_count == 0 for column in columns):
            return batch
        some = np.zeros(batch.num_rows, dtype=bool)
        for column in columns:
            some |= column.is_valid().to_numpy(zero_copy_only=False)
        if some.all():
            return batch
        self.bad += [([], target, "the row has no fields: all its values are null")] * int((~some).sum())
        return batch.filter(pa.array(some))


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────


def letter(row: Sequence[Any], target: str, why: str) -> list[Any]:
    """A dead letter as bury.lua writes it: the row's fields, how many words they are, and why it is here."""
    original = list(row)
    if len(original) > WIDE:
        words = [word.encode() if isinstance(word, str) else bytes(word)[_STRING_32.size :] for word in original]
        original = ["_packed", _raw(b"".join(b"%d:%s" % (len(word), word) for word in words))]
    about = ("_stream", target, "_error", "SinkRefused", "_reason", why, "_last_ms", str(int(time.time() * 1000)))
    return [*original, "_n", str(len(row)), *about]


def letters_chunk(bad: Sequence[tuple[list[Any], str, str]]) -> Chunk:
    """The blob of so many dead letters."""
    return Chunk(_encode([[], len(bad), *(letter(*one) for one in bad)]), len(bad))
