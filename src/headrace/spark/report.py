"""What a pipeline's tables, its ledger, the dead letters and a journal say, gathered by Spark into one JSON object.

throughput   rows an hour of event time and what each batch managed
ledger       in, out, duplicates, quarantined of every batch
attempts     how often buried messages were tried; with a journal, how often any was
rescues      with a journal: how long work lay still between an owner that vanished and the next
poison       what buried and quarantined rows died of, the worst first
tables       tiers, parts of the day, merchants: whatever columns with few values there are
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace import __version__
from headrace.errors import ConfigError
from headrace.names import keys_of
from headrace.spark import NAME, register
from headrace.spark import check as look
from headrace.spark.options import Address
from headrace.spark.pipeline.batch import Outputs
from headrace.spark.pipeline.ledger import Account, Totals
from headrace.spark.pipeline.places import place_of
from headrace.spark.pipeline.run import check
from headrace.spark.pipeline.spec import Pipeline
from headrace.spark.source_options import SourceSettings

TOP: Final = 12  # of a ranking
POINTS: Final = 400  # of a plot
SHARES: Final = (0.5, 0.95, 0.99)
DIFFERS: Final = r"""b?'[^']*('|$)|b?"[^"]*("|$)|[0-9]{3,}"""  # quoted values, also cut ones, and numbers
JOURNAL_LINE: Final = "array<string>"  # at, pid, what, id, attempt

Json = dict[str, Any]


def gather(spark: SparkSession, pipeline: Pipeline, *, journal: Path | None = None) -> Json:
    """Everything the page shows. Reads, writes nothing."""
    place, folder = place_of(pipeline.folder, spark)
    outputs = Outputs(place, folder, check(pipeline))
    accounts = outputs.ledger.accounts()
    if not accounts:
        raise ConfigError(f"{folder} has no ledger yet: run the pipeline first")
    letters = _letters(spark, pipeline, outputs.address)
    notes = _notes(spark, journal) if journal else None
    return {
        "pipeline": pipeline.name,
        "headrace": __version__,
        "made_ms": int(time.time() * 1000),
        "totals": {**dataclasses.asdict(Totals.of(accounts)), "exact": Totals.of(accounts).exact},
        "ledger": [_line(one) for one in accounts],
        "throughput": _throughput(spark, pipeline, outputs),
        "columns": _columns(_table(spark, outputs, pipeline, pipeline.table_name), pipeline),
        "quarantine": _ranking(_table(spark, outputs, pipeline, "quarantine"), F.col("reason")),
        "dead_letters": _dead(letters),
        "attempts": _attempts(letters, notes),
        "rescues": _rescues(notes),
    }


def check_server(pipeline: Pipeline) -> None:
    """Raise what the server or its password would fail a report with, before Spark is started."""
    options = _letters_options(pipeline, check(pipeline))
    if options:
        look(**options)


def _line(one: Account) -> Json:
    speed = one.rows_in / one.seconds if one.seconds else 0.0
    words = ("batch", "rows_in", "out", "duplicates", "quarantined", "seconds", "finished_ms")
    return {**{word: getattr(one, word) for word in words}, "rows_per_s": round(speed, 1)}


def _table(spark: SparkSession, outputs: Outputs, pipeline: Pipeline, name: str) -> DataFrame | None:
    table = outputs.table(name, pipeline.name)
    return table.read(spark) if table.batches() else None  # None: nothing was written to it yet


def _windows(spark: SparkSession, outputs: Outputs, name: str) -> DataFrame | None:
    try:
        return spark.read.parquet(f"{outputs.folder}/tables/{name}")
    except AnalysisException:
        return None


def _rows(frame: DataFrame) -> list[Json]:
    return [row.asDict() for row in frame.collect()]


# ── the tables ───────────────────────────────────────────────────────────────────────────────────────


def _throughput(spark: SparkSession, pipeline: Pipeline, outputs: Outputs) -> list[Json]:
    """Rows of each window, over all groups: from the first aggregate, or else by the hour the entry was added."""
    if pipeline.aggregates:
        table = _windows(spark, outputs, pipeline.aggregates[0].name)
        at, rows = F.col("window_start"), F.sum("rows")
    else:
        table = _table(spark, outputs, pipeline, pipeline.table_name)
        at, rows = F.date_trunc("hour", "entry_at"), F.count("*")
    if table is None:
        return []
    found = table.groupBy(F.unix_millis(at).alias("at_ms")).agg(rows.cast("bigint").alias("rows"))
    latest = found.orderBy(F.desc("at_ms")).limit(POINTS)
    return _rows(latest.orderBy("at_ms"))


def _columns(table: DataFrame | None, pipeline: Pipeline) -> dict[str, list[Json]]:
    """Rows by value, for the columns that were added and for what windows are grouped by."""
    names = [one.name for one in pipeline.enrich]
    names += [name for one in pipeline.aggregates for name in one.by if name not in names]
    if table is None:
        return {}
    # a column that the file has since the last batch is in no row yet
    found = {name: _ranking(table, F.col(name).cast("string")) for name in names if name in table.columns}
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def _ranking(table: DataFrame | None, what: Any) -> list[Json]:
    if table is None:
        return []
    named = table.groupBy(F.coalesce(what, F.lit("(none)")).alias("what")).agg(F.count("*").alias("rows"))
    return _rows(named.orderBy(F.desc("rows"), "what").limit(TOP))


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────


def _letters(spark: SparkSession, pipeline: Pipeline, address: Address) -> DataFrame | None:
    """The dead letters of the pipeline's own streams; patterns are not followed here."""
    register(spark)
    options = _letters_options(pipeline, address)
    return spark.read.format(NAME).options(**options).load().cache() if options else None


def _letters_options(pipeline: Pipeline, address: Address) -> dict[str, str]:
    """How to read them; nothing if the source names no stream."""
    streams = [keys_of(key).stream for key in SourceSettings.of(pipeline.source, streaming=True).streams]
    return {**address.options, "table": "dead-letters", "streams": json.dumps(streams)} if streams else {}


def _dead(letters: DataFrame | None) -> Json:
    if letters is None:
        return {"count": 0, "ranking": [], "age_ms": {}}
    # without what differs from one message to the next, or it would be a ranking of ones
    name = F.concat_ws(": ", "error", F.substring(F.regexp_replace("reason", DIFFERS, "…"), 1, 80))
    waited = F.unix_millis("buried") - F.unix_millis("added")
    (row,) = letters.agg(F.count("*").alias("n"), F.percentile(waited, list(SHARES)).alias("p")).collect()
    ages = dict(zip((f"p{share * 100:g}" for share in SHARES), row["p"] or (), strict=False))
    return {"count": row["n"], "ranking": _ranking(letters, name), "age_ms": ages}


# ── attempts and rescues ─────────────────────────────────────────────────────────────────────────────


def _notes(spark: SparkSession, journal: Path) -> DataFrame:
    """A journal as the demo keeps it: one JSON list a line, [at, pid, what, id, attempt]."""
    if not journal.is_file():
        raise ConfigError(f"{journal} is no file: give the journal that the demo wrote")
    line = F.from_json("value", JOURNAL_LINE)
    lines = spark.read.text(str(journal.absolute())).select(line.alias("n")).where(F.size("n") >= 5)
    cast = lines.selectExpr(
        *("cast(n[0] as double) as at", "n[1] as pid", "n[2] as what", "n[3] as id", "cast(n[4] as int) as attempt")
    )
    return cast.cache()


def _attempts(letters: DataFrame | None, notes: DataFrame | None) -> Json:
    found: Json = {"buried": [], "all": []}
    if letters is not None:
        found["buried"] = _rows(letters.groupBy("attempts").agg(F.count("*").alias("rows")).orderBy("attempts"))
    if notes is not None:
        most = notes.where("what = 'start'").groupBy("id").agg(F.max("attempt").alias("attempts"))
        found["all"] = _rows(most.groupBy("attempts").agg(F.count("*").alias("rows")).orderBy("attempts"))
    return found


def _rescues(notes: DataFrame | None) -> Json:
    """How long a message lay still after a start without an end, until the start of its next owner."""
    if notes is None:
        return {"count": 0, "ms": []}
    last = "lag(struct(what, at, pid)) over (partition by id order by at)"
    lost = notes.selectExpr("*", f"{last} as last").where("what = 'start' and last.what = 'start' and last.pid <> pid")
    waits = lost.select(((F.col("at") - F.col("last.at")) * 1000).alias("ms")).where("ms >= 0")
    found = [round(row[0], 1) for row in waits.orderBy("ms").limit(100_000).collect()]
    step = max(1, len(found) // POINTS)
    shares = {f"p{share * 100:g}": _share(found, share) for share in SHARES}
    return {"count": len(found), "ms": found[::step], **(shares if found else {})}


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
