"""A pipeline on Spark Connect: batches run on the server, this process starts them and tells what the ledger says.

The server calls the batch function in a process of its own, which has neither this process's memory nor its files. So
the function is made of plain values, learns its query's id from the checkpoint, and leaves what it did in the ledger;
this process reads the ledger through Spark, and needs no disk in common with the server.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.options import shown
from headrace.spark.pipeline.batch import BatchRun, Outputs
from headrace.spark.pipeline.ledger import Account, Totals, account_of
from headrace.spark.pipeline.progress import Progress, lag_of
from headrace.spark.pipeline.run import DEFAULTS, POLL_S, Runner, as_dict
from headrace.spark.pipeline.spec import Pipeline

DEFAULT_PORT: Final = 15002
KNOCK_S: Final = 10.0
BUSY: Final = "Processing new data"  # what Spark says of a query inside a batch


def open_remote_session(pipeline: Pipeline, url: str) -> SparkSession:
    """A session on a Connect server. Sizes and ports are the server's own business; the SQL options travel."""
    _knock(url)
    builder = SparkSession.builder.remote(url)
    for word, value in {**DEFAULTS, **pipeline.spark}.items():
        if word.startswith("spark.sql."):
            builder = builder.config(word, value)
    return builder.getOrCreate()


def _knock(url: str) -> None:
    """Spark's own client tries for minutes to reach a server that is not there."""
    try:
        where = urlsplit(url)
        host, port = where.hostname or "", where.port or DEFAULT_PORT
    except ValueError:
        host, port = "", 0
    if not url.startswith("sc://") or not host:
        raise ConfigError(f"--remote is {shown(url)}: give sc://host:{DEFAULT_PORT}")
    try:
        socket.create_connection((host, port), KNOCK_S).close()
    except OSError as error:
        raise Unavailable(f"sc://{host}:{port}: no Spark Connect server can be reached there: {error}") from None


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """What the server calls for each batch."""

    pipeline: Pipeline
    outputs: Outputs
    adopt: bool

    def __call__(self, entries: DataFrame, number: int) -> None:
        BatchRun(self.pipeline, self.outputs, self._query(), number, adopt=self.adopt).run(entries)

    def _query(self) -> str:
        """Spark writes the id into the checkpoint before the first batch, and never changes it."""
        text = self.outputs.place.read(f"{self.outputs.checkpoint}/metadata")
        if text is None:
            raise HeadraceError(
                f"{self.outputs.checkpoint} is not where the Spark Connect server runs its Python: over Spark Connect "
                "the folder of a pipeline must be a disk of the server's"
            )
        return str(json.loads(text)["id"])


class RemoteLedger:
    """The ledger, read through Spark."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path

    def get(self, query: str, batch: int) -> Account | None:
        return next(iter(self._read(f"{self._path}/query={query}/batch={batch}.json")), None)

    def totals(self) -> Totals:
        return Totals.of(self._read(f"{self._path}/query=*/batch=*.json"))

    def _read(self, pattern: str) -> list[Account]:
        try:
            rows = self._spark.read.text(pattern, wholetext=True).select("value").collect()
        except PySparkException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return []
            raise
        return [account_of(json.loads(row.value)) for row in rows]


class RemoteRunner(Runner):
    """One run of a pipeline on a Connect server. What it tells comes from the ledger alone."""

    def _batch_function(self) -> RemoteBatch:
        return RemoteBatch(self.pipeline, self.outputs, self._adopt)

    @property
    def _books(self) -> RemoteLedger:
        return RemoteLedger(self._spark, self.outputs.ledger.path)

    def _totals(self) -> Totals:
        return self._books.totals()

    def _end_after_batch(self) -> None:
        """Between two batches, as far as Spark tells; a batch that is cut is only done again."""
        assert self._query is not None
        while self._query.isActive and self._query.status["message"] == BUSY:
            time.sleep(POLL_S)
        self._query.stop()

    def _report(self, *, final: bool = False) -> None:
        assert self._query is not None
        told = as_dict(self._query.lastProgress)
        if told is None or int(told["batchId"]) == self._reported:
            return
        account = self._books.get(str(self._query.id), int(told["batchId"]))
        if account is not None:
            self._reported = account.batch
            self._told(Progress.of(account, lag_of(told)))
