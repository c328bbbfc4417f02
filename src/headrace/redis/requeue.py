"""Typed calls for the scripts of the requeue strategy (SPEC 46): hold, leave, requeue. See the headers in lua/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from headrace.names import RELEASE_OWNER, RETRY_OWNER, Keys, waiting_group
from headrace.redis import replies
from headrace.redis.calls import Call, Wire, Word, flat, load, parse_word, parse_words
from headrace.redis.scripts import Delete

_HOLD = load("hold")
_LEAVE = load("leave")
_REQUEUE = load("requeue")


class Rules(NamedTuple):
    """What every requeue of one handler has in common."""

    max_retries: int
    dead_letters: str  # the stream
    maxlen: int | None = 0  # about how many dead letters are kept; 0: all; None: none are written
    prefix: str = "_"
    delete: Delete = "no"


class Why(NamedTuple):
    """What a dead letter says about its burial."""

    error: str = ""
    reason: str = ""


def hold(keys: Keys, group: str, owner: str, lock_ms: int, pairs: Sequence[tuple[bytes, int]]) -> Call[list[Word]]:
    """Take or extend the locks of deliveries given as (id, count); at most 200 keep the script short."""
    locks = [keys.lock(id_.decode()) for id_, _ in pairs]
    return Call((len(locks) + 1, keys.stream, *locks, group, owner, lock_ms, *flat(pairs)), parse_words, _HOLD)


def leave(
    keys: Keys, group: str, owner: str, id_: bytes, count: int, wait_ms: int, *, counts: bool = True
) -> Call[Word]:
    """Leave a delivery pending, and locked for so long. ``counts``: this attempt was one."""
    meanwhile = RETRY_OWNER if counts else RELEASE_OWNER
    words = (2, keys.stream, keys.lock(id_.decode()), group, owner, id_, count, meanwhile, max(0, wait_ms))
    return Call(words, parse_word, _LEAVE)


def requeue(
    keys: Keys,
    group: str,
    ids: Sequence[bytes],
    rules: Rules,
    *,
    min_idle_ms: int,
    deadline_ms: int = 0,
    why: Why = Why(),  # noqa: B008 - a frozen value
) -> Call[replies.Moves]:
    """Requeue what is idle and unlocked, or bury it if its retries are used up. A move for each id, at most 200."""
    locks = [keys.lock(id_.decode()) for id_ in ids]
    head = _head(group, rules, "", "retry", min_idle_ms, deadline_ms, why)
    pairs = flat((id_, 0) for id_ in ids)
    return Call((len(locks) + 2, keys.stream, rules.dead_letters, *locks, *head, *pairs), replies.Moves.of, _REQUEUE)


def requeue_own(
    keys: Keys,
    group: str,
    owner: str,
    id_: bytes,
    count: int,
    rules: Rules,
    way: Literal["release", "bury"],
    why: Why = Why(),  # noqa: B008 - a frozen value
) -> Call[Word]:
    """End a delivery of mine: hand it back as a copy that costs no retry, or bury it."""
    head = _head(group, rules, owner, way, 0, 0, why)
    words = (3, keys.stream, rules.dead_letters, keys.lock(id_.decode()), *head, id_, count)
    return Call(words, _moved, _REQUEUE)


def _head(
    group: str, rules: Rules, owner: str, way: str, min_idle_ms: int, deadline_ms: int, why: Why
) -> tuple[Wire, ...]:
    maxlen: Wire = "off" if rules.maxlen is None else rules.maxlen
    limits = (min_idle_ms, rules.max_retries, maxlen, rules.prefix, deadline_ms)
    return (group, owner, way, *limits, rules.delete, waiting_group(group), *why)


def _moved(reply: list[Any]) -> Word:
    move = replies.Move.of(reply[1])
    if move.kind == "taken":
        return Word("taken", move.holder, move.count)
    if move.kind in ("gone", "trimmed"):
        return Word(move.kind)
    return Word("ok", id=move.id)
