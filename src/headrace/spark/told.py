"""Which keys the ids of startingOffsets and endingOffsets are for.

A partitioned stream is one name to the user and several keys to the reader. Its id stands for all its partitions;
one that is named itself has the id that stands beside its own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors import ConfigError
from headrace.names import stream_of_partition
from headrace.options import shown
from headrace.spark.source_options import SourceSettings


def starting_ids(settings: SourceSettings, keys: Sequence[str]) -> dict[str, str] | None:
    """After which id each key is read; None if startingOffsets names none. A key that is left out has no id here."""
    return _ids(settings, "startingOffsets", settings.starting, keys)


def ending_ids(settings: SourceSettings, keys: Sequence[str]) -> dict[str, str] | None:
    """The last id of each key that is read; None if endingOffsets names none."""
    return _ids(settings, "endingOffsets", settings.ending, keys)


def _ids(settings: SourceSettings, option: str, told: object, keys: Sequence[str]) -> dict[str, str] | None:
    if not isinstance(told, Mapping):
        return None
    names = {key: next((name for name in (key, stream_of_partition(key)) if name in told), None) for key in keys}
    if settings.pattern is None:  # what a pattern finds cannot be known when the ids are written
        _check(option, told, names)
    return {key: told[name] for key, name in names.items() if name is not None}


def _check(option: str, told: Mapping[str, str], names: Mapping[str, str | None]) -> None:
    """Only the server says which partitions there are, so the options alone could not be checked to the end."""
    known = {name for key in names for name in (key, stream_of_partition(key))}
    strangers = [name for name in told if name not in known]
    if strangers:
        raise ConfigError(f"{option} names {shown(min(strangers))}, which is not a partition of a stream that is read")
    missing = [key for key, name in names.items() if name is None]
    if missing:
        raise ConfigError(
            f"{option} says nothing about {shown(min(missing))}: give it an id, or its stream, for all its partitions"
        )
