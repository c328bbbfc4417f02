"""Tables that take a batch once: `<table>/query=<id>/batch=<n>`, written aside and renamed into place.

A batch written again replaces itself. A table remembers the queries that may write to it and refuses any other: a new
checkpoint reads the stream from wherever it likes and would write old rows a second time (or over them). It remembers
its columns, too: they may become more, and none changes its type.

Two drivers may be at the same batch, one of them thought dead. Each writes a folder of its own, which is moved only
when its footers hold every row. Both hold the same rows, so it does not matter whose stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.pipeline.aside import Aside
from headrace.spark.pipeline.places import Place

MEMORY: Final = "_headrace.json"  # the leading underscore hides it from readers of the table
BATCH_NAME: Final = re.compile(r"batch=[0-9]+")
ROWS_A_FILE: Final = 100_000


Batch = tuple[str, int]
"""The query that wrote it, and its number."""


class ForeignCheckpoint(ConfigError):
    """A table met a query that it does not know."""


class ForeignPipeline(ConfigError):
    """A table met a pipeline that it does not know."""


class ColumnChanged(ConfigError):
    """A column of a table has another type than the pipeline now gives it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a table knows of itself."""

    pipeline: str
    queries: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)  # name -> type, of every column it ever had


class Table:
    """One table of one pipeline."""

    def __init__(self, place: Place, path: str, pipeline: str) -> None:
        self._place = place
        self.path = path
        self._pipeline = pipeline

    def open(self, query: str, columns: Mapping[str, str], *, adopt: bool = False) -> None:
        """Let a query write rows of these columns here. `adopt` makes the table accept one more query.

        Raises ForeignPipeline, ForeignCheckpoint or ColumnChanged, before anything is written.
        """
        before = self._memory() or Memory(self._pipeline)
        self._check(before, query, columns, adopt=adopt)
        known = {name.lower() for name in before.columns}
        added = {name: kind for name, kind in columns.items() if name.lower() not in known}
        queries = before.queries if query in before.queries else (*before.queries, query)
        memory = Memory(self._pipeline, queries, {**before.columns, **added})
        if memory != before:
            self._place.write(f"{self.path}/{MEMORY}", json.dumps(asdict(memory)))

    def _check(self, before: Memory, query: str, columns: Mapping[str, str], *, adopt: bool) -> None:
        if before.pipeline != self._pipeline:
            raise ForeignPipeline(
                f"{self.path} belongs to the pipeline {before.pipeline}, and this is {self._pipeline}: a pipeline has "
                "a folder of its own, and keeps its name as long as its folder"
            )
        if before.queries and query not in before.queries and not adopt:
            raise ForeignCheckpoint(
                f"{self.path} was written by query {before.queries[-1]}, and this is query {query}, which has another "
                "checkpoint: give the old checkpoint or another folder; or, if the rows that come now are not in the "
                "table yet, run with --adopt-tables"
            )
        known = {name.lower(): kind for name, kind in before.columns.items()}
        for name, kind in columns.items():
            if known.get(name.lower(), kind) != kind:
                raise ColumnChanged(
                    f"{self.path} has the column {name} as {known[name.lower()]}, and this pipeline makes it {kind}: "
                    "a table keeps its types; give the column another name, or the pipeline another folder"
                )

    def put(self, rows: DataFrame, query: str, batch: int, count: int) -> int:
        """Write the rows of a batch, over those of an earlier try. Returns how many there are, from the footers.

        If they are not as many as they must be, the table stays as it was.
        """
        target, aside = self.batch_path(query, batch), Aside(self._place, self.path).folder(query, batch)
        if count == 0:
            self._place.remove(target)
            return 0
        rows.coalesce(count // ROWS_A_FILE + 1).write.mode("overwrite").parquet(aside)
        written = self._place.parquet_rows(aside)
        if written == count:
            self._place.move_folder(aside, target)
        else:
            self._place.remove(aside)
        return written

    def batch_path(self, query: str, batch: int) -> str:
        return f"{self.path}/query={query}/batch={batch}"

    def batches(self) -> list[Batch]:
        """Every batch that is there."""
        queries = [name for name in self._place.names(self.path) if name.startswith("query=")]
        return [
            (query.removeprefix("query="), int(name.removeprefix("batch=")))
            for query in queries
            for name in self._place.names(f"{self.path}/{query}")
            if BATCH_NAME.fullmatch(name)
        ]

    def read(self, spark: SparkSession, batches: Iterable[Batch] | None = None) -> DataFrame:
        """All batches of all its queries, or some. Raises HeadraceError if there is none.

        With every column that the table ever had: older batches lack some, and Spark would look into any one of them.
        """
        chosen = None if batches is None else [self.batch_path(*one) for one in batches]
        if not (self.batches() if chosen is None else chosen):
            raise HeadraceError(f"{self.path} holds no batch yet: run the pipeline first")
        memory = self._memory()
        reading = spark.read.option("basePath", self.path)
        if memory is None or not memory.columns:
            reading = reading.option("mergeSchema", "true")
        else:
            reading = reading.schema(", ".join(f"`{name}` {kind}" for name, kind in memory.columns.items()))
        return reading.parquet(*(chosen or [self.path]))

    def _memory(self) -> Memory | None:
        text = self._place.read(f"{self.path}/{MEMORY}")
        if text is None:
            strays = [name for name in self._place.names(self.path) if not name.startswith("_")]
            if strays:
                raise ForeignCheckpoint(f"{self.path} holds {strays[0]!r} and nothing says whose table it is")
            return None
        told = json.loads(text)
        return Memory(told["pipeline"], tuple(told["queries"]), told.get("columns", {}))
