"""Streaming queries for tests: on real Spark, and, for the many rules, on the reader alone as Spark would drive it."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace.spark.schema import DEFAULT
from headrace.spark.source_options import SourceSettings
from headrace.spark.stream_source import StreamReader
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, str]
"""(stream, id)"""


class Query:
    """A streaming query that puts what it reads into a list, batch by batch. A replayed batch replaces itself."""

    def __init__(self, spark: SparkSession, server: Server, checkpoint: Path, options: dict[str, Any]) -> None:
        self._spark = spark
        self._server = server
        self._checkpoint = checkpoint
        self._options = {word: str(value) for word, value in options.items()}
        self.batches: dict[int, list[Row]] = {}
        self.handle: Any = None
        self.before_batch: Any = None  # called with the batch's number before its rows are taken

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def _take(self, frame: DataFrame, batch: int) -> None:
        if self.before_batch is not None:
            self.before_batch(batch)
        self.batches[batch] = [(row.stream, row.id) for row in frame.select("stream", "id").collect()]

    def start(self, *, available_now: bool = False, **changed: Any) -> Query:
        options = {**self._options, **{word: str(value) for word, value in changed.items()}}
        frame = self._spark.readStream.format("redis-streams").option("url", self._server.url).options(**options).load()
        writer = frame.writeStream.option("checkpointLocation", str(self._checkpoint)).foreachBatch(self._take)
        if available_now:
            writer = writer.trigger(availableNow=True)
        self.handle = writer.start()
        return self

    def run(self, **changed: Any) -> Query:
        """Read what is there, to the end. Raises what the query raised."""
        self.start(available_now=True, **changed)
        assert self.handle.awaitTermination(50)
        return self

    def wait_for(self, rows: int, timeout: float = 30.0) -> list[Row]:
        def enough() -> bool:
            if self.handle.exception() is not None:
                raise self.handle.exception()
            return len(self.rows) >= rows

        wait_until_sync(enough, timeout, what=f"{rows} rows")
        return self.rows

    def wait_for_end(self, timeout: float = 30.0) -> str:
        """Wait until the query has failed; answers what it said."""
        wait_until_sync(lambda: not self.handle.isActive, timeout, what="the query's end")
        return str(self.handle.exception())

    @property
    def offset(self) -> dict[str, Any]:
        """The end of the last batch."""
        logged = [int(file.name) for file in (self._checkpoint / "offsets").iterdir() if file.name.isdigit()]
        told = (self._checkpoint / "offsets" / str(max(logged))).read_text().splitlines()[-1]
        found: dict[str, Any] = json.loads(told)
        return found

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.stop()


class Driven:
    """A reader driven as Spark does it, without Spark: asked for offsets, pickled for its tasks. One step at a time."""

    def __init__(self, server: Server, offset: dict[str, Any] | None = None, **options: Any) -> None:
        texts = {"url": server.url, "blockMs": "20", "retryTimeout": "2s"}
        texts |= {word: str(value) for word, value in options.items()}
        self._settings = SourceSettings.of({word.lower(): text for word, text in texts.items()}, streaming=True)
        self.reader = StreamReader(self._settings, DEFAULT)
        self.offset = offset if offset is not None else self.reader.initialOffset()
        self.limit = self.reader.getDefaultReadLimit()

    def plan(self) -> tuple[dict[str, Any], list[InputPartition]] | None:
        """The next batch, not read yet; None if there is none."""
        assert isinstance(self.limit, ReadMaxRows)
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, self.limit)))
        if json.dumps(end) == json.dumps(self.offset):
            return None
        return end, list(self.reader.partitions(self.offset, end))

    def read(self, parts: list[InputPartition]) -> list[Row]:
        """What the tasks read, each in a copy of the reader."""
        rows: list[Row] = []
        for part in parts:
            copy = pickle.loads(pickle.dumps(self.reader))
            for batch in copy.read(pickle.loads(pickle.dumps(part))):
                rows += zip(batch.column("stream").to_pylist(), batch.column("id").to_pylist(), strict=True)
        return rows

    def step(self) -> list[Row] | None:
        """Plan, read and commit one batch; answers its rows, or None if there is none."""
        planned = self.plan()
        if planned is None:
            return None
        rows = self.read(planned[1])
        self.offset = planned[0]
        return rows

    def drain(self) -> list[Row]:
        """Batches until there are no more."""
        rows: list[Row] = []
        while (some := self.step()) is not None:
            rows += some
        return rows

    def again(self, **options: Any) -> Driven:
        """The query restarted on its checkpoint."""
        self.close()
        url = self._settings.address.url
        texts = {
            "url": url,
            "blockMs": "20",
            "retryTimeout": "2s",
            **{key: str(value) for key, value in options.items()},
        }
        self._settings = SourceSettings.of({word.lower(): text for word, text in texts.items()}, streaming=True)
        self.reader = StreamReader(self._settings, DEFAULT)
        return self

    def lost(self, stream: str) -> tuple[int, int]:
        """(rows counted as lost, times that the number was unknown)"""
        about = self.offset["streams"][stream]
        return about.get("lost", 0), about.get("unknown", 0)

    def close(self) -> None:
        self.reader.stop()


def fill(server: Server, stream: str, count: int, **about: Any) -> list[str]:
    """Append entries; answers their ids."""
    pipe = server.sync().pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(stream, {"number": number, "word": "hello"}, **about)
    return [id_.decode() if id_ is not None else "" for id_ in pipe.execute()]


def trim(server: Server, stream: str, keep: int) -> None:
    server.sync().xtrim(stream, maxlen=keep, approximate=False)


def ids(rows: list[Row]) -> list[str]:
    return sorted(id_ for _, id_ in rows)


def once_each(rows: list[Row]) -> bool:
    return not rows or max(Counter(rows).values()) == 1
