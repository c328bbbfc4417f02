"""Typed calls for assignments: streams owned whole, in order, by one owner at a time (SPEC 42 to 45).

Two slots take part. The announcement stream's slot says who was given what (pending list, beats, names); the data
stream's slot says who may acknowledge and up to where (the ownership hash, described in take.lua). What each script
promises stands in the header of its file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from headrace.names import Keys, keys_of
from headrace.redis.calls import Call, Wire, Word, flat, load, nothing, parse_word, text

NAME_FIELD: Final = "stream"  # of an announcement: which data stream it names
INFO_FIELD: Final = "info"
LEASELESS: Final = 3  # an owner without a lease is dead when idle for so many of mine

_ANNOUNCE = load("announce")
_TAKE = load("take")
_BEGIN = load("begin")
_POS_ACK = load("pos_ack")
_SET_ASIDE = load("set_aside")
_GIVE_UP = load("give_up")
_FINISH = load("finish")
_FINISHED = load("finished")
_FORGET = load("forget")
_TRIMMED = load("trimmed")
_RAISE = load("raise")
_BEAT = load("beat")
_INHERIT = load("inherit")
_EXPIRED = load("expired")
_CLAIM = load("claim")

# ── what they answer ─────────────────────────────────────────────────────────────────────────────────


class Announced(NamedTuple):
    id: str
    new: bool  # False: the name was announced before and is not finished; nothing was added

    @classmethod
    def of(cls, reply: list[Any]) -> Announced:
        return cls(reply[0].decode(), reply[1] == 1)


class Gap(NamedTuple):
    """Messages of an owned stream that were trimmed or deleted before anybody read them."""

    messages: int
    after: str
    before: str

    @classmethod
    def of(cls, reply: bytes) -> Gap | None:
        if not reply:
            return None
        messages, after, before = text(reply).split()
        return cls(int(messages), after, before)


class Trimmed(NamedTuple):
    sure: bool  # False: it cannot be told just now, or not at all
    noted: int  # since it was told the last time
    gone: int  # since the stream was first owned, as it seems
    doubtful: int  # of those not noted
    before: str

    @classmethod
    def of(cls, reply: list[Any]) -> Trimmed:
        sure, noted, gone, doubtful, before = reply
        return cls(sure == 1, noted, gone, doubtful, text(before))


class Take(NamedTuple):
    kind: Literal["ok", "done", "stale", "newer"]
    epoch: int = 0
    position: str = ""
    tries: int = 0  # handler starts since the last progress
    read: int = 0  # messages acknowledged up to the position, by all owners
    gap: Gap | None = None  # what was trimmed behind the position
    count: int = 0  # type: ignore[assignment]  # stale, newer: it was taken with
    holder: str = ""

    @classmethod
    def of(cls, reply: list[Any]) -> Take:
        kind = reply[0].decode()
        if kind == "ok":
            return cls("ok", reply[1], text(reply[2]), reply[3], reply[4], Gap.of(reply[5]))
        if kind == "done":
            return cls("done")
        return cls(kind, count=int(reply[2]), holder=text(reply[3]))


class Tries(NamedTuple):
    """What begin and give_up answer."""

    ok: bool
    tries: int = 0
    holder: str = ""

    @classmethod
    def of(cls, reply: list[Any]) -> Tries:
        return cls(True, reply[1]) if reply[0] == b"ok" else cls(False, holder=text(reply[1]))


class PositionWord(NamedTuple):
    """What pos_ack and set_aside answer."""

    kind: Literal["ok", "old", "trimmed", "taken"]
    holder: str = ""

    @classmethod
    def of(cls, reply: bytes) -> PositionWord:
        kind = reply.partition(b" ")[0]
        if kind != b"taken":
            return cls(kind.decode())  # type: ignore[arg-type]  # the scripts say no other
        return cls("taken", text(reply.removeprefix(b"taken ").rpartition(b" ")[0]))


class Beat(NamedTuple):
    alive: bool  # False: the lease had ended, and heirs may have taken some
    owners: int
    there: int  # assignments announced and not finished
    mine: int
    server_ms: int

    @classmethod
    def of(cls, reply: list[int]) -> Beat:
        return cls(reply[0] == 1, *reply[1:])

    @property
    def share(self) -> int:
        """How many each of the live owners would have if all had the same."""
        return -(-self.there // max(1, self.owners))


Left = tuple[bytes, list[bytes], int, str]
"""(id, fields, count, owner) of an assignment whose owner's lease has ended."""


class Inherited(NamedTuple):
    server_ms: int
    late: bool  # came after its deadline and did nothing
    taken: list[Left]
    trimmed: list[str]

    @classmethod
    def of(cls, reply: list[Any]) -> Inherited:
        server_ms, late, rows, trimmed = reply
        return cls(server_ms, late == 1, _left(rows), [text(id_) for id_ in trimmed])


class Told(NamedTuple):
    server_ms: int
    left: list[Left]

    @classmethod
    def of(cls, reply: list[Any]) -> Told:
        return cls(reply[0], _left(reply[1]))


class Claimed(NamedTuple):
    kind: Literal["ok", "mine", "taken", "unsure", "free", "gone"]
    id: bytes = b""
    fields: Sequence[bytes] = ()
    count: int = 0  # type: ignore[assignment]  # tuple.count is nobody's word here
    holder: str = ""  # ok: who had it; taken, unsure: who has it

    @classmethod
    def of(cls, reply: list[Any]) -> Claimed:
        kind = reply[0].decode()
        if kind == "ok":
            return cls("ok", reply[1], reply[2], int(reply[3]), text(reply[4]))
        if kind == "mine":
            return cls("mine", reply[1])
        return cls(kind, holder=text(reply[1]) if len(reply) > 1 else "")


class Standing(NamedTuple):
    """The ownership hash of one data stream, for looking."""

    owner: str = ""
    epoch: int = 0
    position: str = ""
    tries: int = 0

    @classmethod
    def of(cls, reply: list[bytes | None]) -> Standing:
        owner, epoch, position, tries = reply
        return cls(text(owner or b""), int(epoch or 0), text(position or b""), int(tries or 0))


def _left(rows: list[Any]) -> list[Left]:
    return [(id_, fields, int(count), text(owner)) for id_, fields, count, owner in rows]


# ── the announcement stream's slot ───────────────────────────────────────────────────────────────────


def announce(keys: Keys, name: str, info: bytes) -> Call[Announced]:
    """Name a data stream, once while it is not finished (SPEC 42)."""
    return Call((2, keys.stream, keys.names, name, info, NAME_FIELD, INFO_FIELD), Announced.of, _ANNOUNCE)


def finished(keys: Keys, group: str, owner: str, id_: bytes, count: int, name: str) -> Call[Word]:
    """End an announcement whose data stream is marked done."""
    return Call((2, keys.stream, keys.names, group, owner, id_, count, name), parse_word, _FINISHED)


def forget(keys: Keys, dead_letter: str, name: bytes, original_id: str) -> Call[int]:
    """Delete the dead letter of an announcement, and free its name."""
    where = (keys.stream, keys.names, keys.dead_letters)
    return Call((3, *where, dead_letter, name, original_id), int, _FORGET)


def lift(keys: Keys, group: str, owner: str, id_: bytes, count: int, to: int) -> Call[Word]:
    """Set the count of an assignment that I hold above one seen in the data slot (raise.lua)."""
    return Call((1, keys.stream, group, owner, id_, count, to), parse_word, _RAISE)


def beat(keys: Keys, group: str, owner: str, lease_ms: int, *, leaving: bool = False) -> Call[Beat]:
    """Renew an owner's lease on all it owns (SPEC 45), or with a lease of 0 only hear how things are.

    ``leaving``: it takes nothing more, so the others share without it.
    """
    where = (keys.stream, keys.beats(group), keys.names, keys.due(group))
    words = (*where, group, owner, lease_ms, "leaving" if leaving else "")
    return Call((4, *words), Beat.of, _BEAT)


def renew_lease(keys: Keys, group: str, owner: str, lease_ms: int) -> Call[Beat]:
    """Renew the lease of a process that cannot just now. One that has ended stays ended: its owner must hear so."""
    where = (keys.stream, keys.beats(group), keys.names, keys.due(group))
    return Call((4, *where, group, owner, lease_ms, "renew"), Beat.of, _BEAT)


def end_lease(keys: Keys, group: str, owner: str) -> Call[None]:
    """End an owner's lease now: heirs take what it still holds at once, and forget it when nothing is left."""
    return Call(("ZADD", keys.beats(group), "XX", 0, owner), nothing)


def inherit(
    keys: Keys, group: str, owner: str, limit: int, lease_ms: int, deadline_ms: int = 0, *, certain: bool = False
) -> Call[Inherited]:
    """Take what owners whose lease has ended left. After ``deadline_ms``, server time, it does nothing (SPEC 20).

    ``certain``: only of those that have said so themselves, or whose parent has: safe while leases cannot be trusted.
    """
    words = (group, owner, limit, LEASELESS * lease_ms, deadline_ms, "certain" if certain else "")
    return Call((2, keys.stream, keys.beats(group), *words), Inherited.of, _INHERIT)


def expired(keys: Keys, group: str, owner: str, limit: int, lease_ms: int) -> Call[Told]:
    """The same, only told."""
    return Call((2, keys.stream, keys.beats(group), group, owner, limit, LEASELESS * lease_ms), Told.of, _EXPIRED)


def claim(
    keys: Keys,
    group: str,
    owner: str,
    name: str,
    lease_ms: int,
    *,
    id_: bytes | str = "",
    count: int | None = None,
    until_ms: int | None = None,
) -> Call[Claimed]:
    """Take one of them. With an id and a count only if nobody has taken it since (SPEC 44).

    After ``until_ms``, server time, only what an owner, or its parent, has given up by a word (SPEC 20).
    """
    told: Wire = "" if count is None else count
    until: Wire = "" if until_ms is None else until_ms
    words = (keys.stream, keys.beats(group), keys.names, group, owner, name, id_, told, LEASELESS * lease_ms, until)
    return Call((3, *words), Claimed.of, _CLAIM)


def id_of(keys: Keys, name: str) -> Call[str]:
    """The announcement a name stands for; "" if there is none."""
    return Call(("HGET", keys.names, name), _text_or_none)


def _text_or_none(reply: bytes | None) -> str:
    return text(reply or b"")


def announced_names(keys: Keys) -> Call[dict[str, str]]:
    """All names that are announced and not finished, with the ids of their announcements."""
    return Call(("HGETALL", keys.names), _pairs)


def _pairs(reply: list[bytes]) -> dict[str, str]:
    return {text(name): text(id_) for name, id_ in zip(reply[::2], reply[1::2], strict=True)}


# ── the data stream's slot ───────────────────────────────────────────────────────────────────────────


class Place(NamedTuple):
    """One data stream as one group of an announcement stream owns it."""

    data: str
    own: str  # its ownership hash
    mirror: str  # the group on it that shows the position to others


def take(
    place: Place, id_: bytes, count: int, owner: str, *, how: Literal["", "afresh", "force"] = "", start: str = "0"
) -> Call[Take]:
    """Become the owner of a data stream, and hear from where to go on (SPEC 43b).

    "afresh": forget the tries; "force": also if a later announcement seems to have been taken. ``start``: where a
    stream begins that this group never owned, an id or "$".
    """
    begin = start if start == "$" or "-" in start else f"{start}-0"
    words = (place.data, place.own, id_, count, owner, place.mirror, how, begin)
    return Call((2, *words), Take.of, _TAKE)


def begin(place: Place, owner: str, epoch: int, tries: int) -> Call[Tries]:
    """Note that a handler gets a message, for the so-manieth time since the last progress: the first message since the
    take, or any where each start counts."""
    return Call((2, place.data, place.own, owner, epoch, place.mirror, tries), Tries.of, _BEGIN)


def pos_ack(
    place: Place, owner: str, epoch: int, id_: bytes, messages: int, *, begins: bool = False
) -> Call[PositionWord]:
    """Acknowledge everything up to an id: so many messages since the last ack.

    ``begins``: the next message gets a handler as soon as this is answered; its try is noted in the same step.
    """
    words = (place.data, place.own, owner, epoch, id_, messages, place.mirror, int(begins))
    return Call((2, *words), PositionWord.of, _POS_ACK)


def set_aside(
    place: Place,
    owner: str,
    epoch: int,
    id_: bytes,
    messages: int,
    *,
    extra: Mapping[str, Wire],
    maxlen: int = 0,
    prefix: str = "_",
) -> Call[PositionWord]:
    """The same, with the last of these messages to the dead letters of its stream."""
    keys = (place.data, place.own, keys_of(place.data).dead_letters)
    words = (owner, epoch, id_, messages, place.mirror, maxlen, prefix)
    return Call((3, *keys, *words, *flat(extra.items())), PositionWord.of, _SET_ASIDE)


def trimmed(
    place: Place, owner: str, epoch: int, read: tuple[bytes, int], acked: tuple[bytes, int], *, most: int | None = None
) -> Call[Trimmed]:
    """Count what was trimmed or deleted before this owner could read it.

    ``read`` and ``acked``: the last id of each kind, and how many messages up to there, by all owners. ``most``: so
    many may be noted as gone; None: no more than are.
    """
    words = (place.data, place.own, owner, epoch, *read, place.mirror, "" if most is None else most, *acked)
    return Call((2, *words), Trimmed.of, _TRIMMED)


def give_up(place: Place, owner: str, epoch: int, change: Literal[-1, 0, 1] = 0) -> Call[Tries]:
    """Give a data stream up; ``change`` is added to its tries."""
    return Call((2, place.data, place.own, owner, epoch, place.mirror, change), Tries.of, _GIVE_UP)


def finish(
    place: Place, owner: str, epoch: int, id_: bytes, *, delete: bool = True, remember_s: int = 86_400
) -> Call[PositionWord]:
    """Mark a data stream done, and delete it if wanted. Then end the announcement."""
    words = (place.data, place.own, owner, epoch, id_, place.mirror, "del" if delete else "keep", remember_s)
    return Call((2, *words), PositionWord.of, _FINISH)


def standing(place: Place) -> Call[Standing]:
    return Call(("HMGET", place.own, "owner", "epoch", "pos", "tries"), Standing.of)


# ── reading data streams ─────────────────────────────────────────────────────────────────────────────

Entries = dict[bytes, list[tuple[bytes, list[bytes]]]]
"""stream -> entries as (id, fields)."""


def read_after(after: Sequence[tuple[str, bytes]], count: int, block_ms: int = 0) -> Call[Entries]:
    """What follows an id, of each stream. ``block_ms`` 0: at once. In a cluster all must be in one slot."""
    words: list[Wire] = ["XREAD", "COUNT", count]
    if block_ms > 0:  # BLOCK 0 would be for ever
        words += ("BLOCK", block_ms)
    words.append("STREAMS")
    words += (stream for stream, _ in after)
    words += (id_ for _, id_ in after)
    return Call(tuple(words), _entries)


def _entries(reply: list[Any] | None) -> Entries:
    return {stream: [(id_, fields) for id_, fields in rows] for stream, rows in reply or ()}
