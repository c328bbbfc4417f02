"""An assignment: an announcement in the hands of one owner, and the data stream it names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import DecodeError, EncodeError
from headrace.fields import find_field
from headrace.names import check_stream
from headrace.options import shown

NAME_FIELD: Final = "stream"  # which data stream is announced
INFO_FIELD: Final = "info"  # what its owner should know, as JSON
INFO_LIMIT: Final = 1_000_000  # bytes: it travels with every takeover
RELEASED: Final = "released-"  # mark of what waits because its handler returned: how often in a row follows


@dataclass(frozen=True, slots=True)
class Assignment:
    """``count`` is how often it was given to somebody: with the id it is the token of the take (take.lua)."""

    id: bytes
    fields: list[bytes]
    count: int
    former: str = ""  # who had it before, if its lease ended
    level: int = 0  # how often in a row a handler has returned it without progress

    @property
    def name(self) -> str:
        """The data stream. Raises DecodeError or NameRefused: an announcement that nobody can own."""
        raw = find_field(self.fields, NAME_FIELD.encode())
        if raw is None:
            raise DecodeError(f"announcement {self.id.decode()} has no field {NAME_FIELD!r}: use announce()")
        return check_stream(raw.decode("utf-8", "surrogateescape"))

    @property
    def info(self) -> Any:
        """What announce() was given. Raises DecodeError."""
        return read_info(find_field(self.fields, INFO_FIELD.encode()) or b"{}")


def level_of(mark: str) -> int:
    """How often in a row it was returned, from the mark it waited under."""
    level = mark.removeprefix(RELEASED)
    return int(level) if mark.startswith(RELEASED) and level.isdigit() else 0


def write_info(info: object) -> bytes:
    """Raises EncodeError."""
    try:
        raw = json.dumps({} if info is None else info, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"info {shown(info)} is not JSON ({error}): give a dict of texts and numbers") from error
    if len(raw) > INFO_LIMIT:
        raise EncodeError(f"info has {len(raw):,} bytes, at most {INFO_LIMIT:,} are allowed: put it into the stream")
    return raw


def read_info(raw: bytes) -> Any:
    """Raises DecodeError."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:  # too deep for Python is no JSON for anybody here
        raise DecodeError(f"info {shown(raw)} is not JSON: {error}") from error
