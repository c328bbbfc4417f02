"""Batches of a pipeline without a query: entries are given, not read, so that a test needs no stream and no wait."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.pipeline import Decode, Pipeline
from headrace.spark.pipeline.batch import BatchRun, Outputs
from headrace.spark.pipeline.ledger import Account
from headrace.spark.pipeline.places import place_of
from headrace.spark.pipeline.run import check
from tests.support.servers import Server

AT = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
ENTRIES = "stream string, id string, timestamp timestamp, fields map<string,binary>"
COLUMNS = {"id": "string", "amount": "double", "created": "timestamp"}
CREATED = "2026-03-02T10:00:00Z"


def payload(id_: str, amount: float = 5, created: str = CREATED, **more: Any) -> bytes:
    return json.dumps({"id": id_, "amount": amount, "created": created, **more}).encode()


class Batches:
    """A folder, and the batches that pipelines of one query write into it."""

    def __init__(self, spark: SparkSession, server: Server, prefix: str, folder: Path) -> None:
        self.spark, self.client = spark, server.sync()
        self._folder, self._prefix, self._url = folder, prefix, server.url
        self.pipeline = self.made()
        self._number = 0

    def made(self, **parts: Any) -> Pipeline:
        source = {"url": self._url, "streams": f"{self._prefix}-source"}
        given = {"name": self._prefix, "table": "rows", "source": source, "decode": Decode(COLUMNS), **parts}
        return Pipeline(folder=str(self._folder), **given)

    def stream(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def run(self, *payloads: bytes, batch: int | None = None, **parts: Any) -> Account:
        """One more batch, or one again, by the pipeline so far, or by one of these parts from now on."""
        if parts:
            self.pipeline = self.made(**parts)
        number = self._number if batch is None else batch
        self._number = number + 1
        place, folder = place_of(self.pipeline.folder, self.spark)
        outputs = Outputs(place, folder, check(self.pipeline))
        rows = [
            (f"{self._prefix}-source", f"{number + 1}-{at}", AT, {"payload": one}) for at, one in enumerate(payloads)
        ]
        return BatchRun(self.pipeline, outputs, "q", number).run(self.spark.createDataFrame(rows, ENTRIES))

    def table(self, name: str = "rows") -> DataFrame:
        return self.spark.read.option("mergeSchema", "true").parquet(f"{self._folder}/tables/{name}")

    def reasons(self) -> dict[str, str]:
        """Why rows are in the quarantine, by the number of their payload in the batch."""
        rows = self.table("quarantine").select("entry_id", "reason").collect()
        return {row["entry_id"].partition("-")[2]: row["reason"] for row in rows}
