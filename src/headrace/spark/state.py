"""What a stream says about itself, as far as the source needs it: XINFO STREAM, and whether one entry is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from headrace.errors import CommandRefused, HeadraceError, WrongType
from headrace.options import shown
from headrace.redis.calls import Call, as_is, nothing, text
from headrace.redis.synclink import SyncLink
from headrace.spark.offsets import ZERO, Id, parse_id
from headrace.spark.pace import Pace, weight

AT_ONCE: Final = 250  # streams in one write, at most
ANSWER_BYTES: Final = 1 << 22  # that answers about many streams are steered to: they carry whole entries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """XINFO STREAM. ``added`` and ``max_deleted`` are None before Redis 7."""

    length: int = 0
    last_id: str = ZERO
    first_id: str | None = None
    final_id: str | None = None  # of the last entry that is there
    added: int | None = None
    max_deleted: str | None = None
    exists: bool = True

    @property
    def last(self) -> Id:
        return parse_id(self.last_id)

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever removed from it."""
        return self.added is not None and self.added == self.length

    @property
    def ends_in_entry(self) -> bool:
        """Whether an entry had the last id. XSETID makes it one that none had; only where older entries are left can
        that be told from one that was trimmed, and from one that was deleted by the highest id ever deleted."""
        if not self.length or self.max_deleted is None:
            return True
        return self.final_id == self.last_id or parse_id(self.max_deleted) >= self.last


ABSENT: Final = State(exists=False)


@dataclass(frozen=True, slots=True)
class Look:
    """One moment of a stream, seen from a position: is its entry there, and which is the next one?"""

    state: State
    at_start: bool
    next_id: str | None


def states(link: SyncLink, keys: Sequence[str]) -> dict[str, State]:
    """The state of many streams."""
    found: dict[str, State] = {}
    pace = Pace(ANSWER_BYTES, most=AT_ONCE)
    for some in pace.parts(keys):
        replies = link.pipe([Call(("XINFO", "STREAM", key), as_is) for key in some])
        pace.learn(len(some), weight(replies))
        found.update((key, _state(key, reply)) for key, reply in zip(some, replies, strict=True))
    return found


def looks(link: SyncLink, starts: dict[str, str]) -> dict[str, Look]:
    """Look at many streams, each from its position, each in one transaction."""
    found: dict[str, Look] = {}
    pace = Pace(ANSWER_BYTES, most=AT_ONCE)
    for some in pace.parts(starts):
        calls: list[Call[Any]] = []
        for key in some:
            calls += look_calls(key, starts[key])
        replies = link.pipe(calls)
        for at, key in enumerate(some):
            mine = replies[at * LOOK_LENGTH : (at + 1) * LOOK_LENGTH]
            found[key] = read_look(key, mine)[0]
        # A look brings the entries at both ends of the stream, and those at both sides of the position.
        pace.learn(len(some), sum(2 * weight(reply[1:]) for reply in replies[LOOK_LENGTH - 1 :: LOOK_LENGTH]))
    return found


LOOK_LENGTH: Final = 5


def look_calls(key: str, start: str, upto: str = "+", count: int = 1) -> list[Call[Any]]:
    """The calls of one look; their replies go to read_look(). The last range is the beginning of what is to be read."""
    return [
        Call(("MULTI",), nothing),
        Call(("XINFO", "STREAM", key), nothing),
        Call(("XRANGE", key, start, start), nothing),
        Call(("XRANGE", key, f"({start}", upto, "COUNT", count), nothing),
        Call(("EXEC",), as_is),
    ]


def read_look(key: str, replies: Sequence[Any]) -> tuple[Look, list[Any]]:
    """The look, and the entries that follow the position."""
    for reply in replies:
        if isinstance(reply, HeadraceError):
            raise _named(key, reply)
    info, at_start, following = replies[-1]
    state = _state(key, info)
    if not state.exists:
        return Look(state, False, None), []
    next_id = text(following[0][0]) if following else None
    return Look(state, bool(at_start), next_id), following


def _state(key: str, reply: Any) -> State:
    if isinstance(reply, Exception):
        if "no such key" in str(reply).lower():
            return ABSENT
        if "WRONGTYPE" in str(reply):
            raise WrongType(f"{shown(key)} is not a stream: the key holds something else")
        raise _named(key, reply)
    row = dict(zip(reply[::2], reply[1::2], strict=True))
    first, final, deleted = row[b"first-entry"], row[b"last-entry"], row.get(b"max-deleted-entry-id")
    return State(
        length=row[b"length"],
        last_id=text(row[b"last-generated-id"]),
        first_id=text(first[0]) if first else None,
        final_id=text(final[0]) if final else None,
        added=row.get(b"entries-added"),
        max_deleted=text(deleted) if deleted is not None else None,
    )


def _named(key: str, error: Exception) -> Exception:
    if isinstance(error, HeadraceError):
        return error
    return CommandRefused(f"{shown(key)}: {error}")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
