"""Which streams there are: those that were named, or those that a pattern finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

from headrace.errors import ConfigError, NameRefused
from headrace.names import Keys, keys_of
from headrace.options import shown
from headrace.partitions import Partitions
from headrace.redis import commands
from headrace.redis.calls import Call, as_is
from headrace.redis.synclink import SyncLink
from headrace.spark.source_options import STREAMS_LIMIT, SourceSettings

SCAN_COUNT: Final = 2_000

log = logging.getLogger("headrace.spark")


class Asking(Protocol):
    """A link of whatever kind."""

    def call(self, call: Call[Any]) -> Any: ...


def find_streams(link: SyncLink, settings: SourceSettings) -> tuple[str, ...]:
    """The keys to read, sorted. A partitioned stream stands for its partitions."""
    if settings.pattern is None:
        return tuple(name for stream in settings.streams for name in _parts(link, stream))
    found: set[bytes] = set()
    for node in link.masters():
        cursor: Any = None
        while cursor != b"0":
            words = ("SCAN", cursor or b"0", "MATCH", settings.pattern, "COUNT", SCAN_COUNT, "TYPE", "stream")
            cursor, keys = link.call(Call(words, as_is, at=node))
            found.update(keys)
            if len(found) > STREAMS_LIMIT:
                raise ConfigError(f"streamsPattern finds more than {STREAMS_LIMIT:,} streams: make it narrower")
    return tuple(sorted(map(_as_name, found)))


def known_keys(streams: Iterable[str], settings: SourceSettings, told: set[str] | None = None) -> list[Keys]:
    """The keys beside streams. One that a pattern found is left out if none can be made from its name; that is said,
    unless it was ``told`` before. One that was named itself is refused."""
    if settings.pattern is None:
        return [keys_of(stream) for stream in streams]
    found, told = [], set() if told is None else told
    for stream in streams:
        try:
            found.append(keys_of(stream))
        except NameRefused as error:
            if stream not in told:
                log.warning("spark.skipped stream=%s error=%s", shown(stream), error)
            told.add(stream)
    return found


def _parts(link: SyncLink, stream: str) -> tuple[str, ...]:
    count = partition_count(link, stream)
    return (stream,) if count is None else Partitions(stream, count).names


def partition_count(link: Asking, stream: str) -> int | None:
    """Into how many partitions a stream is cut; None if it is not, or cannot be because of its name."""
    try:
        key = keys_of(stream).partitions
    except NameRefused:
        return None
    (count,) = link.call(commands.values([key]))
    return None if count is None else int(count)


def _as_name(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"streamsPattern finds the key {key!r}, whose name is not UTF-8: make it narrower") from None


class Streams:
    """The keys of a running query. A pattern is looked up anew at intervals; a key once found stays."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._keys: set[str] = set()
        self._looked_at = 0.0

    def now(self, link: SyncLink, *, afresh: bool = False) -> list[str]:
        due = (
            self._settings.pattern is not None
            and time.monotonic() - self._looked_at >= self._settings.pattern_ms / 1000
        )
        if afresh or due or not self._keys:
            self._keys.update(find_streams(link, self._settings))
            self._looked_at = time.monotonic()
        return sorted(self._keys)
