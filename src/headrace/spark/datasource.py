"""The data source ``redis-streams``: hands out readers and writers, and checks what the user wrote first.

Spark builds this object anew in several processes and pickles it between them, so it holds the options and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, HeadraceError
from headrace.spark import NAME
from headrace.spark.workers import LOADING, runs

if TYPE_CHECKING:
    from headrace.spark.source_options import SourceSettings

T = TypeVar("T")


class Refused(DataSourceStreamReader):
    """Stands for a reader that cannot be made. With a schema of the user's this is the first moment at which options
    are looked at, and Spark hides an error raised right there behind one of its own."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's words
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        raise self._error


READS: Final = frozenset({"streams", "subscribe", "streamspattern", "subscribepattern"})  # what only a source is told


class RedisStreams(DataSource):
    """``spark.read.format("redis-streams")`` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # With a schema of the user's, schema() is not asked. The same process makes a streaming query's sink, which
        # cannot be told apart but by its options.
        if runs(LOADING) and self._reads:
            plainly(self._check_source)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns; also the moment at which wrong options and an unreachable server are told."""
        from headrace.spark.schema import DEFAULT

        settings = plainly(self._check_source)
        if settings.table is not None:
            from headrace.spark.tables import schema_of

            return schema_of(settings.table)
        return DEFAULT

    def check(self) -> None:
        """Say what is wrong with the options of a read or a write, and whether their server lets us in."""
        plainly(self._check_source if self._reads else self._check_sink)

    def _check_sink(self) -> None:
        from headrace.spark.sink import check_sink

        check_sink(self._given)

    def _check_source(self) -> SourceSettings:
        from headrace.spark.source import check_server
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=None)
        check_server(settings)
        return settings

    def reader(self, schema: StructType) -> DataSourceReader:
        return plainly(lambda: self._reader(schema))

    def _reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=False)
        if settings.table is not None:
            from headrace.spark.tables import TableReader

            return TableReader(settings, schema)
        # One that takes filters is never given: all that is derived from one load() shares the last filter that was
        # pushed, and would leave out rows that another part of the same query wants.
        from headrace.spark.source import BatchReader

        return BatchReader(settings, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's word
        try:
            return self._stream_reader(schema)
        except ConfigError as error:
            return Refused(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=True)
        if settings.mode == "group":
            from headrace.spark.group import GroupReader

            return GroupReader(settings, schema)
        from headrace.spark.stream_source import StreamReader

        return StreamReader(settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.sink import make_writer

        return plainly(lambda: make_writer(self._given, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's word
        from headrace.spark.sink import make_stream_writer

        return plainly(lambda: make_stream_writer(self._given, schema, overwrite))

    @property
    def _reads(self) -> bool:
        """Whether the options are those of a source."""
        return any(word.lower() in READS for word in self.options)

    @property
    def _given(self) -> dict[str, Any]:
        return dict(self.options)


def plainly(step: Callable[[], T]) -> T:
    """Let an error of ours out by itself: Spark prints all that led to it, and hides what to do behind that."""
    try:
        return step()
    except HeadraceError as error:
        raise error.with_traceback(None) from None
