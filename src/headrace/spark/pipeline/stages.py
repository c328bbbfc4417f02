"""The stages of a pipeline: pure functions from DataFrame to DataFrame, each of use on its own.

    entries of the source ─▶ decode ─▶ validate ─▶ deduplicate ─▶ enrich ─▶ route

decode() gives every row five columns more, and the later stages read and write them:

    entry_stream, entry_id, entry_at   where the row came from
    _status                            out, duplicate or quarantined: exactly one
    _reason                            why it is quarantined; null if it is not
    _raw                               the entry's fields, as they came; forget_raw() keeps those of quarantined rows

No stage adds, drops or reorders rows, so in = out + duplicates + quarantined whatever happens. No stage has a
watermark: a late row is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own examples call it

from headrace.spark.options import Address
from headrace.spark.pipeline.claims import claimed
from headrace.spark.pipeline.naming import ENTRY, TIMES
from headrace.spark.pipeline.spec import Decode, Deduplicate, Enrich, Route, Rule
from headrace.spark.sink_rows import DAY_US, YEARS_US

OUT: Final = "out"
DUPLICATE: Final = "duplicate"
QUARANTINED: Final = "quarantined"
MARKS: Final = ("_status", "_reason", "_raw")
STRICT: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}  # what other readers call JSON
PARTS_OF_DAY: Final = ((6, "night"), (12, "morning"), (18, "afternoon"), (24, "evening"))


# ── decode ───────────────────────────────────────────────────────────────────────────────────────────


def decode(entries: DataFrame, how: Decode) -> DataFrame:
    """Turn entries (stream, id, timestamp, fields) into rows with the columns of `how`.

    What cannot be decoded is quarantined with the reason; in the mode FAILFAST it fails the batch.
    """
    named = entries.select(
        F.col("stream").alias("entry_stream"),
        F.col("id").alias("entry_id"),
        F.col("timestamp").alias("entry_at"),
        F.col("fields").alias("_raw"),
    )
    rows = _from_json(named, how) if how.format == "json" else _from_fields(named, how)
    # Times further away overflow what is computed with them later, and would fail their batch on every repeat.
    dated = {name: within_years(name, _kind(kind)) for name, kind in how.columns.items() if _kind(kind) in TIMES}
    strange = [F.when(~within, F.lit(f"{name} is not in the years 1 to 9999")) for name, within in dated.items()]
    missing = [F.when(F.col(name).isNull(), F.lit(f"{name} is missing")) for name in how.required]
    reason = F.coalesce(F.col("_reason"), *strange, *missing)
    if how.mode == "FAILFAST":
        said = F.concat(F.lit("cannot decode "), F.col("entry_stream"), F.lit(" "), F.col("entry_id"), F.lit(": "))
        reason = F.when(reason.isNotNull(), F.raise_error(F.concat(said, reason))).otherwise(F.lit(None))
    bad = F.col("_reason").isNotNull()
    kept = {name: F.when(within, F.col(name)) for name, within in dated.items()}
    judged = rows.withColumns({"_reason": reason.cast("string"), **kept})
    judged = judged.withColumn("_status", F.when(bad, QUARANTINED).otherwise(OUT))
    if how.mode == "DROPMALFORMED":
        judged = judged.withColumn("_raw", F.when(~bad, F.col("_raw")))
    return judged.select(*ENTRY, *how.columns, *MARKS)


def _from_json(rows: DataFrame, how: Decode) -> DataFrame:
    schema = ", ".join([*(f"`{name}` {kind}" for name, kind in how.columns.items()), "_corrupt string"])
    payload = F.col("_raw")[how.field]
    text = F.try_validate_utf8(payload.cast("string"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", **STRICT}
    parsed = rows.withColumn("_text", text).withColumn("_parsed", F.from_json("_text", schema, options))
    reason = (
        F.when(payload.isNull(), F.lit(f"the entry has no field {how.field}"))
        .when(F.col("_text").isNull(), F.lit("the payload is not UTF-8"))
        .when(F.col("_parsed").isNull() | F.col("_parsed._corrupt").isNotNull(), F.lit("the payload is no such JSON"))
        .when(~_alone(F.col("_text")), F.lit("the payload is more than one JSON document"))
    )
    return parsed.select(
        *ENTRY, "_raw", *(F.col(f"_parsed.{name}").alias(name) for name in how.columns), reason.alias("_reason")
    )


def _alone(text: Column) -> Column:
    """Whether nothing stands behind the JSON in a text: from_json reads the first document and passes over the rest."""
    return F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False))


def _from_fields(rows: DataFrame, how: Decode) -> DataFrame:
    texts = {name: F.try_validate_utf8(F.col("_raw")[name].cast("string")) for name in how.columns}
    values = {name: _cast(texts[name], kind) for name, kind in how.columns.items()}
    wrong = [
        F.when(F.col("_raw")[name].isNotNull() & values[name].isNull(), F.lit(f"{name} is no {kind}"))
        for name, kind in how.columns.items()
    ]
    return rows.select(
        *ENTRY, "_raw", *(value.alias(name) for name, value in values.items()), F.coalesce(*wrong).alias("_reason")
    )


def _cast(text: Column, kind: str) -> Column:
    if _kind(kind).startswith("array"):
        return F.when(_alone(text), F.from_json(text, kind, STRICT))
    return text if _kind(kind) == "string" else text.try_cast(kind)


def _kind(told: str) -> str:
    return told.strip().lower()


def within_years(name: str, kind: str) -> Column:
    """Whether a time is in the years 1 to 9999, as most programs know them; null for null."""
    if kind == "date":
        return F.unix_date(name).between(*(at // DAY_US for at in YEARS_US))
    return F.unix_micros(name).between(*YEARS_US)


def forget_raw(rows: DataFrame) -> DataFrame:
    """Drop the raw entry where nobody will ask for it, before rows are kept or sent about."""
    return rows.withColumn("_raw", F.when(F.col("_status") == QUARANTINED, F.col("_raw")))


# ── validate ─────────────────────────────────────────────────────────────────────────────────────────


def validate(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Quarantine the rows that break a rule; the reason names every rule broken. Null breaks a rule."""
    if not rules:
        return rows
    broken = [F.when(~F.coalesce(F.expr(one.rule).cast("boolean"), F.lit(False)), F.lit(one.name)) for one in rules]
    names = F.concat_ws(", ", *broken)
    good = F.col("_status") == OUT
    reason = F.when(good & (names != ""), F.concat(F.lit("breaks "), names)).otherwise(F.col("_reason"))
    return rows.withColumn("_reason", reason).withColumn(
        "_status", F.when(good & F.col("_reason").isNotNull(), QUARANTINED).otherwise(F.col("_status"))
    )


# ── deduplicate ──────────────────────────────────────────────────────────────────────────────────────


def deduplicate(rows: DataFrame, how: Deduplicate, address: Address, space: str) -> DataFrame:
    """Mark all rows of a key but one as duplicates: the one that claimed the key in Redis, on every replay the same.

    `space` keeps the claims of one pipeline apart from another's. A row without a key is quarantined. With by = "spark"
    the rows of one batch are compared by a shuffle, and nothing is remembered from batch to batch.
    """
    keyed = rows.withColumn("_key", F.when(F.col("_status") == OUT, F.expr(how.key).cast("string")))
    none = (F.col("_status") == OUT) & F.col("_key").isNull()
    keyed = keyed.withColumn("_reason", F.when(none, F.lit("the key is null")).otherwise(F.col("_reason"))).withColumn(
        "_status", F.when(none, QUARANTINED).otherwise(F.col("_status"))
    )
    keyed = forget_raw(keyed)
    if how.by == "redis":
        return claimed(keyed, address, space, how.window_ms, out=OUT, duplicate=DUPLICATE)
    return _first_of_batch(keyed)


def _first_of_batch(keyed: DataFrame) -> DataFrame:
    order = Window.partitionBy("_status", "_key").orderBy("entry_stream", "entry_at", "entry_id")
    lost = (F.col("_status") == OUT) & (F.col("_rank") > 1)
    winner = F.first(F.concat("entry_stream", F.lit("/"), "entry_id")).over(order)
    ranked = keyed.withColumn("_rank", F.row_number().over(order)).withColumn("_winner", winner)
    return ranked.withColumn("_winner", F.when(lost, F.col("_winner"))).withColumn(
        "_status", F.when(lost, DUPLICATE).otherwise(F.col("_status"))
    ).drop("_rank")  # fmt: skip


# ── enrich ───────────────────────────────────────────────────────────────────────────────────────────


def enrich(rows: DataFrame, columns: Sequence[Enrich]) -> DataFrame:
    """Add columns, one after the other: a later one may use an earlier one."""
    return reduce(lambda frame, one: frame.withColumn(one.name, _enriched(one)), columns, rows)


def _enriched(one: Enrich) -> Column:
    if one.tier_of:
        return tier(F.col(one.tier_of), one.edges, one.labels)
    if one.part_of_day_of:
        return part_of_day(F.col(one.part_of_day_of))
    return F.expr(one.expression)


def tier(value: Column, edges: Sequence[float], labels: Sequence[str] = ()) -> Column:
    """Name the range a number falls into: below the first edge, from one edge to the next, from the last one on."""
    names = list(labels) or [f"below {edges[0]:g}", *(f"from {edge:g}" for edge in edges)]
    found = F.when(value.isNull(), F.lit(None).cast("string"))
    for edge, name in zip(edges, names, strict=False):
        found = found.when(value < F.lit(edge), F.lit(name))
    return found.otherwise(F.lit(names[-1]))


def part_of_day(at: Column) -> Column:
    """night to 6, morning to 12, afternoon to 18, evening to 24 o'clock, in the session's time zone."""
    found = F.when(at.isNull(), F.lit(None).cast("string"))
    for until, name in PARTS_OF_DAY:
        found = found.when(F.hour(at) < until, F.lit(name))
    return found


# ── route ────────────────────────────────────────────────────────────────────────────────────────────


def goes(one: Route) -> Column:
    """Whether a row goes this way: only what is out does, and null means no."""
    return (F.col("_status") == OUT) & F.coalesce(F.expr(one.when).cast("boolean"), F.lit(False))


def route(rows: DataFrame, one: Route) -> DataFrame:
    """The rows that go to a stream, with the columns that were asked for."""
    columns = list(one.columns) or [name for name in rows.columns if not name.startswith("_")]
    return rows.where(goes(one)).select(*columns)


def with_status(rows: DataFrame, status: str) -> DataFrame:
    """The rows of one status."""
    return rows.where(F.col("_status") == status)
