"""Tables about the queue itself, for batch reads: ``option("table", "pending")`` and its siblings.

    groups        one row a group: how much is left, out and waiting
    pending       one row a delivery: who has it, for how long, which attempt; and those that wait, why and until when
    owners        one row an owner: what it holds, when it was last seen
    dead-letters  one row a buried message: the original fields, and why, when, who and how often

They show the moment of the read, page by page; a queue at work moves meanwhile. With ``groupId`` only that group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import CommandRefused, ConfigError, NoGroup
from headrace.names import Keys, is_group, waiting_group
from headrace.redis import commands
from headrace.redis.calls import Call, as_is, text
from headrace.redis.letters import Letter, open_letter
from headrace.redis.replies import GroupInfo
from headrace.redis.synclink import SyncLink
from headrace.spark.keyspace import find_streams, known_keys
from headrace.spark.plan import Share
from headrace.spark.source_options import SourceSettings

PAGE: Final = 500
ALONE: Final = 10**15  # added once or twice to the due time of what must run alone (due.lua)
LAST_MS: Final = 253_402_300_799_999  # the last one of the year 9999
_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
T = TypeVar("T")
Row = dict[str, Any]


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])


_TEXT, _LONG, _INT, _TIME = StringType(), LongType(), IntegerType(), TimestampType()
_SCHEMAS: Final[dict[str, StructType]] = {
    "groups": _table(
        stream=_TEXT, group=_TEXT, owners=_INT, lag=_LONG, pending=_LONG, waiting=_LONG, last_id=_TEXT
    ),
    "pending": _table(
        stream=_TEXT, group=_TEXT, id=_TEXT, state=_TEXT, owner=_TEXT, why=_TEXT, idle_ms=_LONG, attempts=_LONG,
        due=_TIME,
    ),
    "owners": _table(
        stream=_TEXT, group=_TEXT, owner=_TEXT, pending=_LONG, idle_ms=_LONG, lease_ms=_LONG, seen=_TIME, host=_TEXT,
        pid=_LONG,
    ),
    "dead-letters": _table(
        stream=_TEXT, id=_TEXT, original_id=_TEXT, group=_TEXT, owner=_TEXT, attempts=_LONG, error=_TEXT, reason=_TEXT,
        added=_TIME, buried=_TIME, fields=MapType(_TEXT, BinaryType(), True),
    ),
}  # fmt: skip


def schema_of(table: str) -> StructType:
    return _SCHEMAS[table]


class TableReader(DataSourceReader):
    """One task, which asks the server page by page."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        assert settings.table is not None
        self._settings = settings
        self._table = settings.table
        if schema.simpleString() != schema_of(self._table).simpleString():
            raise ConfigError(f"table {self._table} has its own columns: leave the schema out")

    def partitions(self) -> Sequence[InputPartition]:
        return [Share(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        link = self._settings.address.server().sync_link("headrace-spark-table")
        arrow = to_arrow_schema(schema_of(self._table), timezone="UTC")
        try:
            for keys in known_keys(find_streams(link, self._settings), self._settings):
                for rows in _READ[self._table](link, keys, self._settings):
                    if rows:
                        yield pa.RecordBatch.from_pylist(rows, schema=arrow)
        finally:
            link.close()


# ── what each table asks ─────────────────────────────────────────────────────────────────────────────


def _groups(link: SyncLink, keys: Keys, settings: SourceSettings) -> Iterator[list[Row]]:
    every = _all_groups(link, keys)
    rows = []
    for group in _chosen(every, settings.group):
        waits = every.get(waiting_group(group.name))
        rows.append(
            {
                "stream": keys.stream,
                "group": group.name,
                "owners": group.owners,
                "lag": group.lag,
                "pending": group.pending,
                "waiting": waits.pending if waits else 0,
                "last_id": group.last_id,
            }
        )
    yield rows


def _pending(link: SyncLink, keys: Keys, settings: SourceSettings) -> Iterator[list[Row]]:
    every = _all_groups(link, keys)
    for group in _chosen(every, settings.group):
        for page in _pages(link, keys, group.name):
            yield [_delivered(keys, group.name, row) for row in page]
        if waiting_group(group.name) in every:
            for page in _pages(link, keys, waiting_group(group.name)):
                scores = link.call(Call(("ZMSCORE", keys.due(group.name), *(row.id for row in page)), as_is))
                yield [_waits(keys, group.name, row, due) for row, due in zip(page, scores, strict=True)]


def _delivered(keys: Keys, group: str, row: Any) -> Row:
    return {
        "stream": keys.stream,
        "group": group,
        "id": row.id,
        "state": "delivered",
        "owner": row.owner,
        "idle_ms": row.idle_ms,
        "attempts": row.count,
    }


def _waits(keys: Keys, group: str, row: Any, due: bytes | None) -> Row:
    """In the waiting group the owner's name says why an entry waits."""
    about = {**_delivered(keys, group, row), "state": "waiting", "owner": None, "why": row.owner}
    return {**about, "due": _time(float(due) % ALONE) if due is not None else None}


def _owners(link: SyncLink, keys: Keys, settings: SourceSettings) -> Iterator[list[Row]]:
    for group in _chosen(_all_groups(link, keys), settings.group):
        known = {owner.name: owner for owner in link.call(commands.owners(keys, group.name))}
        rows = []
        try:
            consumers = link.call(commands.consumers(keys, group.name))
        except NoGroup:  # gone meanwhile, or its name is no text
            continue
        for consumer in consumers:
            row: Row = {"stream": keys.stream, "group": group.name, "owner": consumer.name}
            row |= {"pending": consumer.pending, "idle_ms": consumer.idle_ms}
            if (owner := known.get(consumer.name)) is not None:
                row |= {"lease_ms": owner.lease_ms, "seen": _time(owner.seen_ms)}
                host, pid = owner.about.get("host"), owner.about.get("pid")
                row |= {"host": None if host is None else str(host), "pid": _number(str(pid))}
            rows.append(row)
        yield rows


def _dead_letters(link: SyncLink, keys: Keys, settings: SourceSettings) -> Iterator[list[Row]]:
    start = "-"
    while page := link.call(commands.entries(keys.dead_letters, start, count=PAGE)):
        opened = ((text(id_), open_letter(fields, settings.prefix), fields) for id_, fields in page)
        rows = (_letter(keys, id_, letter, fields) for id_, letter, fields in opened)
        yield [row for row in rows if settings.group in (None, row["group"])]
        start = "(" + text(page[-1][0])


def _letter(keys: Keys, id_: str, letter: Letter | None, fields: list[bytes]) -> Row:
    """One that Headrace did not write is shown with its fields alone."""
    row: Row = {
        "stream": keys.stream,
        "id": id_,
        "group": None,
        "fields": _pairs(letter.original if letter else fields),
    }
    if letter is None:
        return row
    told = {name: text(value) for name, value in letter.about.items()}
    row |= {name: told.get(name) for name in ("original_id", "group", "owner", "error", "reason")}
    row |= {"attempts": _number(told.get("attempts"))}
    return row | {"added": _time(_number(told.get("first_ms"))), "buried": _time(_number(told.get("last_ms")))}


_READ: Final[dict[str, Callable[[SyncLink, Keys, SourceSettings], Iterator[list[Row]]]]] = {
    "groups": _groups,
    "pending": _pending,
    "owners": _owners,
    "dead-letters": _dead_letters,
}


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────


def _all_groups(link: SyncLink, keys: Keys) -> dict[str, GroupInfo]:
    try:
        return {group.name: group for group in link.call(commands.groups(keys))}
    except CommandRefused as error:
        if "no such key" not in str(error):
            raise
        return {}


def _chosen(groups: dict[str, GroupInfo], only: str | None) -> list[GroupInfo]:
    plain = [
        group for name, group in sorted(groups.items()) if is_group(name)
    ]  # nor can others' odd names be asked for
    return [group for group in plain if only is None or group.name == only]


def _pages(link: SyncLink, keys: Keys, group: str) -> Iterator[list[Any]]:
    start = "-"
    while True:
        try:
            page = link.call(commands.pending_rows(keys, group, PAGE, start=start))
        except NoGroup:  # gone meanwhile
            return
        if not page:
            return
        yield page
        start = "(" + page[-1].id


def _time(ms: float | None) -> datetime | None:
    """A time; None for one that no calendar has, which somebody else wrote."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms is not None and 0 <= ms <= LAST_MS else None


def _number(told: str | None) -> int | None:
    return int(told) if told is not None and _NUMBER.fullmatch(told) else None


def _pairs(fields: list[bytes]) -> list[tuple[str, bytes]]:
    names = (name.decode("utf-8", "replace") for name in fields[::2])
    return list(zip(names, fields[1::2], strict=True))
