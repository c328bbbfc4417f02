"""One batch of a pipeline, from entries to tables, streams, windows and the ledger.

Everything here may be done twice: tables replace a batch, the sink knows its version, windows are computed anew, and
the ledger's file of the batch is replaced. So it does not matter where a driver dies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import HeadraceError
from headrace.spark import NAME
from headrace.spark.options import Address
from headrace.spark.pipeline import aggregates, quarantine, stages
from headrace.spark.pipeline.ledger import Account, Ledger
from headrace.spark.pipeline.places import Place
from headrace.spark.pipeline.spec import ENTRY, Pipeline, Route
from headrace.spark.pipeline.tables import Table
from headrace.spark.sink import receipt

RAW_ROUTE = "quarantine"  # what the ledger calls the quarantine's stream


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


class BatchRun:
    """One batch of one query."""

    def __init__(self, pipeline: Pipeline, outputs: Outputs, query: str, batch: int, *, adopt: bool = False) -> None:
        self._pipeline, self._outputs = pipeline, outputs
        self._query, self._batch, self._adopt = query, batch, adopt

    def run(self, entries: DataFrame) -> Account:
        """Do it all, check the books, and close the batch."""
        begun = time.monotonic()
        tables = {name: self._open(name) for name in (self._pipeline.table_name, "duplicates", "quarantine")}
        kept = judged(entries, self._pipeline, self._outputs.address).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = stages.enrich(kept, self._pipeline.enrich)
            expected = self._counted(rows)
            written = self._write_tables(rows, tables, expected)
            routes = self._write_streams(rows, expected)
            self._refresh_windows(rows, tables[self._pipeline.table_name], expected["out"])
        finally:
            kept.unpersist()
        account = Account(
            pipeline=self._pipeline.name,
            query=self._query,
            batch=self._batch,
            rows_in=expected.pop("in"),
            routes=routes,
            finished_ms=int(time.time() * 1000),
            seconds=round(time.monotonic() - begun, 3),
            **written,
        )
        account.check(expected)
        self._outputs.ledger.put(account)
        return account

    # ── steps ──

    def _open(self, name: str) -> Table:
        table = self._outputs.table(name, self._pipeline.name)
        table.open(self._query, adopt=self._adopt)
        return table

    def _counted(self, rows: DataFrame) -> dict[str, int]:
        """How many rows there are, and how many must arrive where. One job, which also fills the cache."""
        status = F.col("_status")
        counts = {
            "in": F.count("*"),
            "out": F.count_if(status == stages.OUT),
            "duplicates": F.count_if(status == stages.DUPLICATE),
            "quarantined": F.count_if(status == stages.QUARANTINED),
            **{one.name: F.count_if(stages.goes(one)) for one in self._pipeline.routes},
        }
        if self._pipeline.quarantine:
            counts[RAW_ROUTE] = F.count_if((status == stages.QUARANTINED) & F.col("_raw").isNotNull())
        (found,) = rows.agg(*(count.alias(name) for name, count in counts.items())).collect()
        return {name: int(found[name]) for name in counts}

    def _write_tables(
        self, rows: DataFrame, tables: Mapping[str, Table], expected: Mapping[str, int]
    ) -> dict[str, int]:
        visible = [name for name in rows.columns if not name.startswith("_")]
        decoded = list(self._pipeline.decode.columns)
        parts = {
            "out": (self._pipeline.table_name, stages.OUT, visible),
            "duplicates": ("duplicates", stages.DUPLICATE, [*ENTRY, "_key", "_winner"]),
            "quarantined": ("quarantine", stages.QUARANTINED, [*ENTRY, "_reason", "_raw", *decoded]),
        }
        return {
            name: tables[table].put(_plain(rows, status, columns), self._query, self._batch, expected[name])
            for name, (table, status, columns) in parts.items()
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
        """Write to a stream exactly once, and answer the receipt. Nothing to write is not written."""
        if count == 0:
            return 0
        app = f"{self._pipeline.name}/{self._query}/{name}"
        writing = rows.write.format(self._outputs.sink).option("url", self._outputs.address.url).options(**options)
        writing = writing.option("stream", stream).option("txnAppId", app).option("txnVersion", str(self._batch))
        writing.option("badRows", "fail").mode("append").save()
        told = receipt(self._outputs.address, stream, app, self._batch)
        if told is None:
            raise HeadraceError(f"route {name}: the sink has no receipt for batch {self._batch} of {stream}")
        return told.total

    def _refresh_windows(self, rows: DataFrame, table: Table, count: int) -> None:
        if not self._pipeline.aggregates or count == 0:
            return
        out = stages.with_status(rows, stages.OUT)
        everything = table.read(rows.sparkSession)
        for how in self._pipeline.aggregates:
            path = f"{self._outputs.folder}/tables/{how.name}"
            aggregates.refresh(everything, path, how, aggregates.touched(out, how))


def _plain(rows: DataFrame, status: str, columns: list[str]) -> DataFrame:
    """The rows of one status, with columns whose names do not begin with an underscore."""
    chosen = [F.col(name).alias(name.lstrip("_")) for name in columns]
    return stages.with_status(rows, status).select(*chosen)


def _options(one: Route) -> dict[str, str]:
    return {"maxlen": str(one.maxlen)} if one.maxlen else {}
