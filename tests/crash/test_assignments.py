"""Owners killed and paused: every stream has one owner at a time, its messages come in order, none is skipped
(SPEC 42, 43, 45)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.owners import Owners
from tests.support.servers import Server
from tests.support.stays import stays_sync
from tests.support.wait import wait_until_sync

Own = Callable[..., Owners]

NOISE_S = 2.0  # what a busy machine may add to a bound


@pytest.mark.parametrize("slow_s", [0.0, 0.03], ids=["quick", "slow"])
def test_a_killed_owners_streams_are_taken_over_after_its_lease_and_go_on_in_order(
    server: Server, own: Own, slow_s: float
) -> None:
    """SPEC 42, 43: with their info, after the last ack, within L and a moment."""
    owners = own(server, slow_s=slow_s)
    first = owners.start()
    names = owners.announce(4)
    per_room = 40 if slow_s else 400
    for name in names:
        owners.add(name, per_room // 2)
    owners.until(lambda history: len({event.about["name"] for event in owners.acked()}) == 4)
    heir = owners.start()
    first.kill()
    killed_at = time.monotonic()
    for name in names:
        owners.add(name, per_room // 2, first=per_room // 2)
    owners.until_acked(4 * per_room)
    entered = owners.history.events("enter", pid=heir.pid)
    assert {event.about["name"] for event in entered} == set(names)
    assert all(event.about["info"] == {"of": event.about["name"]} for event in entered)
    assert max(event.at for event in entered) - killed_at < 0.5 + 0.25 + NOISE_S
    assert owners.violations(dict.fromkeys(names, per_room)) == []


@pytest.mark.parametrize("slow_s", [0.0, 0.05], ids=["quick", "slow"])
def test_a_paused_owner_that_wakes_is_refused_and_disturbs_nothing(server: Server, own: Own, slow_s: float) -> None:
    """SPEC 43: SIGSTOP beyond the lease, SIGCONT: the former owner's acks are refused, order and position hold.

    The slow handlers matter: a message that was under way at the pause is acknowledged by the zombie when it wakes, and
    an ack without a fence would move the position of the new owner.
    """
    owners = own(server, slow_s=slow_s)
    first = owners.start()
    names = owners.announce(3)
    per_room = 60 if slow_s else 600
    for name in names:
        owners.add(name, per_room)
    owners.until(lambda history: len({event.about["name"] for event in owners.acked()}) == 3)
    first.pause()
    heir = owners.start()
    owners.until(lambda history: len(history.events("enter", pid=heir.pid)) == 3, what="the takeover")
    first.cont()
    if slow_s:
        owners.until(lambda history: history.events("refused", pid=first.pid), what="a refused ack")
    owners.until_acked(3 * per_room)
    wait_until_sync(lambda: "assignment.lost" in first.log, what="the zombie told")
    assert owners.violations(dict.fromkeys(names, per_room)) == []
    for name in names:
        last = max(owners.acked(name), key=lambda event: event.about["n"])
        assert owners.standing(name).position == last.id


@pytest.mark.servers("redis8", "redis6")
def test_sigterm_hands_the_streams_to_a_sibling_at_once_between_two_messages(server: Server, own: Own) -> None:
    """SPEC 22 for rooms: nothing is handled twice, whatever the lease."""
    owners = own(server, slow_s=0.02, lease="30s")
    first = owners.start()
    names = owners.announce(5)
    for name in names:
        owners.add(name, 60)
    owners.until(lambda history: len({event.about["name"] for event in owners.acked()}) == 5)
    sibling = owners.start()
    first.term()
    asked_at = time.monotonic()
    assert first.wait() == 0
    owners.until(lambda history: len(history.events("enter", pid=sibling.pid)) == 5, what="the handover")
    entered = owners.history.events("enter", pid=sibling.pid)
    assert max(event.at for event in entered) - asked_at < 0.5 + NOISE_S
    assert {event.attempt for event in entered} == {1}
    owners.until_acked(5 * 60)
    assert owners.violations(dict.fromkeys(names, 60)) == []
    starts = [(event.about["name"], event.about["n"]) for event in owners.history.events("start")]
    assert len(starts) == len(set(starts)) == 5 * 60


@pytest.mark.servers("redis8")
def test_an_owner_whose_loop_is_blocked_keeps_its_streams(server: Server, own: Own) -> None:
    """SPEC 45, DESIGN 9: the lease is renewed from a thread of its own."""
    owners = own(server)
    first = owners.start()
    names = owners.announce(3)
    for name in names:
        owners.add(name)
    owners.until_acked(3)
    owners.start()
    owners.add(names[0], first=1, do="block", s=2.0)
    owners.until(lambda history: history.events("start", n=1))
    stays_sync(lambda: len(owners.history.events("enter")) == 3, 1.5)
    owners.add(names[0], first=2)
    owners.until_acked(5)
    assert "loop.blocked" in first.log
    assert "by handler tests.support.rooms.own" in first.log
    assert {event.pid for event in owners.history.events("enter")} == {first.pid}


@pytest.mark.servers("redis8")
def test_an_owner_that_holds_the_gil_keeps_its_streams_under_the_supervisor(server: Server, own: Own) -> None:
    """SPEC 13 for rooms: the parent renews for a child that cannot."""
    owners = own(server, lease="600ms")
    owners.supervise(2)
    names = owners.announce(2)
    for name in names:
        owners.add(name)
    owners.until_acked(2)
    owners.add(names[0], first=1, do="gil", s=1.8)
    owners.until_acked(3)
    assert len(owners.history.events("enter")) == 2


@pytest.mark.servers("redis8", "valkey9")
def test_a_message_that_kills_its_owner_buries_its_own_room_and_no_other(server: Server, own: Own) -> None:
    """Counts never go down, so attempts are counted in the data's slot: by progress, not by takeovers."""
    owners = own(server, max_attempts=2, lease="300ms")
    names = owners.announce(4)
    owners.add(names[0], do="kill")
    for _ in range(6):
        process = owners.start(ready=False)
        wait_until_sync(lambda: process.code is not None or server.sync().xlen(f"{{{owners.stream}}}:dlq"), 20)  # noqa: B023
        if process.code is None:
            break
    for name in names[1:]:
        owners.add(name, 5)
    owners.until_acked(15)
    ((_, letter),) = server.sync().xrange(f"{{{owners.stream}}}:dlq")
    assert letter[b"stream"] == names[0].encode()
    assert owners.violations(dict.fromkeys(names[1:], 5)) == []


@pytest.mark.timeout(120)
@pytest.mark.servers("redis8", "redis6")
def test_many_streams_of_killed_owners_are_all_owned_by_the_others(server: Server, own: Own) -> None:
    """SPEC 45 in small (bench assignments has 2,000 streams and 10 owners): by fair share, within L + 5 s."""
    owners = own(server, lease="1s")
    streams = 300
    names = owners.announce(streams)
    processes = [owners.start(ready=False) for _ in range(5)]
    for process in processes:
        process.ready()
    wait_until_sync(lambda: sum(owners.holders().values()) == streams, 20)
    for process in processes[:2]:
        process.kill()
    killed_at = time.monotonic()
    living = {process.ready()[0] for process in processes[2:]}

    def owned_by_the_living() -> bool:
        held = owners.holders()
        return set(held) <= living and sum(held.values()) == streams

    wait_until_sync(owned_by_the_living, 6 + NOISE_S)
    assert time.monotonic() - killed_at < 6 + NOISE_S
    for name in names:
        owners.add(name, 2)
    owners.until_acked(2 * streams, 30)
    assert owners.violations(dict.fromkeys(names, 2)) == []


@pytest.mark.servers("redis8")
def test_under_the_supervisor_a_dead_childs_streams_are_taken_over_at_once(server: Server, own: Own) -> None:
    """DESIGN 11 for rooms: the parent ends the dead child's lease."""
    owners = own(server, lease="30s")
    owners.supervise(2)
    (name,) = owners.announce(1)
    owners.add(name, 1)
    (entered,) = owners.until(lambda history: history.events("enter"))
    owners.until_acked(1)
    os.kill(entered.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    again = owners.until(lambda history: history.events("enter")[1:], what="the takeover")[0]
    assert again.at - killed_at < 1 + NOISE_S
    assert again.about["after"] == owners.acked()[0].id
