"""take_batch: a batch of Spark's is claimed once, from all that a group has to give (SPARK, group mode)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from headrace.redis import commands, scripts
from headrace.redis.replies import TakenBatch
from headrace.redis.scripts import TakeBatch
from headrace.redis.synclink import SyncLink
from tests.support.lab import Lab

TOKEN = "abc"
FIRST = TakeBatch(TOKEN, 1)
LEASE_MS = 30_000


def take(lab: Lab, wanted: TakeBatch = FIRST, owner: str = "batch-1", **changed: Any) -> TakenBatch:
    return lab.call(scripts.take_batch(lab.keys, lab.group, owner, replace(wanted, **changed)))


def held_by(lab: Lab, owner: str = "batch-1") -> dict[bytes, int]:
    return {id_: count for id_, (holder, count) in lab.pending().items() if holder == owner}


def test_a_batch_takes_what_is_due_what_a_dead_owner_left_and_what_is_new(lab: Lab) -> None:
    ((due, _), (orphan, _)) = lab.held(2, owner="dead")
    lab.call(scripts.park(lab.keys, lab.group, "dead", 0, "waiting", [(due, 1, 1)]))
    lab.age([orphan], 60_000, "dead")
    (fresh,) = lab.add()
    time.sleep(0.002)
    found = take(lab, lease_ms=LEASE_MS)
    assert (found.before, found.taken, found.new) == (False, 3, 1)
    assert held_by(lab) == {due: 2, orphan: 2, fresh: 1}
    assert lab.waits() == {}
    assert lab.due_set() == {}


def test_a_batch_that_was_claimed_takes_nothing_more_whoever_asks(lab: Lab) -> None:
    """The driver died and another asks, the answer was lost, or a driver thought dead comes late."""
    lab.add(2)
    assert take(lab).taken == 2
    lab.add(3)
    assert take(lab).before
    lab.call(scripts.ack(lab.keys, lab.group, "batch-1", list(held_by(lab).items())))
    assert take(lab).before, "nothing is left of it, and it stays as it is"
    assert take(lab, batch=2, owner="batch-2").taken == 3
    assert take(lab).before, "an earlier batch than the last one"
    assert held_by(lab) == {}


def test_pages_of_a_batch_follow_each_other_and_none_is_taken_twice(lab: Lab) -> None:
    lab.add(5)
    assert take(lab, most=2).taken == 2
    assert take(lab, most=2).before
    assert take(lab, page=1, most=2).taken == 2
    assert take(lab, page=0, most=2).before
    assert take(lab, page=2, most=2).taken == 1
    assert len(held_by(lab)) == 5


def test_a_batch_that_found_nothing_may_ask_again(lab: Lab) -> None:
    lab.make_group()
    found = take(lab)
    assert (found.before, found.taken, found.last_id, found.next_ms) == (False, 0, "0-0", None)
    ids = lab.add(2)
    assert take(lab).taken == 2
    assert take(lab, batch=2, owner="batch-2").last_id == ids[-1].decode()


def test_a_batch_that_is_marked_takes_nothing(lab: Lab) -> None:
    """So it is in the streams that had nothing when the batch found something elsewhere."""
    lab.make_group()
    assert take(lab, mode="mark").taken == 0
    lab.add(1)
    assert take(lab).before
    assert take(lab, batch=2, owner="batch-2").taken == 1


def test_two_queries_have_marks_of_their_own(lab: Lab) -> None:
    lab.add(1)
    assert take(lab).taken == 1
    lab.add(1)
    assert take(lab, token="def", owner="other-1").taken == 1
    assert sorted(owner for owner, _ in lab.pending().values()) == ["batch-1", "other-1"]


def test_no_more_new_ones_are_taken_than_allowed(lab: Lab) -> None:
    lab.add(5)
    assert take(lab, most_new=0).taken == 0
    found = take(lab, most_new=3)
    assert (found.taken, found.new) == (3, 3)


def test_a_live_owner_is_not_robbed(lab: Lab) -> None:
    lab.held(2, owner="busy")
    assert take(lab, lease_ms=LEASE_MS).taken == 0
    assert {owner for owner, _ in lab.pending().values()} == {"busy"}


def test_after_its_deadline_it_takes_nothing_over(lab: Lab) -> None:
    """SPEC 20: it lay in the socket of a server that stood still. What is new is nobody's yet."""
    ((orphan, _),) = lab.held(1, owner="dead")
    lab.age([orphan], 60_000, "dead")
    (fresh,) = lab.add()
    now_ms = lab.call(commands.server_ms())
    assert take(lab, lease_ms=LEASE_MS, until_ms=now_ms - 1).taken == 1
    assert held_by(lab) == {fresh: 1}
    assert take(lab, batch=2, owner="batch-2", lease_ms=LEASE_MS, until_ms=now_ms + 60_000).taken == 1
    assert held_by(lab, "batch-2") == {orphan: 2}


def test_a_last_attempt_after_a_crash_waits_and_is_taken_alone(lab: Lab) -> None:
    """DESIGN 11b: one poison message takes no neighbours with it."""
    ((poison, _), (orphan, _)) = lab.held(2, owner="dead")
    lab.raw("XCLAIM", lab.keys.stream, lab.group, "dead", 0, poison, "RETRYCOUNT", 2, "JUSTID")
    lab.age([poison, orphan], 60_000, "dead")
    assert take(lab, lease_ms=LEASE_MS, max_attempts=3).taken == 1
    assert held_by(lab) == {orphan: 2}
    assert lab.waits() == {poison: ("crashed", 2)}
    lab.raw("ZADD", lab.keys.due(lab.group), 10**15 + 1, poison)  # its wait is over
    lab.add(1)
    assert take(lab, batch=2, owner="batch-2", most_new=0).alone
    assert take(lab, batch=2, owner="batch-2", mode="alone").taken == 1
    assert held_by(lab, "batch-2") == {poison: 3}


def test_one_tried_too_often_is_taken_for_its_burial(lab: Lab) -> None:
    ((poison, _),) = lab.held(1, owner="dead")
    lab.raw("XCLAIM", lab.keys.stream, lab.group, "dead", 0, poison, "RETRYCOUNT", 3, "JUSTID")
    lab.age([poison], 60_000, "dead")
    assert take(lab, lease_ms=LEASE_MS, max_attempts=3).taken == 1
    assert held_by(lab) == {poison: 4}


def test_a_copy_for_another_group_is_acked_unseen(lab: Lab) -> None:
    (mine,) = lab.add(1, ("x_original_id", "1-1", "x_only", lab.group, "payload", "{}"))
    lab.add(1, ("x_original_id", "1-1", "x_only", "other", "payload", "{}"))
    assert take(lab, prefix="x_").taken == 1
    assert list(lab.pending()) == [mine]


def test_trimmed_deliveries_leave_the_lists_and_are_not_counted(lab: Lab) -> None:
    ((due, _), (orphan, _)) = lab.held(2, owner="dead")
    lab.call(scripts.park(lab.keys, lab.group, "dead", 0, "waiting", [(due, 1, 1)]))
    lab.age([orphan], 60_000, "dead")
    lab.trim(due, orphan)
    time.sleep(0.002)
    assert take(lab, lease_ms=LEASE_MS).taken == 0
    assert lab.pending() == {}
    assert lab.waits() == {}


def test_what_waited_is_handed_out_when_the_waiting_group_has_vanished(lab: Lab) -> None:
    ((due, _),) = lab.held(1, owner="dead")
    lab.call(scripts.park(lab.keys, lab.group, "dead", 0, "waiting", [(due, 1, 1)]))
    lab.raw("XGROUP", "DESTROY", lab.keys.stream, lab.waiting)
    time.sleep(0.002)
    assert take(lab).taken == 1
    assert held_by(lab) == {due: 1}


def test_twenty_drivers_at_once_take_each_message_once(lab: Lab) -> None:
    added = lab.add(500)

    def drain(taker: int, link: SyncLink) -> int:
        batch = taken = 0
        while True:
            wanted = TakeBatch(f"t{taker}", batch := batch + 1, most=10)
            found = link.call(scripts.take_batch(lab.keys, lab.group, f"d{taker}", wanted))
            if not found.taken:
                return taken
            taken += found.taken

    assert sum(lab.at_once(20, drain)) == len(added)
    assert sorted(lab.pending()) == sorted(added)


def test_a_batch_is_claimed_and_marked_with_memory_full(lab: Lab) -> None:
    lab.held(1, owner="dead")
    lab.add(1)
    with lab.memory_full():
        lab.age([lab.ids()[0]], 60_000, "dead")
        assert take(lab, lease_ms=LEASE_MS).taken == 2
        assert take(lab).before
        assert take(lab, batch=2, mode="mark").taken == 0
        assert take(lab, batch=2).before
