"""Where in a stream a query stands, and the one way to write that down.

Spark compares offsets as JSON texts: the same dict in another order is another offset, and a query that sees one never
comes to rest. So every offset is written here, sorted and complete:

    {"streams": {"orders": {"id": "1731700000000-0", "n": 4711}}, "v": 1}

A position means: everything up to and including ``id`` is behind it. ``n`` is the stream's entries-added counter at
that point, from which lag and losses follow without a scan; null where it is not known. Written only when they say
something: ``after`` (the batch that ends here starts at this id, because the stream was rewound), ``lost`` and
``unknown`` (rows lost so far, and how often their number was not to be had), ``late`` (how many of them the batch
before lost, counted only with this end), ``told`` (an id that no entry is known to have had: a user chose it, here or
by XSETID),
``group`` (the mirror group has been made) and ``pin`` (a starting point still to be pinned by an empty first batch).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError
from headrace.options import shown

VERSION = 1
ZERO = "0-0"
SEQ_LIMIT = 2**64 - 1
_ID = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", re.ASCII)

Id = tuple[int, int]


def parse_id(text: str) -> Id:
    """An id as numbers, which compare as the server compares them."""
    ms, _, seq = text.partition("-")
    return int(ms), int(seq or 0)


def show_id(number: Id) -> str:
    return f"{number[0]}-{number[1]}"


def before_ms(ms: int) -> str:
    """The last id that can exist before a point in time."""
    return show_id((ms - 1, SEQ_LIMIT)) if ms > 0 else ZERO


def check_id(text: object, name: str) -> str:
    """An id as a user writes it, "1731700000000-0" or "1731700000000", in full; else ConfigError."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) > SEQ_LIMIT or int(found[2] or 0) > SEQ_LIMIT:
        raise ConfigError(f"{name}: {shown(text)} is not an id: write it as in '1731700000000-0'")
    return f"{int(found[1])}-{int(found[2] or 0)}"


@dataclass(frozen=True, slots=True)
class Position:
    """A point in one stream."""

    id: str
    n: int | None = None
    after: str | None = None
    lost: int = 0
    unknown: int = 0
    told: bool = False
    late: int = 0

    @property
    def number(self) -> Id:
        return parse_id(self.id)

    def at(self, id_: str, n: int | None, *, told: bool = False) -> Position:
        """Further on, with the losses counted so far."""
        return replace(self, id=id_, n=n, after=None, told=told)

    def carried(self) -> Position:
        """As the next batch finds it: without what is about the one that ended here."""
        return replace(self, after=None, late=0)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {} if self.after is None else {"after": self.after}
        told["id"] = self.id
        if self.late:
            told["late"] = self.late
        if self.lost:
            told["lost"] = self.lost
        told["n"] = self.n
        if self.told:
            told["told"] = True
        if self.unknown:
            told["unknown"] = self.unknown
        return told


START = Position(ZERO)
"""The beginning of a stream, whatever is there."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A point in all streams of a query."""

    streams: Mapping[str, Position]
    pin: bool = False
    group: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The dict that Spark turns into text. Same content, same text."""
        told: dict[str, Any] = {} if self.group is None else {"group": self.group}
        if self.pin:
            told["pin"] = True
        told["streams"] = {key: self.streams[key].as_json() for key in sorted(self.streams)}
        told["v"] = VERSION
        return told


def read_offset(told: Mapping[str, Any]) -> Offset:
    """Read what a checkpoint holds. Raises ConfigError for one that is not ours."""
    try:
        if told["v"] != VERSION:
            raise ConfigError(
                f"the checkpoint's offset has version {shown(told['v'])}, this is version {VERSION}: "
                "use the release of headrace that wrote it, or a new checkpoint"
            )
        streams = {key: _position(about) for key, about in told["streams"].items()}
        return Offset(streams, bool(told.get("pin")), told.get("group"))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"the checkpoint's offset {shown(json.dumps(told))} was not written by this source in this mode: "
            "use a new checkpoint"
        ) from None


def _position(about: Mapping[str, Any]) -> Position:
    lost, unknown, late = (about.get(word, 0) for word in ("lost", "unknown", "late"))
    return Position(about["id"], about.get("n"), about.get("after"), lost, unknown, bool(about.get("told")), late)
