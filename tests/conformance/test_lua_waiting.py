"""What waits: park, look, due, turn and adopt. Nothing early, nothing twice, nothing dropped in silence (SPEC 24)."""

from __future__ import annotations

import time

import pytest

from headrace.errors import NoGroup
from headrace.redis import commands, scripts
from headrace.redis.calls import OK, Call, Word
from headrace.redis.replies import Due, Look
from headrace.redis.synclink import SyncLink
from tests.support.lab import Lab, Pair


def park(lab: Lab, pair: Pair, delay_ms: int = 0, mark: str = "waiting", keep: int | None = None) -> Word:
    triple = (*pair, pair[1] if keep is None else keep)
    (word,) = lab.call(scripts.park(lab.keys, lab.group, "me", delay_ms, mark, [triple]))
    return word


def park_alone(lab: Lab, pair: Pair, delay_ms: int = 0) -> Word:
    call = scripts.park(lab.keys, lab.group, "me", delay_ms, "crashed", [(*pair, pair[1])], alone=True)
    return lab.call(call)[0]


def take(lab: Lab, owner: str = "me", limit: int = 100) -> Due:
    return lab.call(scripts.due(lab.keys, lab.group, owner, limit))


def take_alone(lab: Lab, owner: str = "me", early_ms: int = 0) -> Due:
    return lab.call(scripts.due(lab.keys, lab.group, owner, 1, alone=True, early_ms=early_ms))


def look(lab: Lab) -> Look:
    return lab.call(scripts.look(lab.keys, lab.group))


# ── retry and release ────────────────────────────────────────────────────────────────────────────────


def test_a_parked_delivery_waits_in_the_waiting_group_with_its_count_and_mark(lab: Lab) -> None:
    one, two = lab.held(2)
    assert park(lab, one, 60_000) == OK
    assert park(lab, two, 60_000, "released-3", keep=0) == OK
    assert lab.pending() == {}
    assert lab.waits() == {one[0]: ("waiting", 1), two[0]: ("released-3", 0)}
    now_ms = lab.now_ms()
    assert all(0 <= due_ms - now_ms <= 60_001 for due_ms in lab.due_set().values())
    assert take(lab).taken == []
    assert lab.read() == []


def test_a_retry_comes_back_with_the_next_attempt_and_a_release_with_the_same(lab: Lab) -> None:
    one, two = lab.held(2, fields=("f", "1", "f", "2"))
    park(lab, one)
    park(lab, two, mark="released-1", keep=0)
    time.sleep(0.002)
    found = take(lab, "other")
    assert [(id_, fields, attempt, mark) for id_, fields, attempt, _, mark in found.taken] == [
        (one[0], [b"f", b"1", b"f", b"2"], 2, "waiting"),
        (two[0], [b"f", b"1", b"f", b"2"], 1, "released-1"),
    ]
    assert lab.pending() == {one[0]: ("other", 2), two[0]: ("other", 1)}
    assert (lab.waits(), lab.due_set(), found.next_ms, found.dropped) == ({}, {}, None, 0)


def test_nothing_is_handed_out_before_it_is_due(lab: Lab) -> None:
    """SPEC 24: taken as soon as possible, but by the clock of the server never early."""
    pairs = lab.held(20)
    parked_at = {}
    for at, pair in enumerate(pairs):
        parked_at[pair[0]] = (time.monotonic(), 10 + 3 * at)
        park(lab, pair, 10 + 3 * at)
    waits = dict(parked_at)
    while waits:
        for id_, *_ in take(lab).taken:
            since, delay_ms = waits.pop(id_)
            assert (time.monotonic() - since) * 1000 >= delay_ms
    assert len(lab.pending()) == 20


def test_no_client_of_the_group_can_claim_what_waits(lab: Lab) -> None:
    """SPEC 24: also with other leases, for other clients and for a rescue."""
    (pair,) = lab.held()
    park(lab, pair, 60_000)
    lab.age([pair[0]], 10_000_000, "waiting", lab.waiting)
    assert lab.raw("XCLAIM", lab.keys.stream, lab.group, "robber", 0, pair[0]) == []
    assert lab.raw("XAUTOCLAIM", lab.keys.stream, lab.group, "robber", 0, "0-0")[1] == []
    assert lab.call(scripts.rescue(lab.keys, lab.group, "robber", 0)).taken == []
    assert lab.read("robber") == []
    assert lab.call(commands.read(lab.keys, lab.waiting, "robber", 10)) == []


def test_another_group_sees_nothing_of_a_retry(lab: Lab) -> None:
    """SPEC 32."""
    lab.make_group("audit")
    (pair,) = lab.held()
    assert len(lab.read(group="audit")) == 1
    park(lab, pair)
    time.sleep(0.002)
    assert len(take(lab).taken) == 1
    assert lab.read(group="audit") == []


def test_each_waiting_delivery_has_one_winner_among_many_takers(lab: Lab) -> None:
    """SPEC 16, 24."""
    pairs = lab.held(1_000)
    triples = [(*pair, 1) for pair in pairs]
    lab.call(scripts.park(lab.keys, lab.group, "me", 0, "waiting", triples))
    time.sleep(0.002)

    def drain(taker: int, link: SyncLink) -> list[bytes]:
        got: list[bytes] = []
        while found := link.call(scripts.due(lab.keys, lab.group, f"taker-{taker}", 7)).taken:
            got += [id_ for id_, *_ in found]
        return got

    taken = [id_ for got in lab.at_once(8, drain) for id_ in got]
    assert sorted(taken) == sorted(id_ for id_, _ in pairs)
    assert all(count == 2 for _, count in lab.pending().values())


def test_the_limit_holds_and_the_answer_says_when_the_next_is_due(lab: Lab) -> None:
    pairs = lab.held(5)
    for pair in pairs[:4]:
        park(lab, pair)
    park(lab, pairs[4], 60_000)
    time.sleep(0.002)
    found = take(lab, limit=3)
    assert len(found.taken) == 3
    assert found.next_ms == 0
    assert len(take(lab, limit=0).taken) == 0
    found = take(lab)
    assert len(found.taken) == 1
    assert found.next_ms is not None
    assert 50_000 < found.next_ms <= 60_001


def test_a_look_tells_when_something_is_due_and_changes_nothing(lab: Lab) -> None:
    assert look(lab) == Look(None, None)
    one, two, three = lab.held(3)
    park(lab, one, 60_000)
    seen = look(lab)
    assert seen.next_ms is not None
    assert 50_000 < seen.next_ms <= 60_001
    assert seen.alone_ms is None
    park_alone(lab, two, 30_000)
    seen = look(lab)
    assert seen.alone_ms is not None
    assert 20_000 < seen.alone_ms <= 30_001
    park(lab, three)
    time.sleep(0.002)
    assert look(lab).next_ms == 0
    assert len(lab.due_set()) == 3


def test_parked_without_a_due_time_it_is_never_handed_out(lab: Lab) -> None:
    """SPEC 29: visible, and nobody's until replayed."""
    one, two = lab.held(2)
    assert park(lab, one, -1, "parked") == OK
    assert lab.due_set() == {}
    assert lab.waits() == {one[0]: ("parked", 1)}
    assert take(lab).taken == []
    assert look(lab) == Look(None, None)
    lab.raw("ZADD", lab.keys.due(lab.group), 1, two[0])
    assert park(lab, two, -1, "parked") == OK
    assert lab.due_set() == {}, "a due time left from before goes"


# ── what can go wrong ────────────────────────────────────────────────────────────────────────────────


def test_an_entry_trimmed_before_it_is_parked_is_told(lab: Lab) -> None:
    (pair,) = lab.held()
    lab.trim(pair[0])
    assert park(lab, pair) == Word("trimmed")
    assert lab.pending() == {}
    assert (lab.waits(), lab.due_set()) == ({}, {})


def test_an_entry_trimmed_while_it_waits_is_told_with_its_id(lab: Lab) -> None:
    """SPEC 18."""
    one, two = lab.held(2)
    park(lab, one)
    park(lab, two)
    lab.trim(one[0])
    time.sleep(0.002)
    found = take(lab)
    assert found.trimmed == [one[0].decode()]
    assert [id_ for id_, *_ in found.taken] == [two[0]]
    assert list(lab.pending()) == [two[0]]
    assert (lab.waits(), lab.due_set()) == ({}, {})


def test_a_destroyed_waiting_group_costs_the_count_and_never_the_message(lab: Lab) -> None:
    pairs = lab.held(3)
    lab.call(scripts.park(lab.keys, lab.group, "me", 0, "released-2", [(*pair, 4) for pair in pairs[:2]]))
    park(lab, pairs[2], 60_000)
    lab.raw("XGROUP", "DESTROY", lab.keys.stream, lab.waiting)
    time.sleep(0.002)
    found = take(lab)
    assert [(id_, attempt, mark) for id_, _, attempt, _, mark in found.taken] == [
        (pairs[0][0], 1, "waiting"),
        (pairs[1][0], 1, "waiting"),
    ]
    assert found.regrouped
    assert lab.waiting in [group.name for group in lab.call(commands.groups(lab.keys))]
    assert park(lab, (pairs[0][0], 1), 60_000) == OK
    lab.raw("ZADD", lab.keys.due(lab.group), 1, pairs[2][0])
    found = take(lab)
    assert not found.regrouped
    assert (found.taken, found.dropped) == ([], 1), "what the new group does not know is dropped and counted"


def test_an_id_that_waits_nowhere_is_dropped_and_counted(lab: Lab) -> None:
    one, two = lab.held(2)
    park(lab, one, 60_000)
    lab.call(scripts.ack(lab.keys, lab.group, "me", [two]))
    lab.raw("ZADD", lab.keys.due(lab.group), 1, two[0])
    found = take(lab)
    assert (found.taken, found.dropped) == ([], 1)
    assert list(lab.due_set()) == [one[0]]


def test_what_somebody_holds_again_is_not_stolen(lab: Lab) -> None:
    """A group set back, or a failover that lost the move: the holder in the main list keeps it."""
    (pair,) = lab.held()
    park(lab, pair)
    lab.raw("XCLAIM", lab.keys.stream, lab.group, "holder", 0, pair[0], "FORCE")
    time.sleep(0.002)
    found = take(lab)
    assert (found.taken, found.dropped) == ([], 0)
    assert lab.pending()[pair[0]][0] == "holder"
    assert (lab.waits(), lab.due_set()) == ({}, {})


def test_a_missing_group_is_an_error_and_keeps_what_waits(lab: Lab) -> None:
    (pair,) = lab.held()
    park(lab, pair)
    lab.raw("XGROUP", "DESTROY", lab.keys.stream, lab.group)
    time.sleep(0.002)
    with pytest.raises(NoGroup):
        take(lab)
    assert len(lab.due_set()) == 1


# ── alone (DESIGN 11b) ───────────────────────────────────────────────────────────────────────────────


def test_what_must_run_alone_is_not_handed_out_with_others(lab: Lab) -> None:
    one, two = lab.held(2)
    park_alone(lab, one)
    park(lab, two)
    time.sleep(0.002)
    assert [id_ for id_, *_ in take(lab).taken] == [two[0]]
    assert look(lab) == Look(None, 0)
    found = take_alone(lab)
    assert [(id_, attempt, mark) for id_, _, attempt, _, mark in found.taken] == [(one[0], 2, "crashed")]
    assert found.taken[0][3] < 10_000
    assert look(lab) == Look(None, None)


def test_alone_is_not_early_either(lab: Lab) -> None:
    one, two = lab.held(2)
    park_alone(lab, one, 60_000)
    park_alone(lab, two)
    time.sleep(0.002)
    assert lab.call(scripts.turn(lab.keys, lab.group, 5_000))
    assert [id_ for id_, *_ in take_alone(lab, early_ms=120_000).taken] == [two[0]]
    assert take_alone(lab, early_ms=120_000).taken == []


def test_one_worker_gets_the_turn_and_the_others_go_on(lab: Lab) -> None:
    (pair,) = lab.held()
    park_alone(lab, pair)
    time.sleep(0.002)
    turn: Call[bool] = scripts.turn(lab.keys, lab.group, 60_000)
    assert sorted(lab.at_once(8, lambda _, link: link.call(turn))) == [False] * 7 + [True]
    seen = look(lab)
    assert seen.alone_ms is not None
    assert seen.alone_ms > 50_000
    assert take_alone(lab, "other").taken == []
    assert [id_ for id_, *_ in take_alone(lab, "winner", early_ms=60_000).taken] == [pair[0]]


def test_a_turn_that_nobody_uses_ends(lab: Lab) -> None:
    (pair,) = lab.held()
    park_alone(lab, pair)
    time.sleep(0.002)
    turn = scripts.turn(lab.keys, lab.group, 20)
    assert lab.call(turn)
    assert not lab.call(turn)
    time.sleep(0.03)
    assert look(lab).alone_ms == 0
    assert lab.call(turn)
    assert len(take_alone(lab, early_ms=20).taken) == 1
    assert not lab.call(turn)


# ── adopt (DESIGN 11) ────────────────────────────────────────────────────────────────────────────────


def test_started_deliveries_keep_their_count_and_the_others_give_it_back(lab: Lab) -> None:
    pairs = lab.held(4, owner="dead")
    lab.held(1, owner="alive")
    started = [pairs[0][0], pairs[2][0], b"1-1"]
    adopted = lab.call(scripts.adopt(lab.keys, lab.group, "dead", started))
    assert adopted == (4, 2, 2, [])
    assert lab.waits() == {
        pairs[0][0]: ("crashed", 1),
        pairs[1][0]: ("waiting", 0),
        pairs[2][0]: ("crashed", 1),
        pairs[3][0]: ("waiting", 0),
    }
    assert {owner for owner, _ in lab.pending().values()} == {"alive"}
    time.sleep(0.002)
    attempts = {id_: attempt for id_, _, attempt, _, _ in take(lab).taken}
    assert attempts == {pairs[0][0]: 2, pairs[1][0]: 1, pairs[2][0]: 2, pairs[3][0]: 1}
    assert lab.call(scripts.ack(lab.keys, lab.group, "dead", pairs[:1])) == [Word("taken", "me", 2)]


def test_more_than_a_chunk_is_adopted_by_asking_again(lab: Lab) -> None:
    pairs = lab.held(250, owner="dead")
    started = [id_ for id_, _ in pairs[::2]]
    seen: list[int] = []
    while not seen or seen[-1] == 100:
        seen.append(lab.call(scripts.adopt(lab.keys, lab.group, "dead", started, chunk=100)).seen)
    assert seen == [100, 100, 50]
    assert lab.pending() == {}
    assert len(lab.waits()) == 250
    assert lab.call(scripts.adopt(lab.keys, lab.group, "dead", started)).seen == 0


def test_the_delay_follows_from_the_number_of_crashes(lab: Lab) -> None:
    pairs = lab.held(4, owner="dead")
    for at, (id_, _) in enumerate(pairs):
        lab.raw("XCLAIM", lab.keys.stream, lab.group, "dead", 0, id_, "RETRYCOUNT", (1, 2, 3, 9)[at], "JUSTID")
    before_ms = lab.now_ms()
    started = [id_ for id_, _ in pairs]
    lab.call(scripts.adopt(lab.keys, lab.group, "dead", started, [0, 10_000, 20_000], alone_at=3))
    due = lab.due_set()
    delays = [due[id_] - before_ms for id_ in started]
    assert delays[0] < 1_000
    assert 10_000 <= delays[1] < 11_000
    assert [delay // 10**15 for delay in delays] == [0, 0, 1, 0], "the last attempt must run alone"
    assert 20_000 <= delays[2] - 10**15 < 21_000
    assert 20_000 <= delays[3] < 21_000


def test_attempts_under_other_ids_count_where_copies_are_made(lab: Lab) -> None:
    """ADR 8 for recovery by requeue; what is no small whole number counts as none."""
    retries = ("0", "1", "2", "many", "-1")
    lab.make_group()
    ids = [lab.raw("XADD", lab.keys.stream, "*", "payload", "{}", "_retry_count", count) for count in retries]
    for prefix, alone in (("_", [0, 0, 1, 0, 0]), ("", [0, 0, 0, 0, 0]), ("other", [0, 0, 0, 0, 0])):
        lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, "0")
        lab.raw("XREADGROUP", "GROUP", lab.group, "dead", "STREAMS", lab.keys.stream, ">")
        lab.call(scripts.adopt(lab.keys, lab.group, "dead", ids, [0], alone_at=3, prefix=prefix))
        due = lab.due_set()
        assert [due[id_] // 10**15 for id_ in ids] == alone, prefix
        lab.raw("DEL", lab.keys.due(lab.group))
        lab.raw("XACK", lab.keys.stream, f"{lab.group}~wait", *ids)


def test_adopting_a_trimmed_entry_tells_its_id(lab: Lab) -> None:
    pairs = lab.held(2, owner="dead")
    lab.trim(pairs[0][0])
    adopted = lab.call(scripts.adopt(lab.keys, lab.group, "dead", []))
    assert lab.pending() == {}
    assert adopted.trimmed == [pairs[0][0].decode()]
    assert list(lab.waits()) == [pairs[1][0]]
