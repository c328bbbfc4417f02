"""The windows of a table, kept up to date batch by batch: each reads again the batches that hold its hours, not all."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headrace.spark.pipeline import aggregates
from headrace.spark.pipeline.spans import Run, Spans, meet
from headrace.spark.pipeline.spec import Aggregate
from headrace.spark.pipeline.tables import Batch, Table


class Windows:
    """One aggregate of one table."""

    def __init__(self, table: Table, spans: Spans, how: Aggregate, path: str) -> None:
        self._table, self._spans, self._how, self._path = table, spans, how, path

    def renew(self, rows: DataFrame, query: str, batch: int) -> None:
        """Compute the windows of a batch anew, which is in the table already. May be repeated wherever it stops."""
        found = aggregates.touched(rows, self._how)
        self._spans.note(query, self._how.time, {batch: found.rows})
        if not found.windows:
            return
        session, hours = rows.sparkSession, aggregates.needed(self._how, found.windows)
        told = self._told()
        strange = [one for one, known in told.items() if known is None]
        if strange:  # older than this aggregate, or a file is gone
            self._learn(strange, aggregates.hours_by_batch(self._table.read(session, strange), self._how))
            told = self._told()
        holding = [one for one, known in told.items() if meet(known or (), hours)]
        aggregates.refresh(self._table.read(session, holding), self._path, self._how, found.windows)

    def _told(self) -> dict[Batch, list[Run] | None]:
        """The hours of every batch that is there; None where nobody told them."""
        there = self._table.batches()
        known = {query: self._spans.of(query, self._how.time) for query in {query for query, _ in there}}
        return {(query, batch): known[query].get(batch) for query, batch in there}

    def _learn(self, strange: list[Batch], found: dict[Batch, list[int]]) -> None:
        for query in {query for query, _ in strange}:
            hours = {batch: found.get((of, batch), []) for of, batch in strange if of == query}
            self._spans.note(query, self._how.time, hours)
