"""The data source ``redis-streams``: hands out readers and writers, and checks what the user wrote first.

Spark builds this object anew in several processes and pickles it between them, so it holds the options and no more.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark import NAME


class RedisStreams(DataSource):
    """``spark.read.format("redis-streams")`` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns; also the first moment at which wrong options and an unreachable server can be told."""
        from headrace.spark.schema import DEFAULT
        from headrace.spark.source import check_server
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=None)
        check_server(settings)
        if settings.table is not None:
            from headrace.spark.tables import schema_of

            return schema_of(settings.table)
        if settings.mode == "group":
            from headrace.spark.schema import GROUP

            return GROUP
        return DEFAULT

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=False)
        if settings.table is not None:
            from headrace.spark.tables import TableReader

            return TableReader(settings, schema)
        from headrace.spark.source import BatchReader

        return BatchReader(settings, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's word
        from headrace.spark.source_options import SourceSettings

        settings = SourceSettings.of(self._given, streaming=True)
        if settings.mode == "group":
            from headrace.spark.group import GroupReader

            return GroupReader(settings, schema)
        from headrace.spark.stream_source import StreamReader

        return StreamReader(settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.sink import make_writer

        return make_writer(self._given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's word
        from headrace.spark.sink import make_stream_writer

        return make_stream_writer(self._given, schema, overwrite)

    @property
    def _given(self) -> dict[str, Any]:
        return dict(self.options)
