"""Where a new query starts: earliest, latest, ids or a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors import ConfigError
from headrace.redis import commands
from headrace.redis.calls import Call, as_is, text
from headrace.redis.synclink import SyncLink
from headrace.spark.offsets import START, ZERO, Offset, Position, before_ms, parse_id
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import in_parts, states
from headrace.spark.told import starting_ids

AT_ONCE = 250


def first_offset(link: SyncLink, settings: SourceSettings, keys: Sequence[str]) -> Offset:
    """The initial offset. What depends on the moment is marked: an empty first batch writes it down for good,
    because Spark asks for the initial offset more than once, and again after a restart."""
    if settings.starting_ms is not None:
        return Offset(_at_time(link, keys, settings.starting_ms), pin=True)
    told = starting_ids(settings, keys)
    if told is not None:
        return Offset(_at_ids(link, {key: told.get(key, ZERO) for key in keys}))
    if settings.starting == "earliest":
        return Offset(dict.fromkeys(keys, START))
    found = states(link, keys)
    # Of a stream that is not there yet nothing has been added: a count of zero, not an unknown one.
    latest = {
        key: Position(state.last_id, state.added if state.exists else 0, told=not state.ends_in_entry)
        for key, state in found.items()
    }
    return Offset(latest, pin=True)


def _at_time(link: SyncLink, keys: Sequence[str], ms: int) -> dict[str, Position]:
    """The last entry before a time, which is there and can be a witness; the beginning where there is none."""
    if ms > link.call(commands.server_ms()):
        raise ConfigError(
            "startingTimestamp lies in the future: give latest as startingOffsets, and filter by timestamp"
        )
    return _last_up_to(link, dict.fromkeys(keys, before_ms(ms)))


def _at_ids(link: SyncLink, told: Mapping[str, str]) -> dict[str, Position]:
    """Ids that a user chose, by the last entry up to each, from which the same rows follow and which can be a witness.
    An id before all entries or behind them stays as it is."""
    entries, found = _last_up_to(link, told), states(link, list(told))
    kept = {key for key, id_ in told.items() if entries[key] is START or found[key].last < parse_id(id_)}
    return {key: Position(id_, told=id_ != ZERO) if key in kept else entries[key] for key, id_ in told.items()}


def _last_up_to(link: SyncLink, bounds: Mapping[str, str]) -> dict[str, Position]:
    """The last entry up to an id of each stream; the beginning where there is none."""
    found: dict[str, Position] = {}
    for some in in_parts(bounds, AT_ONCE):
        calls = [Call(("XREVRANGE", key, bounds[key], "-", "COUNT", 1), as_is) for key in some]
        for key, reply in zip(some, link.pipe(calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            found[key] = Position(text(reply[0][0])) if reply else START
    return found
