"""Tables that take a batch once: `<table>/query=<id>/batch=<n>`, written aside and renamed into place.

A batch written again replaces itself. A table remembers the queries that may write to it and refuses any other: a new
checkpoint reads the stream from wherever it likes and would write old rows a second time (or over them).
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.pipeline.places import Place

MEMORY: Final = "_headrace.json"  # the leading underscore hides it from readers of the table
ASIDE: Final = "_aside"
ROWS_A_FILE: Final = 100_000


class ForeignCheckpoint(ConfigError):
    """A table met a query that it does not know."""


class Table:
    """One table of one pipeline."""

    def __init__(self, place: Place, path: str, pipeline: str) -> None:
        self._place = place
        self.path = path
        self._pipeline = pipeline

    def open(self, query: str, *, adopt: bool = False) -> None:
        """Let a query write here. Raises ForeignCheckpoint; `adopt` makes the table accept one more query."""
        queries = self._queries()
        if query in queries:
            return
        if queries and not adopt:
            raise ForeignCheckpoint(
                f"{self.path} was written by query {queries[-1]}, and this is query {query}, which has another "
                "checkpoint: give the old checkpoint or another folder; or, if the rows that come now are not in the "
                "table yet, run with --adopt-tables"
            )
        memory = {"pipeline": self._pipeline, "queries": [*queries, query]}
        self._place.write(f"{self.path}/{MEMORY}", json.dumps(memory))

    def put(self, rows: DataFrame, query: str, batch: int, count: int) -> int:
        """Write the rows of a batch, over those of an earlier try. Returns how many there are, from the footers."""
        target = self.batch_path(query, batch)
        if count == 0:
            self._place.remove(target)
            return 0
        aside = f"{self.path}/{ASIDE}/{query}-{batch}"
        rows.coalesce(count // ROWS_A_FILE + 1).write.mode("overwrite").parquet(aside)
        self._place.move_folder(aside, target)
        return self._place.parquet_rows(target)

    def batch_path(self, query: str, batch: int) -> str:
        return f"{self.path}/query={query}/batch={batch}"

    def read(self, spark: SparkSession) -> DataFrame:
        """All batches of all its queries. Raises HeadraceError if nothing was written yet."""
        if not any(name.startswith("query=") for name in self._place.names(self.path)):
            raise HeadraceError(f"{self.path} holds no batch yet: run the pipeline first")
        return spark.read.parquet(self.path)

    def _queries(self) -> list[str]:
        text = self._place.read(f"{self.path}/{MEMORY}")
        if text is None:
            strays = [name for name in self._place.names(self.path) if not name.startswith("_")]
            if strays:
                raise ForeignCheckpoint(f"{self.path} holds {strays[0]!r} and nothing says whose table it is")
            return []
        queries: list[str] = json.loads(text)["queries"]
        return queries
