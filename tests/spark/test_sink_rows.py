"""Rows as the sink writes them, from Arrow alone: texts that are no UTF-8, times that no text can tell. No Spark."""

from __future__ import annotations

import datetime as dt

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import DateType, MapType, StringType, StructType, TimestampType

from headrace.errors import ConfigError
from headrace.spark.sink_options import read_options
from headrace.spark.sink_rows import Rows, layout_of

FAR_US = 1_009_843_200_000_000_000  # of the year 33970
FAR_DAYS = 20_000_000


def untexted(*values: bytes) -> pa.Array:
    """Strings as Spark may hand them over: any bytes."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def written(rows: Rows, batch: pa.RecordBatch) -> list[bytes]:
    return [chunk.blob for chunk in rows.chunks("s", batch)]


def test_strings_that_are_no_text_are_written_as_they_are() -> None:
    rows = Rows(layout_of(StructType().add("a", StringType())), nulls_empty=False)
    (blob,) = written(rows, pa.record_batch({"a": untexted(b"\xff\xfe", b"x")}))
    assert b"\xff\xfe" in blob
    whole = StructType().add("fields", MapType(StringType(), StringType()))
    entries = pa.MapArray.from_arrays([0, 2], untexted(b"\xfd", b"n"), untexted(b"\xff\xfe", b"x"))
    (blob,) = written(Rows(layout_of(whole), nulls_empty=False), pa.record_batch({"fields": entries}))
    assert b"\xfd" in blob
    assert b"\xff\xfe" in blob


def test_a_row_with_a_time_that_no_text_tells_is_put_aside() -> None:
    schema = StructType().add("at", TimestampType()).add("day", DateType()).add("n", StringType())
    rows = Rows(layout_of(schema), nulls_empty=False)
    times = pa.array([0, FAR_US, None, -FAR_US, 0], pa.int64()).cast(pa.timestamp("us", "Europe/Zurich"))
    days = pa.array([0, 0, 1, FAR_DAYS, FAR_DAYS], pa.int32()).cast(pa.date32())
    batch = pa.record_batch({"at": times, "day": days, "n": pa.array(["a", "b", "c", "d", "e"])})
    (blob,) = written(rows, batch)
    names, count, *columns = msgspec.msgpack.decode(blob)
    assert (names, count) == (["at", "day", "n"], 2)
    assert columns == [["1970-01-01T00:00:00.000000Z", None], ["1970-01-01", "1970-01-02"], ["a", "c"]]
    why = "at or day is not in the years 1 to 9999"
    assert rows.bad == [
        (["day", "1970-01-01", "n", "b"], "s", why),
        (["n", "d"], "s", why),
        (["at", "1970-01-01T00:00:00.000000Z", "n", "e"], "s", why),
    ]


def test_the_first_and_the_last_moment_of_the_years_with_four_digits_are_written() -> None:
    rows = Rows(layout_of(StructType().add("at", TimestampType())), nulls_empty=False)
    edges = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)]
    (blob,) = written(rows, pa.record_batch({"at": pa.array(edges, pa.timestamp("us", "UTC"))}))
    assert msgspec.msgpack.decode(blob)[2] == ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"]
    assert rows.bad == []


def test_dead_letters_do_not_go_among_the_good_rows() -> None:
    with pytest.raises(ConfigError, match="the stream of the good rows"):
        read_options({"url": "redis://localhost", "stream": "orders", "deadLetters": "orders"})
