"""What a pipeline is, as values: made from a TOML file by read_toml() or in Python by these classes. The same object.

name = "payments"
folder = "data/payments"           # checkpoint, tables and ledger live below it
[source]                           # options of the source redis-streams
[decode]                           # payload to columns
[[validate]]                       # rules; a row that breaks one is quarantined with their names
[deduplicate]                      # one row a key, the same one on every replay
[enrich.<column>]                  # further columns
[[route]]                          # rows that also go to a stream
[[aggregate]]                      # windows, recomputed from the table
[table] [quarantine] [spark]
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from headrace.errors import ConfigError
from headrace.names import check_stream
from headrace.options import DURATION_LIMIT_MS, did_you_mean, shown, whole_number
from headrace.spark.pipeline.expressions import check_expression
from headrace.spark.pipeline.naming import check_pipeline

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)
COLUMN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}", re.ASCII)
RESERVED: Final = frozenset({"query", "batch"})  # partition columns of a table
_TYPE: Final = re.compile(
    r"string|boolean|tinyint|smallint|int|bigint|float|double|date|timestamp|binary"
    r"|decimal\(\s*[0-9]{1,2}\s*,\s*[0-9]{1,2}\s*\)|array<(?:string|int|bigint|double)>",
    re.ASCII,
)
# Options of Spark a file may set: sizes and counts, nothing that loads or runs code.
SPARK_OPTIONS: Final = frozenset(
    {
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.memory",
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.maxExecutors",
        "spark.dynamicAllocation.minExecutors",
        "spark.memory.fraction",
        "spark.python.unix.domain.socket.enabled",
        "spark.python.worker.reuse",
        "spark.scheduler.mode",
        "spark.speculation",
        "spark.sql.adaptive.enabled",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.files.maxRecordsPerFile",
        "spark.sql.parquet.compression.codec",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.minBatchesToRetain",
        "spark.task.maxFailures",
        "spark.ui.enabled",
        "spark.ui.port",
    }
)

SPARK_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/-]{0,99}", re.ASCII)

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: Final[tuple[Mode, ...]] = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


def _check_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{what} {shown(name)}: use small letters, digits, - and _, at most 64, a letter first")
    return name


def check_column(name: object, what: str) -> str:
    if not isinstance(name, str) or not COLUMN.fullmatch(name) or name.lower() in RESERVED:
        raise ConfigError(f"{what} {shown(name)}: use letters, digits and _, a letter first, and not query or batch")
    return name


@dataclass(frozen=True, slots=True)
class Decode:
    """Turns an entry into columns: a JSON payload, or the entry's own fields."""

    columns: dict[str, Any]  # name -> Spark type, as text
    format: Literal["json", "fields"] = "json"
    field: str = "payload"  # the field that holds the JSON
    mode: Mode = "PERMISSIVE"  # quarantine with payload; DROPMALFORMED: without; FAILFAST: stop
    required: tuple[str, ...] = ()  # columns that must not be null

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfigError('decode.columns is empty: write what a row has, such as amount = "decimal(12,2)"')
        for name, kind in self.columns.items():
            check_column(name, "decode.columns has the name")
            if not isinstance(kind, str) or not _TYPE.fullmatch(kind.strip().lower()):
                raise ConfigError(f"decode.columns.{name} is {shown(kind)}: give a type such as string, bigint, double")
        if self.format not in ("json", "fields"):
            raise ConfigError(f"decode.format is {shown(self.format)}: {did_you_mean(self.format, ('json', 'fields'))}")
        field: object = self.field
        if not isinstance(field, str) or not field:
            raise ConfigError(f"decode.field is {shown(field)}: name the field that holds the payload, in quotes")
        if self.mode not in MODES:
            raise ConfigError(f"decode.mode is {shown(self.mode)}: {did_you_mean(self.mode, MODES)}")
        for name in self.required:
            if name not in self.columns:
                raise ConfigError(f"decode.required names {shown(name)}: {did_you_mean(name, self.columns)}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition every row must meet; null counts as broken."""

    name: str
    rule: str

    def __post_init__(self) -> None:
        _check_name(self.name, "a rule of [[validate]] has the name")
        check_expression(self.rule, name=f"rule {self.name}")


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """One row a key within the window, the one that asked first, and the same one on every replay."""

    key: str  # an expression
    window_ms: int = 86_400_000
    by: Literal["redis", "spark"] = "redis"

    def __post_init__(self) -> None:
        check_expression(self.key, name="deduplicate.key")
        if not 1_000 <= self.window_ms <= DURATION_LIMIT_MS:
            raise ConfigError("deduplicate.window is shorter than a second: give one such as '24h'")
        if self.by not in ("redis", "spark"):
            raise ConfigError(f"deduplicate.by is {shown(self.by)}: {did_you_mean(self.by, ('redis', 'spark'))}")


@dataclass(frozen=True, slots=True)
class Enrich:
    """One more column: an expression, a tier of a number, or the part of the day of a time."""

    name: str
    expression: str = ""
    tier_of: str = ""  # column; below each of `edges`, in turn, one of `labels`, which has one more
    edges: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    part_of_day_of: str = ""  # column: night, morning, afternoon, evening

    def __post_init__(self) -> None:
        check_column(self.name, "enrich has the column")
        given = [word for word in ("expression", "tier_of", "part_of_day_of") if getattr(self, word)]
        if len(given) != 1:
            raise ConfigError(f"enrich.{self.name}: give one of expression, tier_of and part_of_day_of")
        if self.expression:
            check_expression(self.expression, name=f"enrich.{self.name}.expression")
        rising = all(map(math.isfinite, self.edges)) and list(self.edges) == sorted(set(self.edges))
        if self.tier_of and not (self.edges and rising):
            raise ConfigError(f"enrich.{self.name}.edges: give numbers in rising order")
        if self.labels and len(self.labels) != len(self.edges) + 1:
            raise ConfigError(f"enrich.{self.name}.labels: give one more than edges, {len(self.edges) + 1}")


@dataclass(frozen=True, slots=True)
class Route:
    """Rows that also go to a stream, through the sink, exactly once."""

    name: str
    when: str
    stream: str
    columns: tuple[str, ...] = ()  # none: all of the table
    maxlen: int = 0  # 0: the stream is not trimmed

    def __post_init__(self) -> None:
        _check_name(self.name, "a [[route]] has the name")
        check_expression(self.when, name=f"route {self.name}.when")
        check_stream(self.stream)
        for column in self.columns:
            check_column(column, f"route {self.name}.columns has")
        whole_number(self.maxlen, name=f"route {self.name}.maxlen", least=0, most=10**15)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Windows of time, and in each, for each group: count, rate and percentiles of a column."""

    name: str
    time: str  # column
    window_ms: int
    by: tuple[str, ...] = ()
    of: str = ""  # column whose sum, smallest, largest and percentiles are wanted
    percentiles: tuple[float, ...] = (0.5, 0.95, 0.99)

    def __post_init__(self) -> None:
        _check_name(self.name, "an [[aggregate]] has the name")
        for column in (self.time, *self.by, *([self.of] if self.of else [])):
            check_column(column, f"aggregate {self.name} has the column")
        if not 1_000 <= self.window_ms <= 366 * 86_400_000:
            raise ConfigError(f"aggregate {self.name}.window: give 1s to 366d")
        if not all(0 < share < 1 for share in self.percentiles):
            raise ConfigError(f"aggregate {self.name}.percentiles: give numbers between 0 and 1, such as 0.95")

    @property
    def share_names(self) -> tuple[str, ...]:
        """The columns of the percentiles: p50, p99_9."""
        return tuple(f"p{share * 100:g}".replace(".", "_") for share in self.percentiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A whole pipeline. `folder` holds everything it writes: checkpoint, tables, ledger."""

    name: str
    folder: str
    source: dict[str, str] = field(repr=False)  # options of redis-streams; may hold a URL with its password
    decode: Decode
    validate: tuple[Rule, ...] = ()
    deduplicate: Deduplicate | None = None
    enrich: tuple[Enrich, ...] = ()
    routes: tuple[Route, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    table: str = ""  # default: the pipeline's name
    quarantine: str = ""  # a stream beside the table: the quarantined rows as they came
    spark: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(self.name, "the pipeline has the name")
        if not str(self.folder).strip():
            raise ConfigError("folder is empty: say where checkpoint, tables and ledger go, such as 'data/payments'")
        if not str(self.folder).isprintable():
            raise ConfigError(f"folder {shown(self.folder)} holds a control or an invisible character: remove it")
        if self.table:
            _check_name(self.table, "the table has the name")
        if self.quarantine:
            check_stream(self.quarantine)
        for word in self.spark:
            if word not in SPARK_OPTIONS:
                raise ConfigError(
                    f"[spark] may not set {shown(word)}: {did_you_mean(word, SPARK_OPTIONS)}; "
                    "anything else belongs on the command line of whoever runs Spark"
                )
            if not SPARK_VALUE.fullmatch(self.spark[word]):
                raise ConfigError(f"[spark] {word} is {shown(self.spark[word])}: give a number, a size or one word")
        check_pipeline(self)

    @property
    def table_name(self) -> str:
        return self.table or self.name
