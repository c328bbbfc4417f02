"""One batch of a pipeline, from entries to tables, streams, windows and the ledger.

Everything here may be done twice: tables replace a batch, the sink knows its version, windows are computed anew, and
the ledger's file of the batch is replaced. So it does not matter where a driver dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import HeadraceError
from headrace.spark import NAME
from headrace.spark.options import Address
from headrace.spark.pipeline import quarantine, stages
from headrace.spark.pipeline.ledger import Account, Ledger
from headrace.spark.pipeline.naming import ENTRY, RAW_ROUTE
from headrace.spark.pipeline.places import Place
from headrace.spark.pipeline.spec import Pipeline, Route
from headrace.spark.pipeline.tables import Table
from headrace.spark.pipeline.windows import Windows
from headrace.spark.sink import begun, receipt

ANSI: Final = "spark.sql.ansi.enabled"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a pipeline writes."""

    place: Place
    folder: str
    address: Address
    sink: str = NAME  # the data source that writes streams

    def table(self, name: str, pipeline: str) -> Table:
        return Table(self.place, f"{self.folder}/tables/{name}", pipeline)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.place, f"{self.folder}/ledger")

    @property
    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint"


def judged(entries: DataFrame, pipeline: Pipeline, address: Address) -> DataFrame:
    """Every row of a batch with its one status: decoded, validated, deduplicated."""
    rows = stages.validate(stages.decode(entries, pipeline.decode), pipeline.validate)
    if pipeline.deduplicate is not None:
        return stages.deduplicate(rows, pipeline.deduplicate, address, pipeline.name)
    nothing = F.lit(None).cast("string")
    return stages.forget_raw(rows).withColumn("_key", nothing).withColumn("_winner", nothing)


@dataclass(frozen=True, slots=True)
class Expected:
    """How many rows were read, and how many must arrive where. Routes have names of their own, whatever they are."""

    rows_in: int
    tables: dict[str, int]  # out, duplicates, quarantined
    routes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A table and the rows of a batch for it."""

    table: Table
    rows: DataFrame


@contextmanager
def forgiving(session: SparkSession) -> Iterator[None]:
    """What cannot be computed is null here, and breaks a rule. In Spark's ANSI mode one row that divides by zero would
    fail its batch on every repeat. Set around each batch: the session is Spark's own copy, here and on Connect."""
    before = session.conf.get(ANSI)
    session.conf.set(ANSI, "false")
    try:
        yield
    finally:
        session.conf.set(ANSI, str(before))


class BatchRun:
    """One batch of one query."""

    def __init__(self, pipeline: Pipeline, outputs: Outputs, query: str, batch: int, *, adopt: bool = False) -> None:
        self._pipeline, self._outputs = pipeline, outputs
        self._query, self._batch, self._adopt = query, batch, adopt

    def run(self, entries: DataFrame) -> Account:
        """Do it all, check the books, and close the batch."""
        with forgiving(entries.sparkSession):
            return self._run(entries)

    def _run(self, entries: DataFrame) -> Account:
        begun = time.monotonic()
        kept = judged(entries, self._pipeline, self._outputs.address).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = stages.enrich(kept, self._pipeline.enrich)
            tables = {name: self._open(part) for name, part in self._parts(rows).items()}
            expected = self._counted(rows)
            written = self._write_tables(tables, expected.tables)
            parts = (written["out"], written["duplicates"], written["quarantined"])
            account = Account(self._pipeline.name, self._query, self._batch, expected.rows_in, *parts)
            account.check(expected.tables, {})
            routes = self._write_streams(rows, expected.routes)
            self._refresh_windows(rows, tables["out"].table, expected.tables["out"])
        finally:
            kept.unpersist()
        seconds = round(time.monotonic() - begun, 3)
        account = replace(account, routes=routes, finished_ms=int(time.time() * 1000), seconds=seconds)
        account.check(expected.tables, expected.routes)
        self._outputs.ledger.put(account)
        return account

    # ── steps ──

    def _parts(self, rows: DataFrame) -> dict[str, Part]:
        """What goes to which table."""
        visible = [name for name in rows.columns if not name.startswith("_")]
        decoded = list(self._pipeline.decode.columns)
        parts = {
            "out": (self._pipeline.table_name, stages.OUT, visible),
            "duplicates": ("duplicates", stages.DUPLICATE, [*ENTRY, "_key", "_winner"]),
            "quarantined": ("quarantine", stages.QUARANTINED, [*ENTRY, "_reason", "_raw", *decoded]),
        }
        return {
            name: Part(self._outputs.table(table, self._pipeline.name), _plain(rows, status, columns))
            for name, (table, status, columns) in parts.items()
        }

    def _open(self, part: Part) -> Part:
        part.table.open(self._query, dict(part.rows.dtypes), adopt=self._adopt)
        return part

    def _counted(self, rows: DataFrame) -> Expected:
        """How many rows there are, and how many must arrive where. One job, which also fills the cache."""
        status = F.col("_status")
        tables = {"out": stages.OUT, "duplicates": stages.DUPLICATE, "quarantined": stages.QUARANTINED}
        routes = {one.name: stages.goes(one) for one in self._pipeline.routes}
        if self._pipeline.quarantine:
            routes[RAW_ROUTE] = (status == stages.QUARANTINED) & F.col("_raw").isNotNull()
        counts = [F.count("*"), *(F.count_if(status == one) for one in tables.values())]
        counts += [F.count_if(one) for one in routes.values()]
        (found,) = rows.agg(*(count.alias(f"_{at}") for at, count in enumerate(counts))).collect()
        in_tables, in_routes = found[1 : 1 + len(tables)], found[1 + len(tables) :]
        return Expected(found[0], dict(zip(tables, in_tables, strict=True)), dict(zip(routes, in_routes, strict=True)))

    def _write_tables(self, parts: Mapping[str, Part], expected: Mapping[str, int]) -> dict[str, int]:
        return {
            name: part.table.put(part.rows, self._query, self._batch, expected[name]) for name, part in parts.items()
        }

    def _write_streams(self, rows: DataFrame, expected: Mapping[str, int]) -> dict[str, int]:
        found = {
            one.name: self._send(stages.route(rows, one), one.name, one.stream, expected[one.name], _options(one))
            for one in self._pipeline.routes
        }
        if self._pipeline.quarantine:
            bad = stages.with_status(rows, stages.QUARANTINED).where(F.col("_raw").isNotNull())
            told, target = bad.select(quarantine.told()), self._pipeline.quarantine
            found[RAW_ROUTE] = self._send(told, RAW_ROUTE, target, expected[RAW_ROUTE], {})
        return found

    def _send(self, rows: DataFrame, name: str, stream: str, count: int, options: dict[str, str]) -> int:
        """Write to a stream exactly once, and answer the receipt. Nothing to write is not written, unless an earlier
        try of the batch, by another rule, has begun: that one is finished, and its receipt does not fit.

        A row that no stream can take, as one of nulls alone, goes to the stream's dead letters and counts as sent: the
        table has it, and a batch that failed for it would fail on every repeat.
        """
        address, app = self._outputs.address, f"{self._pipeline.name}/{self._query}/{name}"
        if count == 0 and not begun(address, stream, app, self._batch):
            return 0
        writing = rows.write.format(self._outputs.sink).options(**address.options, **options)
        writing = writing.option("stream", stream).option("txnAppId", app).option("txnVersion", str(self._batch))
        writing.mode("append").save()
        told = receipt(address, stream, app, self._batch)
        if told is None:
            raise HeadraceError(f"route {name}: the sink has no receipt for batch {self._batch} of {stream}")
        return told.total + sum(told.dead.values())

    def _refresh_windows(self, rows: DataFrame, table: Table, count: int) -> None:
        if not self._pipeline.aggregates or count == 0:
            return
        out = stages.with_status(rows, stages.OUT)
        for how in self._pipeline.aggregates:
            path = f"{self._outputs.folder}/tables/{how.name}"
            Windows(self._outputs.place, table, how, path).renew(out, self._query, self._batch)


def _plain(rows: DataFrame, status: str, columns: list[str]) -> DataFrame:
    """The rows of one status, with columns whose names do not begin with an underscore."""
    chosen = [F.col(name).alias(name.lstrip("_")) for name in columns]
    return stages.with_status(rows, status).select(*chosen)


def _options(one: Route) -> dict[str, str]:
    return {"maxlen": str(one.maxlen)} if one.maxlen else {}
