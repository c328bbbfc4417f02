"""The fence: every outcome and renewal compares (owner, count) with the pending list first (SPEC 11, 23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.effects import Effect
from headrace.redis import scripts
from headrace.redis.calls import OK, Call, Word, parse_word
from tests.support.lab import Lab, Pair

Outcome = Callable[[Lab, str, Pair], Call[Any]]


def effect(lab: Lab) -> Effect:
    return Effect.set(f"{lab.keys.prefix}:result", "written")


OUTCOMES: dict[str, Outcome] = {
    "ack": lambda lab, owner, pair: scripts.ack(lab.keys, lab.group, owner, [pair]),
    "done": lambda lab, owner, pair: scripts.done(lab.keys, lab.group, owner, [(*pair, "key", b"")], 60_000),
    "effects": lambda lab, owner, pair: scripts.effects(lab.keys, lab.group, owner, *pair, [effect(lab)]),
    "park": lambda lab, owner, pair: scripts.park(lab.keys, lab.group, owner, 0, "waiting", [(*pair, pair[1])]),
    "bury": lambda lab, owner, pair: scripts.bury(lab.keys, lab.group, owner, *pair, extra={"_why": "test"}),
}
EVERY: dict[str, Outcome] = {
    **OUTCOMES,
    "renew": lambda lab, owner, pair: scripts.renew(lab.keys, lab.group, owner, [pair]),
}


def word(lab: Lab, call: Call[Any]) -> Word:
    answer = lab.call(call)
    return answer if isinstance(answer, Word) else answer[0]


def traces(lab: Lab) -> list[int]:
    """What an outcome leaves behind, apart from the pending list."""
    written = (
        lab.keys.once(lab.group, "key"),
        f"{lab.keys.prefix}:result",
        lab.keys.dead_letters,
        lab.keys.due(lab.group),
    )
    return [lab.raw("EXISTS", key) for key in written]


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_of_the_holder_ends_the_delivery_and_a_repeated_one_is_gone(lab: Lab, name: str) -> None:
    (pair,) = lab.held()
    assert word(lab, OUTCOMES[name](lab, "me", pair)).kind == "ok"
    assert lab.pending() == {}
    before = traces(lab)
    assert word(lab, OUTCOMES[name](lab, "me", pair)) == Word("gone")
    assert traces(lab) == before
    assert len(lab.letters()) <= 1


@pytest.mark.parametrize("name", EVERY)
def test_a_former_owner_is_refused_and_told_who_has_it(lab: Lab, name: str) -> None:
    ((id_, count),) = lab.held()
    lab.steal(id_, "thief-1")
    assert word(lab, EVERY[name](lab, "me", (id_, count))) == Word("taken", "thief-1", 2)
    assert lab.pending() == {id_: ("thief-1", 2)}
    assert traces(lab) == [0, 0, 0, 0]


@pytest.mark.parametrize("name", EVERY)
def test_an_owner_with_the_same_attempt_as_the_holder_is_refused(lab: Lab, name: str) -> None:
    """DESIGN 4: after a failover two owners hold the same attempt; the count alone is no fence."""
    ((id_, count),) = lab.held()
    lab.raw("XCLAIM", lab.keys.stream, lab.group, "thief", 0, id_, "JUSTID")
    assert word(lab, EVERY[name](lab, "me", (id_, count))) == Word("taken", "thief", 1)
    assert lab.pending() == {id_: ("thief", 1)}
    assert traces(lab) == [0, 0, 0, 0]


@pytest.mark.parametrize("name", EVERY)
def test_the_same_owner_with_an_earlier_attempt_is_refused(lab: Lab, name: str) -> None:
    ((id_, count),) = lab.held()
    lab.steal(id_, "me")
    assert word(lab, EVERY[name](lab, "me", (id_, count))) == Word("taken", "me", 2)
    assert lab.pending() == {id_: ("me", 2)}
    assert traces(lab) == [0, 0, 0, 0]
    assert word(lab, EVERY[name](lab, "me", (id_, 2))).kind == "ok"


@pytest.mark.parametrize("name", EVERY)
def test_what_was_never_delivered_is_gone(lab: Lab, name: str) -> None:
    (id_,) = lab.add()
    assert word(lab, EVERY[name](lab, "me", (id_, 1))) == Word("gone")
    assert traces(lab) == [0, 0, 0, 0]
    assert [entry[0] for entry in lab.read()] == [id_]


@pytest.mark.parametrize("name", EVERY)
def test_ids_of_64_bits_are_fenced_like_any_other(lab: Lab, name: str) -> None:
    near_top = b"18446744073709551614-18446744073709551615"
    lab.make_group()
    for id_ in (b"9007199254740993-9007199254740993", b"9007199254740993-9007199254740994", near_top):
        lab.raw("XADD", lab.keys.stream, id_, "payload", "{}")
    (_, (id_, *_), (last, *_)) = lab.read()
    lab.steal(last)
    assert word(lab, EVERY[name](lab, "me", (id_, 1))).kind == "ok"
    assert word(lab, EVERY[name](lab, "me", (last, 1))) == Word("taken", "thief", 2)


def test_renewing_resets_the_idle_clock_and_leaves_the_count(lab: Lab) -> None:
    pairs = lab.held(3)
    lab.age([id_ for id_, _ in pairs], 60_000)
    assert lab.call(scripts.renew(lab.keys, lab.group, "me", pairs[::-1])) == [OK, OK, OK]
    assert all(row.idle_ms < 10_000 and row.count == 1 and row.owner == "me" for row in lab.rows())


def test_one_lost_delivery_does_not_cost_the_others_their_renewal(lab: Lab) -> None:
    pairs = lab.held(4)
    lab.age([id_ for id_, _ in pairs], 60_000)
    lab.steal(pairs[1][0])
    lab.raw("XACK", lab.keys.stream, lab.group, pairs[2][0])
    words = lab.call(scripts.renew(lab.keys, lab.group, "me", pairs))
    assert [answer.kind for answer in words] == ["ok", "taken", "gone", "ok"]
    assert all(row.idle_ms < 10_000 for row in lab.rows())


def test_renewing_a_trimmed_entry_says_so_where_the_server_drops_it(lab: Lab) -> None:
    pairs = lab.held(2)
    lab.trim(pairs[0][0])
    words = lab.call(scripts.renew(lab.keys, lab.group, "me", pairs))
    if lab.server.key == "redis6":  # keeps it pending: rescue finds it
        assert [answer.kind for answer in words] == ["ok", "ok"]
    else:
        assert [answer.kind for answer in words] == ["trimmed", "ok"]
        assert list(lab.pending()) == [pairs[1][0]]


def test_a_foreign_holder_with_blanks_in_its_name_is_read_right() -> None:
    assert parse_word(b"taken some other client 9223372036854775808") == Word("taken", "some other client", 2**63)
