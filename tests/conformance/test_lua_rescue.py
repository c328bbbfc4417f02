"""rescue, mine and renew_owner: who holds what, and for how long (SPEC 5, 15, 16, 18, 20)."""

from __future__ import annotations

import time

import pytest

from headrace.redis import commands, scripts
from headrace.redis.calls import Word
from headrace.redis.replies import Rescue
from headrace.redis.synclink import SyncLink
from tests.support.lab import Lab


def rescue(lab: Lab, owner: str = "me", lease_ms: int = 30_000, cursor: str = "-", count: int = 100) -> Rescue:
    return lab.call(scripts.rescue(lab.keys, lab.group, owner, lease_ms, cursor, count))


# ── rescue ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_rescue_takes_what_was_idle_for_a_lease_with_its_fields_and_the_next_attempt(lab: Lab) -> None:
    pairs = lab.held(3, owner="dead", fields=("f", "1", "f", "2"))
    lab.age([pairs[1][0]], 31_000, "dead")
    found = rescue(lab)
    ((id_, fields, attempt, idle_ms, former),) = found.taken
    assert (id_, fields, attempt, former) == (pairs[1][0], [b"f", b"1", b"f", b"2"], 2, "dead")
    assert 31_000 <= idle_ms < 40_000
    assert (found.cursor, found.late, found.trimmed) == ("-", False, [])
    assert abs(found.server_ms - lab.now_ms()) < 5_000
    assert lab.pending()[id_] == ("me", 2)
    assert rescue(lab, "third").taken == [], "a rescue starts a new lease"
    assert lab.call(scripts.ack(lab.keys, lab.group, "dead", [pairs[1]])) == [Word("taken", "me", 2)]


def test_idle_entries_behind_five_thousand_fresh_ones_are_rescued_in_one_cycle(lab: Lab) -> None:
    """SPEC 15."""
    pairs = lab.held(5_300, owner="busy")
    orphans = [id_ for id_, _ in pairs[5_000:]]
    lab.age(orphans, 60_000, "busy")
    cursor, taken, steps = "-", [], 0
    while steps == 0 or cursor != "-":
        found = rescue(lab, cursor=cursor)
        cursor, steps = found.cursor, steps + 1
        taken += [id_ for id_, *_ in found.taken]
    assert taken == orphans
    assert steps <= 4


def test_twenty_rescuers_take_each_orphan_once_and_attempts_rise_by_one(lab: Lab) -> None:
    """SPEC 16."""
    pairs = lab.held(500, owner="dead")
    lab.age([id_ for id_, _ in pairs], 60_000, "dead")

    def drain(taker: int, link: SyncLink) -> list[bytes]:
        got: list[bytes] = []
        while found := link.call(scripts.rescue(lab.keys, lab.group, f"r{taker}", 30_000, "-", 10)).taken:
            assert all(attempt == 2 for _, _, attempt, _, _ in found)
            got += [id_ for id_, *_ in found]
        return got

    taken = [id_ for got in lab.at_once(20, drain) for id_ in got]
    assert sorted(taken) == sorted(id_ for id_, _ in pairs)
    assert {count for _, count in lab.pending().values()} == {2}


def test_after_its_deadline_a_rescue_does_nothing(lab: Lab) -> None:
    """SPEC 20: it was queued behind a pause of the server, and so were the renewals."""
    pairs = lab.held(2, owner="slow")
    lab.age([id_ for id_, _ in pairs], 60_000, "slow")
    deadline_ms = lab.now_ms() - 1
    found = lab.call(scripts.rescue(lab.keys, lab.group, "me", 30_000, "-", 10, deadline_ms))
    assert found.late
    assert found.taken == []
    assert found.server_ms > deadline_ms
    assert {owner for owner, _ in lab.pending().values()} == {"slow"}
    found = lab.call(scripts.rescue(lab.keys, lab.group, "me", 30_000, "-", 10, lab.now_ms() + 10_000))
    assert (found.late, len(found.taken)) == (False, 2)


def test_a_trimmed_orphan_is_named_and_leaves_the_pending_list(lab: Lab) -> None:
    """SPEC 18."""
    pairs = lab.held(4, owner="dead")
    ids = [id_ for id_, _ in pairs]
    lab.age(ids, 60_000, "dead")
    lab.trim(ids[0], ids[2])
    found = rescue(lab)
    assert found.trimmed == [ids[0].decode(), ids[2].decode()]
    assert [id_ for id_, *_ in found.taken] == [ids[1], ids[3]]
    assert list(lab.pending()) == [ids[1], ids[3]]


def test_a_rescue_of_my_own_running_entry_tells_the_new_count(lab: Lab) -> None:
    """DESIGN 4b: the owner's table takes the new count; it is not a sibling's."""
    ((id_, _),) = lab.held()
    lab.age([id_], 60_000)
    ((_, _, attempt, _, former),) = rescue(lab).taken
    assert (attempt, former) == (2, "me")
    assert lab.call(scripts.ack(lab.keys, lab.group, "me", [(id_, 1)])) == [Word("taken", "me", 2)]


# ── mine ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_owner_hears_what_it_holds_and_does_not_know_with_counts_as_they_are(lab: Lab) -> None:
    """SPEC 5: after a read whose answer was cut, no attempt is burnt."""
    pairs = lab.held(1_200)
    lab.held(5, owner="other")
    lab.steal(pairs[7][0], "me")
    known = [id_ for id_, _ in pairs[10:]]
    found = lab.call(scripts.mine(lab.keys, lab.group, "me", 100, known))
    assert [(id_, attempt) for id_, _, attempt, _ in found.taken] == [
        (id_, 2 if at == 7 else 1) for at, (id_, _) in enumerate(pairs[:10])
    ]
    assert all(fields == [b"payload", b"{}"] for _, fields, _, _ in found.taken)
    assert lab.pending()[pairs[7][0]] == ("me", 2)
    again = lab.call(scripts.mine(lab.keys, lab.group, "me", 100, known))
    assert again == found, "safe to repeat"


def test_mine_gives_no_more_than_there_are_slots(lab: Lab) -> None:
    lab.held(30)
    assert len(lab.call(scripts.mine(lab.keys, lab.group, "me", 7, [])).taken) == 7
    assert lab.call(scripts.mine(lab.keys, lab.group, "me", 0, [])).taken == []
    assert lab.call(scripts.mine(lab.keys, lab.group, "nobody", 7, [])) == ([], [])


def test_mine_names_what_was_trimmed(lab: Lab) -> None:
    pairs = lab.held(3)
    lab.trim(pairs[1][0])
    found = lab.call(scripts.mine(lab.keys, lab.group, "me", 10, []))
    assert found.trimmed == [pairs[1][0].decode()]
    assert len(found.taken) == 2
    assert len(lab.pending()) == 2


# ── renew_owner ──────────────────────────────────────────────────────────────────────────────────────


def test_a_parent_renews_what_its_child_holds_in_chunks(lab: Lab) -> None:
    pairs = lab.held(450, owner="child")
    others = lab.held(5, owner="other")
    lab.age([id_ for id_, _ in pairs], 20_000, "child")
    lab.age([id_ for id_, _ in others], 20_000, "other")
    start, renewed = "-", []
    while start:
        page = lab.call(scripts.renew_owner(lab.keys, lab.group, "child", 10_000, start, 200))
        start = page.start
        renewed.append(page.renewed)
    assert renewed == [200, 200, 50]
    rows = lab.rows()
    assert {row.owner for row in rows if row.idle_ms >= 10_000} == {"other"}
    assert {row.count for row in rows} == {1}
    assert lab.call(scripts.renew_owner(lab.keys, lab.group, "child", 10_000)) == ("", 0, [])


def test_renewing_by_owner_names_what_was_trimmed_where_the_server_drops_it(lab: Lab) -> None:
    pairs = lab.held(3, owner="child")
    lab.trim(pairs[1][0])
    page = lab.call(scripts.renew_owner(lab.keys, lab.group, "child", 0))
    if lab.server.key == "redis6":
        assert page == ("", 3, [])
    else:
        assert page == ("", 2, [pairs[1][0].decode()])


# ── counts of 63 bits ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("taker", ["take_over", "rescue", "mine", "adopt"])
def test_a_count_that_somebody_set_to_its_end_stops_nobody(lab: Lab, taker: str) -> None:
    """XNACK FATAL (8.8) sets the count to 2^63 - 1; no script may choke on it and hold up all others."""
    ((id_, _),) = lab.held(owner="dead")
    lab.raw("XNACK", lab.keys.stream, lab.group, "FATAL", "IDS", 1, id_)
    if taker == "take_over":
        ((_, _, attempt, _),) = lab.call(scripts.take_over(lab.keys, lab.group, "me", 1, 1)).entries
    elif taker == "rescue":
        ((_, _, attempt, _, _),) = rescue(lab, lease_ms=0).taken
    elif taker == "mine":
        lab.steal(id_, "me")
        ((_, _, attempt, _),) = lab.call(scripts.mine(lab.keys, lab.group, "me", 1, [])).taken
    else:
        lab.steal(id_, "dead")
        assert lab.call(scripts.adopt(lab.keys, lab.group, "dead", [id_])).kept == 1
        time.sleep(0.002)
        ((_, _, attempt, _, _),) = lab.call(scripts.due(lab.keys, lab.group, "me", 1)).taken
    assert attempt >= 2**63 - 1
    call = scripts.park(lab.keys, lab.group, "me", 0, "waiting", [(id_, attempt, attempt)])
    assert lab.call(call)[0].kind == "ok"
    time.sleep(0.002)
    ((_, _, attempt, _, _),) = lab.call(scripts.due(lab.keys, lab.group, "me", 1)).taken
    assert lab.call(scripts.bury(lab.keys, lab.group, "me", id_, attempt, extra={})).kind == "ok"


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_read_gives_new_entries_as_attempt_1_and_no_more_than_asked(lab: Lab) -> None:
    ids = lab.add(5, ["f", "1", "f", "2"])
    assert lab.read(count=3) == [(id_, [b"f", b"1", b"f", b"2"], 1, 0) for id_ in ids[:3]]
    assert len(lab.read(count=3)) == 2
    assert lab.read(count=3) == []
    assert lab.call(commands.read(lab.keys, lab.group, "me", 3, block_ms=5)) == []


def test_a_blocked_read_can_be_ended_and_answers(lab: Lab) -> None:
    """SPEC 5: CLIENT UNBLOCK, and the answer is taken."""
    lab.make_group()
    reader = lab.dial()
    reader.open()

    def work(taker: int, link: SyncLink) -> object:
        if taker == 0:
            return reader.call(commands.read(lab.keys, lab.group, "me", 3, block_ms=10_000))
        while not link.call(commands.unblock(reader.client_id)):
            pass
        return None

    assert lab.at_once(2, work) == [[], None]
    reader.close()
