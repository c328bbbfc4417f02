"""The sink, dying where a test tells it to.

The option `dieAt` is "commit" (after all tasks wrote) or a number (after so many blobs were published); the file named
by `diedAlready` makes it happen once. What Redis and the checkpoint hold is then what a killed driver leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from headrace.spark import staging
from headrace.spark.sink import StreamWriter, make_stream_writer, make_writer

_OURS = ("dieat", "diedalready")


def register(spark: SparkSession) -> None:
    """Make the faulty sink known; its classes travel by value, because Spark's workers do not know the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(FaultySink)


class Died(Exception):
    """Where a driver would have been killed."""


class DyingWriter(StreamWriter):
    """Dies in commit(), the first time."""

    die_at = ""
    marker = ""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if Path(self.marker).exists():
            super().commit(messages, batchId)
            return
        Path(self.marker).touch()
        if self.die_at == "commit":
            raise Died("between write and commit")
        with _publishing_only(int(self.die_at)):
            super().commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """A killed driver aborts nothing."""


@contextmanager
def _publishing_only(blobs: int) -> Iterator[None]:
    publish, at_once = staging.publish, staging.PUBLISH_AT_ONCE
    left = blobs

    def counted(*words: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died("half-way through publish")
        return publish(*words)

    staging.publish, staging.PUBLISH_AT_ONCE = counted, 1  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        staging.publish, staging.PUBLISH_AT_ONCE = publish, at_once  # type: ignore[misc]


class FaultySink(DataSource):
    """The sink as it is, and dead where the options say so."""

    @classmethod
    def name(cls) -> str:
        return "faulty-sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return make_writer(self._own(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer = make_stream_writer(self._own(), schema, overwrite)
        if "dieat" not in {word.lower() for word in self.options}:
            return writer
        assert isinstance(writer, StreamWriter)
        dying = DyingWriter(writer._options, writer._layout)
        dying.die_at, dying.marker = self.options["dieAt"], self.options["diedAlready"]
        return dying

    def _own(self) -> dict[str, str]:
        return {word: value for word, value in self.options.items() if word.lower() not in _OURS}
