"""Windows over a table: the touched ones are computed anew from the table itself, and their partitions replaced.

So a late row, a replayed batch and a changed split all lead to the same figures. Windows lie together in one partition
an hour, which bounds the number of folders however short the windows are. The hours are those of UTC in every time
zone: where clocks are put back, one local hour is two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headrace.spark.pipeline.spans import Run, runs
from headrace.spark.pipeline.spec import Aggregate
from headrace.spark.pipeline.stages import within_years
from headrace.spark.pipeline.tables import Batch

HOUR: Final = "hour"  # the partition column: 2026-03-02_10, in UTC
HOUR_MS: Final = 3_600_000


def _millis(rows: DataFrame, how: Aggregate) -> Column:
    """The time of a row. Null where there is none, or one so far away that nothing can be computed with it."""
    kind = rows.schema[how.time].dataType.simpleString()
    return F.when(within_years(how.time, kind), F.unix_millis(F.col(how.time).cast("timestamp")))


def _start_ms(rows: DataFrame, how: Aggregate) -> Column:
    """Where the window of a row begins: windows follow each other without a gap, counted from 1970."""
    return F.floor(_millis(rows, how) / F.lit(how.window_ms)).cast("bigint") * F.lit(how.window_ms)


def windows(rows: DataFrame, how: Aggregate) -> DataFrame:
    """Count, rate and percentiles of each window and group. A pure function, of use on any table."""
    start = _start_ms(rows, how)
    timed = rows.where(start.isNotNull()).withColumn("window_start", F.timestamp_millis(start))
    found = timed.groupBy("window_start", *how.by).agg(F.count("*").alias("rows"), *_figures(how))
    end = F.timestamp_millis(F.unix_millis("window_start") + F.lit(how.window_ms))
    return found.select(
        "window_start",
        end.alias("window_end"),
        *how.by,
        "rows",
        (F.col("rows") / F.lit(how.window_ms / 1000)).alias("rows_per_s"),
        *(name for name in found.columns if name not in ("window_start", "rows", *how.by)),
        _name(_hour(F.unix_millis("window_start"))).alias(HOUR),
    )


def _figures(how: Aggregate) -> list[Column]:
    if not how.of:
        return []
    value = F.col(how.of).cast("double")
    named = zip(how.percentiles, how.share_names, strict=True)
    shares = [F.percentile(value, share).alias(name) for share, name in named]
    return [F.try_sum(how.of).alias("total"), F.min(how.of).alias("least"), F.max(how.of).alias("most"), *shares]


def _hour(millis: Column) -> Column:
    """The hour of a time, counted from 1970."""
    return F.floor(millis / F.lit(HOUR_MS)).cast("bigint")


def _name(hour: Column) -> Column:
    """2026-03-02_10. From numbers alone: Spark formats times in the session's time zone."""
    day = F.floor(hour / F.lit(24)).cast("int")
    of_day = F.lpad(F.pmod(hour, F.lit(24)).cast("string"), 2, "0")
    return F.concat(F.date_from_unix_date(day).cast("string"), F.lit("_"), of_day)


@dataclass(frozen=True, slots=True)
class Touched:
    """Hours, counted from 1970."""

    windows: list[int]  # in which windows of the rows begin
    rows: list[int]  # in which the rows themselves are


def touched(rows: DataFrame, how: Aggregate) -> Touched:
    """Which hours some rows touch."""
    pairs = rows.select(_hour(_start_ms(rows, how)), _hour(_millis(rows, how))).distinct().collect()
    found = [(start, at) for start, at in pairs if at is not None]
    return Touched(sorted({start for start, _ in found}), sorted({at for _, at in found}))


def hours_by_batch(table: DataFrame, how: Aggregate) -> dict[Batch, list[int]]:
    """The hours that each batch of a table holds."""
    found: dict[Batch, list[int]] = {}
    for query, batch, hour in table.select("query", "batch", _hour(_millis(table, how))).distinct().collect():
        found.setdefault((query, batch), []).extend([] if hour is None else [hour])
    return found


def needed(how: Aggregate, hours: list[int]) -> list[Run]:
    """The hours in which rows may be whose windows begin in these hours."""
    more = -(-how.window_ms // HOUR_MS)
    return [(first, last + more) for first, last in runs(hours)]


def refreshed(table: DataFrame, how: Aggregate, hours: list[int]) -> DataFrame:
    """The windows of some hours, computed anew, in one file an hour."""
    # The bounds let Spark skip files whose footers say that they hold other times.
    first = F.timestamp_millis(F.lit(hours[0] * HOUR_MS))
    end = F.timestamp_millis(F.lit((hours[-1] + 1) * HOUR_MS + how.window_ms))
    kind = table.schema[how.time].dataType  # a time may be a date
    bounds = (F.col(how.time) >= first.cast(kind)) & (F.col(how.time) <= end.cast(kind))
    rows = table.where(bounds & _hour(_start_ms(table, how)).isin(hours))
    return windows(rows, how).repartition(1)  # coalesce would compute it all in one task
