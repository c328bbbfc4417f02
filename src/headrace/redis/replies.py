"""What scripts and commands answer, one small tuple each. Times are in milliseconds, ids are text."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, NamedTuple

from headrace.errors import OwnerTaken
from headrace.options import printable
from headrace.redis.calls import Entry, Rescued, Waited, text

EPOCH_MS: Final = 10**12  # an idle time like this is the age of the epoch: XNACK left no time


def _idle(ms: int) -> int:
    """Idle time of what somebody gave back with XNACK is -1 or the age of the epoch: call it 0."""
    return ms if 0 <= ms < EPOCH_MS else 0


def owner_entry(raw: bytes) -> dict[str, Any]:
    """What an owner entered about itself (join.lua); {} if there is nothing, or nothing of ours."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict) or not all(_is_ms(entry.get(word)) for word in ("seen_ms", "lease_ms")):
        return {}
    return entry


def _is_ms(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _texts(raws: list[bytes]) -> list[str]:
    return [text(raw) for raw in raws]


def _ms(number: int) -> int | None:
    return None if number < 0 else number


class Added(NamedTuple):
    id: str
    first: bool  # False: the key was known, and this is the id it had been added under

    @classmethod
    def new(cls, reply: bytes) -> Added:
        return cls(reply.decode(), True)

    @classmethod
    def of(cls, reply: list[Any]) -> Added:
        return cls(reply[0].decode(), reply[1] == 1)


class Renewed(NamedTuple):
    """One chunk of renewals by owner."""

    start: str  # of the next chunk; "": that was all
    renewed: int
    trimmed: list[str]

    @classmethod
    def of(cls, reply: list[Any]) -> Renewed:
        return cls(reply[0].decode(), reply[1], _texts(reply[2]))


class Rescue(NamedTuple):
    """One step of the scan."""

    taken: list[Rescued]
    trimmed: list[str]
    cursor: str  # "-": the scan has come round
    late: bool  # came after its deadline and did nothing
    server_ms: int

    @classmethod
    def of(cls, reply: list[Any]) -> Rescue:
        cursor, rows, trimmed, server_ms = reply
        taken = [(id_, fields, int(count), _idle(ms), text(former)) for id_, fields, count, ms, former in rows]
        return cls(taken, _texts(trimmed), cursor.decode(), cursor == b"late", server_ms)


class TakenOver(NamedTuple):
    """What XREADGROUP CLAIM brought: idle ones first, then new ones."""

    entries: list[Entry]
    late: bool  # came after its deadline and did nothing
    server_ms: int

    @classmethod
    def of(cls, reply: list[Any]) -> TakenOver:
        """With CLAIM each entry also tells its idle time and its count before this delivery."""
        word, rows, server_ms = reply
        entries = [(id_, fields, int(count) + 1, _idle(ms)) for id_, fields, ms, count in rows if fields is not None]
        return cls(entries, word == b"late", server_ms)


class Mine(NamedTuple):
    taken: list[Entry]
    trimmed: list[str]

    @classmethod
    def of(cls, reply: list[Any]) -> Mine:
        return cls([(id_, fields, int(count), 0) for id_, fields, count in reply[0]], _texts(reply[1]))


class Due(NamedTuple):
    taken: list[Waited]
    trimmed: list[str]
    next_ms: int | None  # until the next one that need not run alone
    dropped: int  # ids in the due set that waited nowhere any more
    regrouped: bool  # the waiting group had vanished: what it held was handed out as attempt 1

    @classmethod
    def of(cls, reply: list[Any]) -> Due:
        rows, trimmed, next_ms, dropped, vanished = reply
        taken = [(id_, fields, int(count), late_ms, text(mark)) for id_, fields, count, late_ms, mark in rows]
        return cls(taken, _texts(trimmed), _ms(next_ms), dropped, vanished == 1)


class TakenBatch(NamedTuple):
    """One page of a batch for Spark in one stream."""

    before: bool  # claimed earlier: nothing was taken now
    taken: int
    new: int  # of those taken
    last_id: str  # the group's; known where nothing was taken, as are the two below
    next_ms: int | None  # until something is due
    alone: bool  # something that must run alone is due

    @classmethod
    def of(cls, reply: list[Any]) -> TakenBatch:
        word, taken, new, last_id, next_ms, alone = reply
        return cls(word == b"before", taken, new, text(last_id), _ms(next_ms), alone == 1)


class Look(NamedTuple):
    """How long until something is due; 0 now, None nothing waits."""

    next_ms: int | None
    alone_ms: int | None  # the same for those that must run alone

    @classmethod
    def of(cls, reply: list[int]) -> Look:
        return cls(_ms(reply[0]), _ms(reply[1]))


class Adopted(NamedTuple):
    seen: int  # fewer than the chunk: that was all
    kept: int  # started, so they keep their count
    given_back: int
    trimmed: list[str]

    @classmethod
    def of(cls, reply: list[Any]) -> Adopted:
        return cls(reply[0], reply[1], reply[2], _texts(reply[3]))


class Replayed(NamedTuple):
    kind: Literal["same", "copy", "gone", "pending", "trimmed", "foreign"]
    id: str = ""

    @classmethod
    def of(cls, reply: bytes) -> Replayed:
        kind, _, id_ = reply.decode().partition(" ")
        return cls(kind, id_)  # type: ignore[arg-type]  # replay.lua says no other


class Move(NamedTuple):
    """What became of one message that was to be requeued."""

    kind: Literal["requeued", "buried", "alive", "fresh", "gone", "trimmed", "kept", "unsure", "taken"]
    id: str = ""  # of the copy or the dead letter
    holder: str = ""
    count: int = 0  # type: ignore[assignment]  # tuple.count is nobody's word here

    @classmethod
    def of(cls, raw: bytes) -> Move:
        kind, _, rest = text(raw).partition(" ")
        if kind == "taken":
            holder, _, count = rest.rpartition(" ")
            return cls("taken", holder=holder, count=int(count))
        return cls(kind, rest)  # type: ignore[arg-type]  # requeue.lua says no other


class Moves(NamedTuple):
    late: bool  # came after its deadline and did nothing
    server_ms: int
    moves: list[Move]

    @classmethod
    def of(cls, reply: list[Any]) -> Moves:
        if reply[0] == b"late":
            return cls(True, 0, [])
        return cls(False, reply[0], [Move.of(raw) for raw in reply[1:]])


class Removal(NamedTuple):
    kind: Literal["removed", "gone", "fresh", "pending"]
    number: int = 0  # fresh: idle for so many ms; pending: holds so many

    @classmethod
    def of(cls, reply: bytes) -> Removal:
        kind, _, number = reply.decode().partition(" ")
        return cls(kind, int(number or 0))  # type: ignore[arg-type]  # remove_owner.lua says no other


class Joined(NamedTuple):
    ok: bool
    holder: dict[str, Any]  # who had the name before; {} nobody
    lease_ms: int  # longest lease of the live owners, this one included
    server_ms: int

    @classmethod
    def of(cls, reply: list[Any]) -> Joined:
        word, entry, lease_ms, server_ms = reply
        return cls(word == b"ok", owner_entry(entry), lease_ms, server_ms)

    def taken(self, owner: str) -> OwnerTaken:
        """The error to raise when the name is in use (SPEC 2)."""
        return OwnerTaken(owner=owner, holder=_shown(self.holder))


class Stayed(NamedTuple):
    mine: bool
    missing: bool  # the entry is gone (and with it nobody else's): join again
    lease_ms: int  # longest lease of the live owners; 0 nobody is there
    server_ms: int

    @classmethod
    def of(cls, reply: list[int]) -> Stayed:
        state, lease_ms, server_ms = reply
        return cls(state != 0, state < 0, lease_ms, server_ms)

    def taken(self, owner: str) -> OwnerTaken:
        return OwnerTaken(owner=owner)


class Regrouped(NamedTuple):
    kind: Literal["there", "made", "unknown"]
    start: str = ""

    @classmethod
    def of(cls, reply: list[bytes]) -> Regrouped:
        return cls(reply[0].decode(), reply[1].decode())  # type: ignore[arg-type]  # regroup.lua says no other


class Pulled(NamedTuple):
    kind: Literal["even", "pulled", "refused", "ahead"]
    before: str = ""
    after: str = ""

    @classmethod
    def of(cls, reply: list[bytes]) -> Pulled:
        return cls(*(word.decode() for word in reply))  # type: ignore[arg-type]  # pull_back.lua says no other


class Levels(NamedTuple):
    lag: int
    lag_exact: bool  # False: at least so many
    pending: int
    waiting: int
    parked: int  # until replayed: no work for anybody
    oldest_idle_ms: int  # among the lowest ids

    @classmethod
    def of(cls, reply: list[int]) -> Levels:
        lag, exact, *others = reply
        return cls(lag, exact == 1, *others)

    @property
    def backlog(self) -> int:
        """What an autoscaler goes by (DESIGN 8, SPEC 59)."""
        return self.lag + self.pending + self.waiting


class Pending(NamedTuple):
    total: int
    lowest: str
    highest: str
    owners: dict[str, int]  # owner -> how many it holds; in a waiting group: mark -> how many wait so


class PendingRow(NamedTuple):
    id: str
    owner: str
    idle_ms: int
    count: int  # type: ignore[assignment]  # tuple.count is nobody's word here


class GroupInfo(NamedTuple):
    name: str
    owners: int
    pending: int
    last_id: str
    lag: int | None  # None: the server does not know


class ConsumerInfo(NamedTuple):
    name: str
    pending: int
    idle_ms: int


class StreamInfo(NamedTuple):
    length: int
    groups: int
    first_id: str  # "": empty
    last_id: str  # ever generated


class OwnerInfo(NamedTuple):
    """An owner as it entered itself (join.lua). ``about`` holds host, pid and whatever else it told."""

    name: str
    lease_ms: int
    seen_ms: int
    about: dict[str, Any]


def _shown(holder: dict[str, Any]) -> str:
    known = [f"{name} {printable(str(holder[name])[:100])}" for name in ("host", "pid") if name in holder]
    seen = f"last seen at {holder['seen_ms']} ms of the server's clock" if "seen_ms" in holder else ""
    return ", ".join([*known, *([seen] if seen else [])])
