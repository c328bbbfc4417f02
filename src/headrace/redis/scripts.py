"""One typed call per script of lua/. What each promises stands in the header of its file.

A delivery is named by (id, count): the count is the attempt, and with the owner it is the fence. Every script
that ends or renews a delivery compares them with the pending list before it changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from headrace.errors import EffectRefused, PayloadTooLarge
from headrace.names import Keys, same_slot, waiting_group
from headrace.policy import crash_delay_ms
from headrace.redis import replies
from headrace.redis.calls import Call, Wire, Word, flat, load, parse_word, parse_words, text

T = TypeVar("T")

Delete = Literal["no", "acked", "sole"]
"""After the ack: keep the entry; delete it once every group has acked it (XACKDEL, Redis 8.2+); delete it if
there is no other group."""

BATCH_LIMIT: Final = 1_000  # deliveries in one call: Lua passes fewer than 8,000 words to a command
WORDS_LIMIT: Final = 7_000  # names and values of an entry that a script appends

MARK_S: Final = 30 * 86_400  # how long a batch is known to be claimed after the last one of its query

_ADD = load("add")
_ACK = load("ack")
_DONE = load("done")
_EFFECTS = load("effects")
_PARK = load("park")
_BURY = load("bury")
_RENEW = load("renew")
_RENEW_OWNER = load("renew_owner")
_RESCUE = load("rescue")
_TAKE_OVER = load("take_over")
_MINE = load("mine")
_DUE = load("due")
_LOOK = load("look")
_TURN = load("turn")
_ADOPT = load("adopt")
_REPLAY = load("replay")
_JOIN = load("join")
_STAY = load("stay")
_REMOVE_OWNER = load("remove_owner")
_KEEP_FLOOR = load("keep_floor")
_PULL_BACK = load("pull_back")
_ENSURE_GROUP = load("ensure_group")
_AGREE = load("agree")
_REGROUP = load("regroup")
_LEVELS = load("levels")
_TAKE_BATCH = load("take_batch")

# ── producing ────────────────────────────────────────────────────────────────────────────────────────


def add(
    keys: Keys, fields: Sequence[Wire], *, key: str | None = None, window_ms: int = 0, maxlen: int = 0
) -> Call[replies.Added]:
    """Append a message; with a key only if that key was not added within the window (SPEC 35)."""
    if key is None:
        trim: tuple[Wire, ...] = ("MAXLEN", "~", maxlen) if maxlen else ()
        return Call(("XADD", keys.stream, *trim, "*", *fields), replies.Added.new)
    if len(fields) > WORDS_LIMIT:
        raise PayloadTooLarge(
            f"{keys.stream}: an entry with a key has at most {WORDS_LIMIT // 2} fields, "
            f"not {len(fields) // 2}: put them into the payload"
        )
    return Call((2, keys.stream, keys.added(key), window_ms, maxlen, *fields), replies.Added.of, _ADD)


# ── outcomes ─────────────────────────────────────────────────────────────────────────────────────────


def ack(
    keys: Keys, group: str, owner: str, pairs: Sequence[tuple[bytes, int]], *, delete: Delete = "no"
) -> Call[list[Word]]:
    """Done: end deliveries given as (id, count), in any order."""
    ids = [pair[0] for pair in _bounded(pairs)]
    # The milliseconds of ids compare like numbers while they have as many digits, and that is cheap.
    # Bounds that miss an id cost that id a look of its own, see ack.lua.
    lowest, highest = min(ids).partition(b"-")[0], max(ids).partition(b"-")[0]
    head = (1, keys.stream, group, owner, delete, waiting_group(group), lowest, highest)
    counts = {pair[1] for pair in pairs}
    if len(counts) == 1:  # nearly always: then half the words do
        return Call((*head, *counts, *ids), parse_words, _ACK)
    return Call((*head, "", *flat(pairs)), parse_words, _ACK)


def done(
    keys: Keys,
    group: str,
    owner: str,
    finished: Sequence[tuple[bytes, int, str, bytes]],
    window_ms: int,
    *,
    delete: Delete = "no",
) -> Call[list[Word]]:
    """Done, with a completion marker each: deliveries given as (id, count, key, result) (SPEC 34)."""
    markers = [keys.once(group, key) for _, _, key, _ in _bounded(finished)]
    words = flat((id_, count, result) for id_, count, _, result in finished)
    head = (group, owner, window_ms, delete, waiting_group(group))
    return Call((len(markers) + 1, keys.stream, *markers, *head, *words), parse_words, _DONE)


class EffectLike(Protocol):
    """What an effect must tell: headrace.effects.Effect does."""

    @property
    def command(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def args(self) -> Sequence[Wire]: ...


def effects(
    keys: Keys,
    group: str,
    owner: str,
    id_: bytes,
    count: int,
    wanted: Sequence[EffectLike],
    *,
    once: tuple[str, bytes, int] | None = None,
    delete: Delete = "no",
) -> Call[Word | EffectRefused]:
    """Done, with effects that happen together with the ack or not at all (SPEC 33).

    ``once`` is (key, result, window in ms) for a completion marker: if the key is done, no effect is written.
    What could fail is answered with EffectRefused, a key in another slot too: then nothing was written, and
    the delivery is still held.
    """
    places: dict[str, int] = {}
    words: list[Wire] = []
    for effect in wanted:
        if not same_slot(effect.key, keys.stream):
            return _refuse(keys, group, owner, id_, count, f"{effect.command} {effect.key}: the key is in another slot")
        place = places.setdefault(effect.key, len(places) + 1)
        words += (effect.command, place, len(effect.args), *effect.args)
    marker, result, window_ms = once or ("", b"", 0)
    written = [*places, *([keys.once(group, marker)] if once else [])]
    head = (group, owner, id_, count, delete, waiting_group(group), window_ms, result)
    return Call((len(written) + 1, keys.stream, *written, *head, *words), _effected, _EFFECTS)


def _refuse(keys: Keys, group: str, owner: str, id_: bytes, count: int, why: str) -> Call[Word | EffectRefused]:
    """A renewal in the effects' place: what cannot be sent is answered on the same road as all others."""

    def refused(reply: int | list[bytes]) -> Word | EffectRefused:
        (word,) = parse_words(reply)
        return EffectRefused(f"{why}; give it the tag of {keys.stream}") if word.kind == "ok" else word

    return Call((1, keys.stream, group, owner, id_, count), refused, _RENEW)


def _effected(reply: bytes) -> Word | EffectRefused:
    if not reply.startswith(b"refused "):
        return parse_word(reply)
    number, _, why = text(reply[8:]).partition(": ")
    return EffectRefused(f"effect {number}: {why}; nothing was written and the delivery was not acked")


def park(
    keys: Keys,
    group: str,
    owner: str,
    delay_ms: int,
    mark: str,
    triples: Sequence[tuple[bytes, int, int]],
    *,
    alone: bool = False,
) -> Call[list[Word]]:
    """Retry or release: deliveries given as (id, count, count to keep) wait, and ``mark`` says why.

    A negative delay means: until replayed (SPEC 29). ``alone``: the next attempt must run alone (DESIGN 11b).
    """
    head = (group, waiting_group(group), owner, delay_ms, mark, "alone" if alone else "")
    return Call((2, keys.stream, keys.due(group), *head, *flat(_bounded(triples))), parse_words, _PARK)


def bury(
    keys: Keys,
    group: str,
    owner: str,
    id_: bytes,
    count: int,
    *,
    extra: Mapping[str, Wire],
    maxlen: int = 0,
    prefix: str = "_",
) -> Call[Word]:
    """To the dead letters, with ``extra`` fields about the burial. The word names the dead letter."""
    head = (group, owner, id_, count, maxlen, prefix)
    return Call((2, keys.stream, keys.dead_letters, *head, *flat(extra.items())), parse_word, _BURY)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────


def renew(keys: Keys, group: str, owner: str, pairs: Sequence[tuple[bytes, int]]) -> Call[list[Word]]:
    """Reset the idle clocks of deliveries given as (id, count); at most 200 keep the script short."""
    return Call((1, keys.stream, group, owner, *flat(_bounded(pairs))), parse_words, _RENEW)


def renew_owner(
    keys: Keys, group: str, owner: str, min_idle_ms: int, start: str = "-", chunk: int = 200
) -> Call[replies.Renewed]:
    """Reset the idle clocks of what an owner holds. Go on with the answered start until it is ""."""
    return Call((1, keys.stream, group, owner, min_idle_ms, start, chunk), replies.Renewed.of, _RENEW_OWNER)


def rescue(
    keys: Keys,
    group: str,
    owner: str,
    lease_ms: int,
    cursor: str = "-",
    count: int = 100,
    deadline_ms: int = 0,
) -> Call[replies.Rescue]:
    """Take over what was idle for a lease. After ``deadline_ms``, server time, it does nothing (SPEC 20)."""
    words = (1, keys.stream, group, owner, lease_ms, cursor, min(count, BATCH_LIMIT), deadline_ms)
    return Call(words, replies.Rescue.of, _RESCUE)


def take_over(
    keys: Keys, group: str, owner: str, lease_ms: int, count: int = 100, deadline_ms: int = 0
) -> Call[replies.TakenOver]:
    """The same with XREADGROUP CLAIM (Redis 8.4+), and new messages behind it."""
    words = (1, keys.stream, group, owner, lease_ms, min(count, BATCH_LIMIT), deadline_ms)
    return Call(words, replies.TakenOver.of, _TAKE_OVER)


def mine(keys: Keys, group: str, owner: str, limit: int, known: Sequence[bytes]) -> Call[replies.Mine]:
    """What the server says an owner holds and it does not know. Counts stay: no attempt is burnt."""
    return Call((1, keys.stream, group, owner, limit, *known), replies.Mine.of, _MINE)


def adopt(
    keys: Keys,
    group: str,
    owner: str,
    started: Sequence[bytes],
    delays_ms: Sequence[int] = (0,),
    *,
    alone_at: int = 0,
    prefix: str = "",
    chunk: int = 100,
) -> Call[replies.Adopted]:
    """Hand back a dead owner's deliveries. Repeat until it has seen fewer than the chunk.

    ``delays_ms`` is how long a started one waits after its first, second, ... crash; at count
    ``alone_at`` the next attempt is the last and must run alone (0: never). ``prefix``: of the field in which
    a requeued copy tells of attempts under other ids; they count, too ("": there are no copies).
    """
    head = (group, waiting_group(group), owner, chunk, alone_at, prefix, len(delays_ms))
    return Call((2, keys.stream, keys.due(group), *head, *delays_ms, *started), replies.Adopted.of, _ADOPT)


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────


def due(keys: Keys, group: str, owner: str, limit: int, *, alone: bool = False, early_ms: int = 0) -> Call[replies.Due]:
    """Take what is due, at most ``limit``. ``early_ms``: a turn of so many ms that is mine counts as over."""
    words = (group, waiting_group(group), owner, min(limit, BATCH_LIMIT), "alone" if alone else "", early_ms)
    return Call((2, keys.stream, keys.due(group), *words), replies.Due.of, _DUE)


@dataclass(frozen=True, slots=True)
class TakeBatch:
    """What a page of a batch asks for. ``token`` is the query's; ``mode`` as in take_batch.lua."""

    token: str
    batch: int
    page: int = 0
    most: int = BATCH_LIMIT
    most_new: int | None = None  # None: as many as ``most``
    lease_ms: int = 0  # 0: nothing is taken over
    until_ms: int = 0  # server time after which nothing is taken over; 0: there is none
    max_attempts: int = 5
    mode: Literal["", "alone", "mark"] = ""
    prefix: str = "_"


def take_batch(keys: Keys, group: str, owner: str, wanted: TakeBatch) -> Call[replies.TakenBatch]:
    """Claim a page of a batch for Spark: what is due, what dead owners left, and what is new (SPARK, group mode)."""
    names = (keys.stream, keys.due(group), keys.batch_mark(group, wanted.token))
    words = (
        *(group, waiting_group(group), owner, wanted.batch, wanted.page),
        *(min(wanted.most, BATCH_LIMIT), wanted.most if wanted.most_new is None else wanted.most_new),
        *(wanted.lease_ms, wanted.max_attempts, crash_delay_ms(wanted.max_attempts - 1, wanted.max_attempts)),
        *(wanted.mode, wanted.prefix, MARK_S, wanted.until_ms),
    )
    return Call((len(names), *names, *words), replies.TakenBatch.of, _TAKE_BATCH)


def look(keys: Keys, group: str) -> Call[replies.Look]:
    """When something is due next. The cheap look before ``due``."""
    return Call((1, keys.due(group)), replies.Look.of, _LOOK)


def turn(keys: Keys, group: str, turn_ms: int) -> Call[bool]:
    """Reserve the next due delivery that must run alone. False: there is none."""
    return Call((1, keys.due(group), turn_ms), _is_one, _TURN)


def replay(
    keys: Keys, group: str, original_id: str, dead_letter: str | None = None, *, prefix: str = "_"
) -> Call[replies.Replayed]:
    """Give a dead letter back to its group; without one, a message parked until replayed (SPEC 28, 29)."""
    words = (group, waiting_group(group), dead_letter or "", original_id, prefix)
    return Call((3, keys.stream, keys.due(group), keys.dead_letters, *words), replies.Replayed.of, _REPLAY)


# ── owners and groups ────────────────────────────────────────────────────────────────────────────────


def join(
    keys: Keys, group: str, owner: str, token: str, lease_ms: int, info_json: str = "{}", fixed: bool = False
) -> Call[replies.Joined]:
    """Enter an owner. A fixed name that another live process has is refused (SPEC 2).

    ``token`` is letters and digits; ``info_json`` an object without seen_ms, lease_ms and token.
    """
    if not (token.isascii() and token.isalnum()):
        raise ValueError(f"a token is letters and digits, not {token!r}")
    words = (group, owner, token, lease_ms, "fixed" if fixed else "", info_json)
    return Call((2, keys.stream, keys.owners(group), *words), replies.Joined.of, _JOIN)


def stay(keys: Keys, group: str, owner: str, token: str) -> Call[replies.Stayed]:
    """Say that an owner is still there, and hear the group's longest lease (SPEC 7b)."""
    return Call((2, keys.stream, keys.owners(group), group, owner, token), replies.Stayed.of, _STAY)


def remove_owner(keys: Keys, group: str, owner: str, min_idle_ms: int = 0) -> Call[replies.Removal]:
    """Forget an owner that holds nothing and was not heard of for so long (SPEC 19)."""
    return Call((2, keys.stream, keys.owners(group), group, owner, min_idle_ms), replies.Removal.of, _REMOVE_OWNER)


def keep_floor(keys: Keys, group: str) -> Call[str]:
    """Note where the group would have to go on if it vanished (SPEC 3)."""
    return Call((2, keys.stream, keys.floor(group), group, waiting_group(group)), text, _KEEP_FLOOR)


def pull_back(keys: Keys, group: str, *, thorough: bool = False) -> Call[replies.Pulled]:
    """Set a group back that is ahead of its stream, because the stream was set back (ADR 14)."""
    return Call((2, keys.stream, keys.looked(group), group, int(thorough)), replies.Pulled.of, _PULL_BACK)


def ensure_group(keys: Keys, group: str, start: str = "0") -> Call[bool]:
    """Make stream and group if they are not there, also on a full server. True: made now (SPEC 3)."""
    return Call((1, keys.stream, group, start), _is_made, _ENSURE_GROUP)


def _is_made(reply: bytes) -> bool:
    return reply == b"made"


def regroup(keys: Keys, group: str) -> Call[replies.Regrouped]:
    """Make a group again that vanished, where the noted floor says how (SPEC 3)."""
    return Call(
        (3, keys.stream, keys.floor(group), keys.due(group), group, waiting_group(group)),
        replies.Regrouped.of,
        _REGROUP,
    )


def agree(keys: Keys, partitions: int) -> Call[int]:
    """Say into how many partitions a stream is cut, unless somebody has said so before. Answers what holds."""
    return Call((1, keys.partitions, partitions), int, _AGREE)


def levels(keys: Keys, group: str) -> Call[replies.Levels]:
    """How much work there is: lag, pending, waiting."""
    return Call((2, keys.stream, keys.due(group), group, waiting_group(group)), replies.Levels.of, _LEVELS)


# ── small readings ───────────────────────────────────────────────────────────────────────────────────


def _bounded(deliveries: Sequence[T]) -> Sequence[T]:
    if not 0 < len(deliveries) <= BATCH_LIMIT:
        raise ValueError(f"a call takes 1 to {BATCH_LIMIT} deliveries, not {len(deliveries)}")
    return deliveries


def _is_one(reply: int) -> bool:
    return reply == 1
