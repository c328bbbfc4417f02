"""The streaming reader, as Spark wants it: one in the driver's source process, copies of it in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.spark.admission import Admission
from headrace.spark.chunks import Patience
from headrace.spark.offsets import read_offset
from headrace.spark.plan import Share
from headrace.spark.schema import layout_of
from headrace.spark.source import ShareReader, check_server
from headrace.spark.source_options import SourceSettings
from headrace.spark.workers import leave_quietly

T = TypeVar("T")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: ranges of ids, kept in Spark's own checkpoint."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        layout_of(schema)
        self._settings = settings
        self._shares = ShareReader(settings, schema)
        self._admission: Admission | None = None

    # ── in the driver ──

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's words, here and below
        return self._ask(lambda admission: admission.initial().as_json())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._ask(lambda admission: admission.latest(read_offset(start), most).as_json())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ask(lambda admission: admission.prepare_available_now())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        found = self._ask(lambda admission: admission.report())
        return None if found is None else found.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._ask(lambda admission: admission.shares(read_offset(start), read_offset(end)))

    def stop(self) -> None:
        leave_quietly()
        if self._admission is not None:
            self._admission.close()
            self._admission = None

    def _ask(self, question: Callable[[Admission], T]) -> T:
        """Ask the driver's side. The first contact must work; a server that goes later is waited for."""
        if self._admission is None:
            check_server(self._settings)
            self._admission = Admission(self._settings)
        admission = self._admission
        answer: T = Patience(self._settings.retry_ms).keep_trying(lambda: question(admission))
        return answer

    # ── in the tasks ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return self._shares.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admission": None}
