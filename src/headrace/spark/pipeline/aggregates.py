"""Windows over a table: the touched ones are computed anew from the table itself, and their partitions replaced.

So a late row, a replayed batch and a changed split all lead to the same figures. Windows lie together in one partition
an hour, which bounds the number of folders however short the windows are. The hours are those of UTC in every time
zone: where clocks are put back, one local hour is two.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headrace.spark.pipeline.spec import Aggregate

HOUR: Final = "hour"  # the partition column: 2026-03-02_10, in UTC
HOUR_MS: Final = 3_600_000


def window_start(how: Aggregate) -> Column:
    """Where the window of a row begins: windows follow each other without a gap, counted from 1970."""
    millis = F.floor(F.unix_millis(F.col(how.time)) / F.lit(how.window_ms)).cast("bigint") * F.lit(how.window_ms)
    return F.timestamp_millis(millis)


def windows(rows: DataFrame, how: Aggregate) -> DataFrame:
    """Count, rate and percentiles of each window and group. A pure function, of use on any table."""
    timed = rows.where(F.col(how.time).isNotNull()).withColumn("window_start", window_start(how))
    found = timed.groupBy("window_start", *how.by).agg(F.count("*").alias("rows"), *_figures(how))
    end = F.timestamp_millis(F.unix_millis("window_start") + F.lit(how.window_ms))
    return found.select(
        "window_start",
        end.alias("window_end"),
        *how.by,
        "rows",
        (F.col("rows") / F.lit(how.window_ms / 1000)).alias("rows_per_s"),
        *(name for name in found.columns if name not in ("window_start", "rows", *how.by)),
        _name(_hour(F.col("window_start"))).alias(HOUR),
    )


def _figures(how: Aggregate) -> list[Column]:
    if not how.of:
        return []
    value = F.col(how.of).cast("double")
    shares = [F.percentile(value, share).alias(f"p{share * 100:g}".replace(".", "_")) for share in how.percentiles]
    return [F.sum(how.of).alias("total"), F.min(how.of).alias("least"), F.max(how.of).alias("most"), *shares]


def _hour(at: Column) -> Column:
    """The hour of a time, counted from 1970."""
    return F.floor(F.unix_millis(at) / F.lit(HOUR_MS)).cast("bigint")


def _name(hour: Column) -> Column:
    """2026-03-02_10. From numbers alone: Spark formats times in the session's time zone."""
    day = F.floor(hour / F.lit(24)).cast("int")
    of_day = F.lpad(F.pmod(hour, F.lit(24)).cast("string"), 2, "0")
    return F.concat(F.date_from_unix_date(day).cast("string"), F.lit("_"), of_day)


def touched(rows: DataFrame, how: Aggregate) -> list[int]:
    """The hours in which windows of these rows begin, counted from 1970."""
    timed = rows.where(F.col(how.time).isNotNull())
    return sorted(row[0] for row in timed.select(_hour(window_start(how))).distinct().collect())


def refresh(table: DataFrame, path: str, how: Aggregate, hours: list[int]) -> None:
    """Compute the windows of some hours anew and replace their partitions."""
    if not hours:
        return
    # The bounds let Spark skip files whose footers say that they hold other times.
    first = F.timestamp_millis(F.lit(hours[0] * HOUR_MS))
    end = F.timestamp_millis(F.lit((hours[-1] + 1) * HOUR_MS + how.window_ms))
    rows = table.where((F.col(how.time) >= first) & (F.col(how.time) < end) & _hour(window_start(how)).isin(hours))
    found = windows(rows, how).repartition(1)  # one file an hour; coalesce would compute it all in one task
    found.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(HOUR).parquet(path)
