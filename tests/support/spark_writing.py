"""The sink, dying where a test tells it to.

The option `dieAt` is "commit" (after all tasks wrote) or a number (after so many blobs were published); the file named
by `diedAlready` makes it happen once. What Redis and the checkpoint hold is then what a killed driver leaves.

The option `harm` lets the driver live and harms the server half-way through publish: "full" (no memory left), "replica"
(it takes no writes), or "hold", which harms nothing and waits until the file `harmedAlready` has words in it. What the
sink does then, abort() included, is its own doing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from headrace.redis.calls import Call, nothing
from headrace.spark import staging
from headrace.spark.sink import BatchWriter, StreamWriter, make_stream_writer, make_writer
from headrace.spark.sink_options import SinkOptions
from headrace.spark.staging import PatientLink

_OURS = ("dieat", "diedalready", "harm", "harmedalready")
HARMS = {"full": ("CONFIG", "SET", "maxmemory", "1"), "replica": ("REPLICAOF", "127.0.0.1", "1")}
HELD_S = 30


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
        with _after(int(self.die_at), _die):
            super().commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """A killed driver aborts nothing."""


class HarmingWriter(StreamWriter):
    """Publishes two blobs, then the server is harmed."""

    harm = ""
    marker = ""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        with _after(2, lambda: _harm(self._options, self.harm, Path(self.marker))):
            super().commit(messages, batchId)


class HarmingBatchWriter(BatchWriter):
    """The same for a batch write."""

    harm = ""
    marker = ""

    def commit(self, messages: Any) -> None:
        with _after(2, lambda: _harm(self._options, self.harm, Path(self.marker))):
            super().commit(messages)


def _die() -> None:
    raise Died("half-way through publish")


def _harm(options: SinkOptions, harm: str, marker: Path) -> None:
    if marker.exists():
        return
    marker.touch()
    if harm == "hold":
        until = time.monotonic() + HELD_S
        while not marker.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        return
    with PatientLink(options.address, 0) as link:
        link.call(Call(HARMS[harm], nothing))


@contextmanager
def _after(blobs: int, happens: Callable[[], None]) -> Iterator[None]:
    """Let something happen when so many blobs were published."""
    publish, at_once = staging.publish, staging.PUBLISH_AT_ONCE
    left = blobs

    def counted(*words: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            happens()
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
        writer = make_writer(self._own(), schema, overwrite)
        if "harm" not in self._words:
            return writer
        assert isinstance(writer, BatchWriter)
        harming = HarmingBatchWriter(writer._options, writer._layout)
        harming.harm, harming.marker = self.options["harm"], self.options["harmedAlready"]
        return harming

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        writer = make_stream_writer(self._own(), schema, overwrite)
        assert isinstance(writer, StreamWriter)
        if "dieat" in self._words:
            dying = DyingWriter(writer._options, writer._layout)
            dying.die_at, dying.marker = self.options["dieAt"], self.options["diedAlready"]
            return dying
        if "harm" in self._words:
            harming = HarmingWriter(writer._options, writer._layout)
            harming.harm, harming.marker = self.options["harm"], self.options["harmedAlready"]
            return harming
        return writer

    @property
    def _words(self) -> set[str]:
        return {word.lower() for word in self.options}

    def _own(self) -> dict[str, str]:
        return {word: value for word, value in self.options.items() if word.lower() not in _OURS}
