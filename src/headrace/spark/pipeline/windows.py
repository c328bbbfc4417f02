"""The windows of a table, kept up to date batch by batch: each reads again the batches that hold its hours, not all."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from headrace.errors import HeadraceError
from headrace.spark.pipeline import aggregates
from headrace.spark.pipeline.aside import Aside
from headrace.spark.pipeline.places import Place
from headrace.spark.pipeline.spans import Run, Spans, meet
from headrace.spark.pipeline.spec import Aggregate
from headrace.spark.pipeline.tables import Batch, Table

TRIES: Final = 3  # while another driver adds batches


class Windows:
    """One aggregate of one table."""

    def __init__(self, place: Place, table: Table, how: Aggregate, path: str) -> None:
        self._place, self._table, self._how, self._path = place, table, how, path
        self._spans = Spans(place, table.path)

    def renew(self, rows: DataFrame, query: str, batch: int) -> None:
        """Compute the windows of a batch anew, which is in the table already. May be repeated wherever it stops."""
        found = aggregates.touched(rows, self._how)
        self._spans.note(query, self._how.time, {batch: found.rows})
        if not found.windows:
            return
        for _ in range(TRIES):
            aside = Aside(self._place, self._path).folder(query, batch)
            read = self._compute(rows, found.windows, aside)
            if set(self._table.batches()) == read:
                replace_hours(self._place, aside, self._path)
                return
            self._place.remove(aside)  # it may lack what has come since: windows that are there know more
        raise HeadraceError(
            f"{self._path}: while windows were computed, the table {self._table.path} got other batches. Another "
            "driver runs this pipeline: end one of them, and run it again"
        )

    def _compute(self, rows: DataFrame, starts: list[int], aside: str) -> set[Batch]:
        """Write the windows that begin in some hours. Answers every batch that the table had."""
        session, hours = rows.sparkSession, aggregates.needed(self._how, starts)
        told = self._told()
        strange = [one for one, known in told.items() if known is None]
        if strange:  # older than this aggregate, or a file is gone
            self._learn(strange, aggregates.hours_by_batch(self._table.read(session, strange), self._how))
            told = self._told()
        holding = [one for one, known in told.items() if meet(known or (), hours)]
        found = aggregates.refreshed(self._table.read(session, holding), self._how, starts)
        found.write.mode("overwrite").partitionBy(aggregates.HOUR).parquet(aside)
        return set(told)

    def _told(self) -> dict[Batch, list[Run] | None]:
        """The hours of every batch that is there; None where nobody told them."""
        there = self._table.batches()
        known = {query: self._spans.of(query, self._how.time) for query in {query for query, _ in there}}
        return {(query, batch): known[query].get(batch) for query, batch in there}

    def _learn(self, strange: list[Batch], found: dict[Batch, list[int]]) -> None:
        for query in {query for query, _ in strange}:
            hours = {batch: found.get((of, batch), []) for of, batch in strange if of == query}
            self._spans.note(query, self._how.time, hours)


def replace_hours(place: Place, aside: str, path: str) -> None:
    """Put every hour of a folder in the place of the one that is there. Spark itself would move one of two drivers'
    hours into the other's."""
    for name in place.names(aside):
        if name.startswith(f"{aggregates.HOUR}="):
            place.move_folder(f"{aside}/{name}", f"{path}/{name}")
    place.remove(aside)
