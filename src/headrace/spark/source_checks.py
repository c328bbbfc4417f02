"""Which options of the source do not go together, and which do nothing where they stand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.names import stream_of_partition
from headrace.options import shown

ONLY_OFFSETS: Final = {
    "endingOffsets": "a group hands out what is due and new: remove it",
    "startingTimestamp": "a group that is made now begins at startingOffsets: give earliest, latest or ids",
    "endingTimestamp": "a group hands out what is due and new: remove it",
    "minOffsetsPerTrigger": "a group hands out what there is: remove it",
    "maxTriggerDelay": "a group hands out what there is: remove it",
    "maxSpanPerTrigger": "bound a batch with maxOffsetsPerTrigger",
    "onCommit": "a batch is acknowledged when it is committed: remove it",
    "parser": "messages are read by their ids: remove it",
    "table": "a table about the queue is a batch read in mode offsets: remove mode",
}
"""Options that mode group would ignore, and what to do instead."""

ONLY_STREAMS: Final = frozenset(
    {
        "groupId",
        "onCommit",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxSpanPerTrigger",
        "blockMs",
        "patternInterval",
    }
)
"""Options that a batch read has no use for."""

NOT_OF_TABLES: Final = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "failOnDataLoss")
"""Options that choose rows of streams: beside a table they would choose nothing."""

ONLY_ROWS: Final = frozenset({"minPartitions", "maxRecordsPerPartition", "fetchBytes", "parser", "retryTimeout"})
"""Options about how rows of streams are read, which a table has no use for."""

log = logging.getLogger("headrace.spark")


def check_together(given: Mapping[str, Any], named: Mapping[str, str], streaming: bool | None) -> None:
    """Refuse what cannot go together, naming both. ``named`` is what the user wrote; ``streaming`` None: not known."""
    if bool(given["streams"]) == bool(given["streamsPattern"]):
        raise ConfigError("give either streams or streamsPattern, and not both")
    for first, second in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if given[first] is not None and given[second] is not None:
            raise ConfigError(f"{first} and {second} say the same twice: remove one")
    if given["endingOffsets"] == "earliest":
        raise ConfigError("endingOffsets is earliest, which reads nothing: give latest or ids")
    if given["onCommit"] in ("setid", "trim") and given["groupId"] is None:
        raise ConfigError(f"onCommit {given['onCommit']} needs groupId: the group that shows what has been read")
    if given["mode"] == "group" and given["groupId"] is None:
        raise ConfigError("mode group needs groupId: the group whose work is shared")
    if streaming is not None:
        _check_kind(given, streaming)
    _check_named(given)
    _check_mode(given, named)
    if given["table"]:
        _check_table(given["table"], named)
    if streaming is False:
        _warn_of_unused(given["table"], named)


def _check_mode(given: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Refuse what the mode would ignore: a word that does nothing is a mistake somebody will look for."""
    if given["mode"] == "group":
        for name in named:
            if name in ONLY_OFFSETS:
                raise ConfigError(f"{name} does nothing in mode group: {ONLY_OFFSETS[name]}")
        return
    for name in named:
        only_group = name in ("lease", "maxAttempts") or (name == "prefix" and given["table"] != "dead-letters")
        if only_group:
            raise ConfigError(f"{name} is for mode group: remove it, or set mode to group")


def _check_kind(given: Mapping[str, Any], streaming: bool) -> None:
    """Refuse what only the other kind of read has."""
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "table"):
            if given[name] is not None:
                raise ConfigError(f"{name} is for batch reads: remove it, or use spark.read")
    else:
        if given["startingOffsets"] == "latest":
            raise ConfigError("startingOffsets is latest, and a batch read would be empty: give earliest or ids")
        if given["mode"] == "group":
            raise ConfigError("mode group is for streaming queries: use spark.readStream, or mode offsets")
        if given["onCommit"] == "trim":
            raise ConfigError(
                "onCommit is trim, and a batch read trims nothing, because nobody tells it what was written: remove it,"
                " or use spark.readStream"
            )


def _check_table(table: str, named: Mapping[str, str]) -> None:
    """Refuse what would be taken for a choice of rows."""
    for name in named:
        if name in NOT_OF_TABLES:
            raise ConfigError(f"{name} does nothing for table {table}, which shows all there is: remove it")


def _warn_of_unused(table: str | None, named: Mapping[str, str]) -> None:
    """Limits of a stream change no row of a batch read, and a stream and a batch often share their options: said, and
    not refused."""
    unused = ONLY_STREAMS if table is None else (ONLY_STREAMS | ONLY_ROWS) - {"groupId"}
    if found := sorted(unused & named.keys()):
        log.warning("spark.unused options=%s: they do nothing in this batch read", ",".join(found))


def _check_named(given: Mapping[str, Any]) -> None:
    """Ids must be for streams that are read: a misspelt one would be read from elsewhere in silence.

    A partition may be named instead of its stream; whether there is one is asked later, of the server (told.py).
    """
    if not given["streams"]:
        return
    for name in ("startingOffsets", "endingOffsets"):
        if isinstance(given[name], dict):
            streams = set(given["streams"])
            strangers = {word for word in given[name] if not streams & {word, stream_of_partition(word)}}
            missing = streams - given[name].keys() - {stream_of_partition(word) for word in given[name]}
            if strangers:
                raise ConfigError(f"{name} names {shown(min(strangers))}, which streams does not")
            if missing:
                raise ConfigError(f"{name} says nothing about {shown(min(missing))}: give every stream its id")
