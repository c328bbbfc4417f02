"""The mirror group: shows a query's progress where every tool looks for it, and keeps trimming away from unread rows.

Nobody reads through this group. After a batch it is set to the position of the query, with the count of entries read
(Redis 7+), so that its lag is the query's. A group that has gone says that the stream was deleted and made again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from headrace.errors import BusyGroup, ConfigError, HeadraceError, NoGroup
from headrace.options import shown
from headrace.redis.calls import Call, Script, Wire, as_is, nothing, text
from headrace.redis.synclink import SyncLink
from headrace.spark.offsets import Position
from headrace.spark.state import in_parts

AT_ONCE: Final = 250
NO_KEY: Final = "requires the key to exist"  # what the server says of a stream that is not there


@functools.cache
def script(name: str) -> Script:
    """One file of the lua folder beside this one."""
    lua = resources.files("headrace.spark").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, lua, hashlib.sha1(lua.encode(), usedforsecurity=False).hexdigest())


def trim_read(key: str, id_: str) -> Call[int]:
    """Remove what every group has finished, up to an id that stays."""
    return Call((1, key, id_), int, script("trim_read"))


class Mirror:
    """The group of one query in all its streams."""

    def __init__(self, group: str, on_commit: str) -> None:
        self._group = group
        self._trims = on_commit == "trim"
        self._shown: dict[str, Position] = {}
        self._made: set[str] = set()

    def make(self, link: SyncLink, positions: Mapping[str, Position]) -> None:
        """Make the group in streams that are there. One that others read through is refused."""
        for some in in_parts([key for key in positions if key not in self._made], AT_ONCE):
            calls = [self._create(key, positions[key]) for key in some]
            for key, reply in zip(some, link.pipe(calls), strict=True):
                if isinstance(reply, BusyGroup):
                    self._check_unused(link, key)
                elif isinstance(reply, HeadraceError):
                    if NO_KEY not in str(reply):
                        raise reply
                    continue
                self._made.add(key)

    def publish(self, link: SyncLink, positions: Mapping[str, Position]) -> list[str]:
        """Set the group to positions that are committed, and trim if that is wanted. Answers where it has gone."""
        changed = [key for key, position in positions.items() if self._shown.get(key) != position]
        gone: list[str] = []
        for some in in_parts(changed, AT_ONCE):
            replies = link.pipe([self._set(key, positions[key]) for key in some])
            gone += _missing(some, replies)
            if self._trims:
                there = [key for key in some if key not in gone]
                for reply in link.pipe([trim_read(key, positions[key].id) for key in there]):
                    if isinstance(reply, HeadraceError):
                        raise reply
        self._shown.update((key, positions[key]) for key in changed if key not in gone)
        self._made.difference_update(gone)
        return gone

    def _create(self, key: str, position: Position) -> Call[None]:
        return Call(("XGROUP", "CREATE", key, self._group, position.id, *_read(position)), nothing)

    def _set(self, key: str, position: Position) -> Call[None]:
        return Call(("XGROUP", "SETID", key, self._group, position.id, *_read(position)), nothing)

    def _check_unused(self, link: SyncLink, key: str) -> None:
        rows: list[Any] = link.call(Call(("XINFO", "GROUPS", key), as_is))
        for row in rows:
            group = dict(zip(row[::2], row[1::2], strict=True))
            if text(group[b"name"]) == self._group and group[b"consumers"]:
                raise ConfigError(
                    f"group {shown(self._group)} of {shown(key)} has consumers: moving it would take messages from"
                    " them. Give groupId a name of its own, or share the work with mode group"
                )


def _read(position: Position) -> tuple[Wire, ...]:
    """The count, where there is one. 0 is that of a stream that was not there when the query began: at a beginning the
    server knows the lag by itself, and Redis 6.2, which does not count, refuses the word."""
    return ("ENTRIESREAD", position.n) if position.n else ()


def _missing(keys: Sequence[str], replies: Sequence[Any]) -> list[str]:
    """The streams without the group, or that are no more. Any other error raises."""
    gone = []
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, NoGroup) or (isinstance(reply, HeadraceError) and NO_KEY in str(reply)):
            gone.append(key)
        elif isinstance(reply, HeadraceError):
            raise reply
    return gone
