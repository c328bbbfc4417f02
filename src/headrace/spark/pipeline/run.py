"""Runs a pipeline: one query, one foreachBatch, every output in it; ends after a batch, never inside one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import ConfigError, HeadraceError
from headrace.options import shown
from headrace.spark import NAME, register
from headrace.spark import check as look
from headrace.spark.options import SERVER_OPTIONS, Address
from headrace.spark.pipeline.batch import BatchRun, Outputs
from headrace.spark.pipeline.ledger import Account, Totals
from headrace.spark.pipeline.places import place_of
from headrace.spark.pipeline.progress import Progress, lag_of
from headrace.spark.pipeline.spec import Pipeline
from headrace.spark.source_options import SourceSettings

POLL_S: Final = 0.2
REPORT_S: Final = 3.0  # how long Spark may take to close a batch that is done
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}

COMMIT_LOOK_S: Final = 0.005  # often: the next batch should not have begun when the query is stopped

Told = Callable[[Progress], None]


class PipelineFailed(HeadraceError):
    """The query ended with an error. What was finished is finished; run it again to go on."""


class Declined(HeadraceError):
    """A batch that came after the run was told to end. It is not noted anywhere, so the next run does it."""


def open_session(pipeline: Pipeline, *, master: str = "local[*]") -> SparkSession:
    """A Spark with the options of the pipeline: in this process, or on a master."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"headrace-{pipeline.name}").master(master)
    for word, value in {**DEFAULTS, **pipeline.spark}.items():
        builder = builder.config(word, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def check(pipeline: Pipeline) -> Address:
    """Whatever can be known without running: the source's options, the URL. Raises ConfigError."""
    settings = SourceSettings.of(pipeline.source, streaming=True)
    if settings.mode == "group":
        raise ConfigError("[source] sets mode = group, which delivers at least once: a pipeline reads offsets")
    targets = {f"route {one.name}": one.stream for one in pipeline.routes}
    for what, stream in {**targets, "[quarantine]": pipeline.quarantine}.items():
        if stream and (stream in settings.streams or _finds(settings.pattern, stream)):
            raise ConfigError(f"{what} writes to {shown(stream)}, which [source] reads: it would feed itself for ever")
    return settings.address


def check_server(pipeline: Pipeline) -> None:
    """Raise what the server or its password would fail a run with: asked once, and before Spark takes its seconds."""
    look(**source_options(pipeline, check(pipeline)))


def _finds(pattern: str | None, stream: str) -> bool:
    """Whether a pattern of the server's would find a stream."""
    return pattern is not None and fnmatchcase(stream, pattern.replace("[^", "[!"))


def source_options(pipeline: Pipeline, address: Address) -> dict[str, str]:
    """The options for Spark: the URL put together, so what it is made of is left out."""
    apart = {option.name.lower() for option in SERVER_OPTIONS} - {"redis.connecttimeout", "redis.commandtimeout"}
    kept = {word: text for word, text in pipeline.source.items() if word.lower() not in apart}
    return {**kept, "url": address.url}


class Runner:
    """One run of a pipeline. start(), then wait(); stop() from anywhere ends it after the batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        *,
        told: Told = lambda _: None,
        adopt_tables: bool = False,
        sink: str = NAME,
    ) -> None:
        self.pipeline, self._spark, self._told, self._adopt = pipeline, spark, told, adopt_tables
        place, folder = place_of(pipeline.folder, spark)
        self.outputs = Outputs(place, folder, check(pipeline), sink)
        self._query: StreamingQuery | None = None
        self._known = threading.Event()  # the query's id
        self._alone = threading.Lock()  # held while a batch runs
        self._stopping = threading.Event()
        self._declined = False  # a batch came after that
        self._error: BaseException | None = None
        self._last: Account | None = None
        self._reported = -1

    # ── life ──

    def start(self, *, once: bool = False, entries: DataFrame | None = None) -> None:
        """Start the query: `once` reads all there is and ends. `entries` replaces the source, for tests."""
        try:
            self._query = self._started(self._entries() if entries is None else entries, once=once)
        except PySparkException as error:
            raise self._failure(error) from error
        self._known.set()

    def _entries(self) -> DataFrame:
        register(self._spark)
        options = source_options(self.pipeline, self.outputs.address)
        return self._spark.readStream.format(NAME).options(**options).load()

    def _started(self, entries: DataFrame, *, once: bool) -> StreamingQuery:
        writing = entries.writeStream.queryName(self.pipeline.name).foreachBatch(self._batch_function())
        writing = writing.option("checkpointLocation", self.outputs.checkpoint)
        writing = writing.trigger(availableNow=True) if once else writing.trigger(processingTime="0 seconds")
        return writing.start()

    def wait(self) -> Totals:
        """Wait for the end, tell every batch, and answer the books of all runs. Raises what ended the query."""
        assert self._query is not None, "start() first"
        try:
            while not self._query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                self._report()
                if self._stopping.is_set():
                    self._end_after_batch()
        except PySparkException as error:
            if not self._declined:
                raise self._failure(error) from error
        self._report(final=True)
        if self._error is not None:
            raise self._failure(self._error)
        return self._totals()

    def stop(self) -> None:
        """End after the batch that runs now."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def close(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()

    # ── inside ──

    def _batch_function(self) -> Callable[[DataFrame, int], None]:
        return self._batch

    def _totals(self) -> Totals:
        return self.outputs.ledger.totals()

    def _batch(self, entries: DataFrame, number: int) -> None:
        with self._begun(number):
            self._known.wait(30)
            assert self._query is not None
            try:
                run = BatchRun(self.pipeline, self.outputs, str(self._query.id), number, adopt=self._adopt)
                self._last = run.run(entries)
            except Exception as error:
                self._error = error  # Spark hands on only its text
                raise

    @contextmanager
    def _begun(self, number: int) -> Iterator[None]:
        """Around a batch. One that comes while the query is being stopped is declined, and done by the next run.

        It must not wait for that: a query is not stopped while Spark waits for this call.
        """
        while not self._alone.acquire(timeout=0.1):
            if self._stopping.is_set():
                self._declined = True
                raise Declined(f"batch {number} is left to the next run: this one was told to end")
        try:
            yield
        finally:
            self._alone.release()

    def _end_after_batch(self) -> None:
        assert self._query is not None
        with self._alone:  # no batch runs, and none will begin before the query is stopped
            last = -1 if self._last is None else self._last.batch
            self._await_commit(last)
            self._query.stop()

    def _await_commit(self, batch: int) -> None:
        """Let Spark note that the batch is finished; a batch it did not note is only done again."""
        pause = threading.Event()
        for _ in range(int(REPORT_S / COMMIT_LOOK_S)):
            told: Any = self._query.lastProgress if self._query else None
            if told is None or int(told["batchId"]) >= batch:
                return
            pause.wait(COMMIT_LOOK_S)

    def _report(self, *, final: bool = False) -> None:
        last = self._last
        if last is None or last.batch == self._reported:
            return
        told: Any = self._query.lastProgress if self._query is not None else None
        if not final and (told is None or int(told["batchId"]) < last.batch):
            return  # Spark's own figures come a moment later
        self._reported = last.batch
        self._told(Progress.of(last, lag_of(as_dict(told))))

    def _failure(self, error: BaseException) -> HeadraceError:
        if isinstance(self._error, HeadraceError):
            return self._error
        words = gist(f"{type(self._error).__name__}: {self._error}" if self._error else str(error))
        return PipelineFailed(f"pipeline {self.pipeline.name}: {self._masked(words)}")

    def _masked(self, text: str) -> str:
        return text.replace(self.outputs.address.url, self.outputs.address.masked)


def run(pipeline: Pipeline, spark: SparkSession, *, once: bool = True, told: Told = lambda _: None) -> Totals:
    """Run a pipeline in this process: all there is, or until the process is told to end."""
    runner = Runner(pipeline, spark, told=told)
    runner.start(once=once)
    with ending_softly(runner):
        return runner.wait()


@contextmanager
def ending_softly(runner: Runner) -> Iterator[None]:
    """SIGTERM and SIGINT end after the batch; a second SIGINT at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and runner.stopping:
            raise KeyboardInterrupt
        runner.stop()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_dict(told: Any) -> dict[str, Any] | None:
    """Spark's progress: a dict, or in newer versions an object that turns into one."""
    if told is None or isinstance(told, dict):
        return told
    found: dict[str, Any] = told.jsonValue() if hasattr(told, "jsonValue") else {}
    return found


def gist(text: str) -> str:
    """The line of a long Spark error that says what happened: ours, the end of a traceback, or Java's last cause."""
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in map(str.strip, lines) if line.startswith("headrace.")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # as Py4J hands it on
    for found in (ours, _raised(lines), causes, thrown, lines[:1]):
        if found:
            return found[-1].strip()[:500]
    return "the query ended without a word"


def _raised(lines: list[str]) -> list[str]:
    """What the last traceback ends with: its first line that is not indented."""
    begins = [at for at, line in enumerate(lines) if line.strip().startswith("Traceback (most recent call last)")]
    after = lines[begins[-1] + 1 :] if begins else []
    return next(([line] for line in after if not line[0].isspace()), [])
