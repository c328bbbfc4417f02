"""The options of the source, and the settings made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from headrace.errors import ConfigError
from headrace.names import check_group, check_stream
from headrace.options import shown
from headrace.spark.offsets import check_id
from headrace.spark.options import (
    SERVER_OPTIONS,
    Address,
    Option,
    OptionTable,
    address_of,
    as_ms,
    as_size,
    as_text,
    as_truth,
    one_of,
    whole,
)
from headrace.spark.source_checks import check_together

MANY: Final = 10**12
STREAMS_LIMIT: Final = 100_000
TABLES: Final = ("pending", "owners", "groups", "dead-letters")

Where = Literal["earliest", "latest"] | Mapping[str, str]
"""A starting or ending point: a word, or an id for each stream."""


# ── how texts are read ───────────────────────────────────────────────────────────────────────────────


def _as_streams(text: str, name: str) -> tuple[str, ...]:
    """Keys, comma separated; a JSON list where a key holds a comma."""
    if text.lstrip().startswith("["):
        told = _json(text, name)
        keys = told if all(isinstance(key, str) for key in told) else []
    else:
        keys = [key.strip() for key in text.split(",")]
    if not keys or not all(keys):
        raise ConfigError(f"{name} is {shown(text)}: give stream names, separated by commas")
    if len(keys) > STREAMS_LIMIT:
        raise ConfigError(f"{name} names {len(keys):,} streams: at most {STREAMS_LIMIT:,} are allowed")
    return tuple(sorted(set(keys)))


def _as_where(text: str, name: str) -> Where:
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    told = _json(text, name)
    if not isinstance(told, dict):
        raise ConfigError(f'{name} is {shown(text)}: give earliest, latest or {{"stream": "id"}}')
    return {key: check_id(id_, f"{name} of {shown(key)}") for key, id_ in sorted(told.items())}


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigError(f"{name} is {shown(text)}, which is neither a word it knows nor JSON") from None


def _as_time(text: str, name: str) -> int:
    """A point in time in ms: a number of ms, or ISO 8601, in UTC unless it says otherwise."""
    told = text.strip()
    if told.isascii() and told.isdigit() and len(told) <= 15:
        return int(told)
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        raise ConfigError(f"{name} is {shown(text)}: give ms since 1970 or ISO 8601, as 2026-01-31T12:00:00Z") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at.year < 1970:
        raise ConfigError(f"{name} lies before 1970: give earliest as startingOffsets instead")
    return round(at.timestamp() * 1000)


def _as_group(text: str, name: str) -> str:
    del name
    return check_group(text)


# ── the table ────────────────────────────────────────────────────────────────────────────────────────

SOURCE_OPTIONS: Final = OptionTable(
    "the redis-streams source",
    (
        *SERVER_OPTIONS,
        Option("streams", "the streams to read, separated by commas; a partitioned one means all its partitions",
               _as_streams, None, ("subscribe",)),
        Option("streamsPattern", "a glob instead, as `orders:*`; keys that appear later are read from their beginning",
               as_text, None, ("subscribePattern",)),
        Option("patternInterval", "how often the pattern is looked up", as_ms, "10s"),
        Option("startingOffsets", "`earliest`, `latest`, or JSON `{stream: id}`, which means: after this id; that of a"
               " partitioned stream is for all its partitions, each of which may be named by itself."
               " A query with a checkpoint goes on from there instead. Default: `latest`, in a batch read `earliest`",
               _as_where),
        Option("endingOffsets", "batch only: `latest`, or JSON `{stream: id}`, which is read up to this id", _as_where),
        Option("startingTimestamp", "start with the first message of this time: ms or ISO 8601", _as_time),
        Option("endingTimestamp", "batch only: end before the first message of this time", _as_time),
        Option("maxOffsetsPerTrigger", "at most so many rows a batch; small backlogs are taken whole, the rest is"
               " shared in equal parts; streams take turns if there is not one row for each", whole(1, MANY), "500000"),
        Option("minOffsetsPerTrigger", "wait until there are so many, or maxTriggerDelay has passed", whole(1, MANY)),
        Option("maxTriggerDelay", "how long minOffsetsPerTrigger may hold rows back", as_ms, "15m"),
        Option("maxSpanPerTrigger", "at most so much time of each stream a batch", as_ms),
        Option("minPartitions", "at least so many tasks, if there are that many rows. Default: one per 50,000 rows,"
               " at most 8", whole(1, 100_000)),
        Option("maxRecordsPerPartition", "at most so many rows a task", whole(1, MANY)),
        Option("fetchBytes", "the size of one answer of the server that reading steers to", as_size, "4MB"),
        Option("failOnDataLoss", "fail when rows were trimmed or deleted before they were read; else go on and count",
               as_truth, "true"),
        Option("groupId", "a consumer group that shows the query's progress to every tool; in group mode the group to"
               " share work in", _as_group),
        Option("onCommit", "what a finished batch does: `none`, `setid` moves the group, `trim` also removes what every"
               " group has read, and is refused in batch reads. Default: `setid` with groupId",
               one_of("none", "setid", "trim")),
        Option("mode", "`offsets` reads ranges; `group` shares the work with plain workers of the group",
               one_of("offsets", "group"), "offsets"),
        Option("lease", "group mode: the lease of the group's workers", as_ms, "10s"),
        Option("maxAttempts", "group mode: deliveries tried so often are buried", whole(1, 1_000_000), "5"),
        Option("prefix", "group mode and table dead-letters: what the group's workers put before the names of fields"
               " they add", as_text, "_"),
        Option("blockMs", "how long the driver waits inside the server for new messages, in ms", whole(0, 60_000),
               "500"),
        Option("retryTimeout", "how long a running query tries to reach a server that has gone", as_ms, "30s"),
        Option("table", "batch only: a table about the queue itself: `pending`, `owners`, `groups`, `dead-letters`",
               one_of(*TABLES)),
        Option("parser", "`fast` reads answers with numpy and falls back by itself; `plain` never tries",
               one_of("fast", "plain"), "fast"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What the options say, checked against each other. Pickles: Spark sends it to its executors."""

    address: Address
    streams: tuple[str, ...]
    pattern: str | None
    pattern_ms: int
    starting: Where | None
    ending: Where | None
    starting_ms: int | None
    ending_ms: int | None
    max_rows: int
    min_rows: int | None
    max_delay_ms: int
    max_span_ms: int | None
    min_partitions: int | None
    max_partition_rows: int | None
    fetch_bytes: int
    fail_on_loss: bool
    group: str | None
    on_commit: str
    mode: str
    lease_ms: int
    max_attempts: int
    prefix: str
    block_ms: int
    retry_ms: int
    table: str | None
    fast: bool

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool | None) -> SourceSettings:
        """Read and check the options. ``streaming`` None: not known yet, as when Spark asks for the schema."""
        given = SOURCE_OPTIONS.read(options)
        check_together(given, SOURCE_OPTIONS.named(options), streaming)
        if given["mode"] == "group" or given["table"]:  # there keys are derived from the names
            for key in given["streams"] or ():
                check_stream(key)
        return cls(
            address=address_of(given),
            streams=given["streams"] or (),
            pattern=given["streamsPattern"],
            pattern_ms=given["patternInterval"],
            starting=given["startingOffsets"],
            ending=given["endingOffsets"],
            starting_ms=given["startingTimestamp"],
            ending_ms=given["endingTimestamp"],
            max_rows=given["maxOffsetsPerTrigger"],
            min_rows=given["minOffsetsPerTrigger"],
            max_delay_ms=given["maxTriggerDelay"],
            max_span_ms=given["maxSpanPerTrigger"],
            min_partitions=given["minPartitions"],
            max_partition_rows=given["maxRecordsPerPartition"],
            fetch_bytes=given["fetchBytes"],
            fail_on_loss=given["failOnDataLoss"],
            group=given["groupId"],
            on_commit=given["onCommit"] or ("setid" if given["groupId"] else "none"),
            mode=given["mode"],
            lease_ms=given["lease"],
            max_attempts=given["maxAttempts"],
            prefix=given["prefix"],
            block_ms=given["blockMs"],
            retry_ms=given["retryTimeout"],
            table=given["table"],
            fast=given["parser"] == "fast",
        )
