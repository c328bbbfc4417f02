"""Owner processes killed and paused on a cluster, with rooms at every master; and what listens, claims and sets aside
there (SPEC 43b, 44, 51)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace import App
from tests.behaviour import test_assignments, test_partitions
from tests.support.owners import Owners
from tests.support.topologies import Cluster, Sentinels, every
from tests.support.wait import wait_until_sync
from tests.support.workers import Process

pytestmark = pytest.mark.servers(*every("redis8"))

MakeApp = Callable[..., App]
Own = Callable[..., Owners]
ROOMS = 6
LEASE_S = 0.5
NOISE_S = 2.0  # what a busy machine may add to a bound


def entered(owners: Owners, process: Process, since: float = 0.0) -> set[str]:
    """The rooms that a process has entered since a moment."""
    return {event.about["name"] for event in owners.history.events("enter", pid=process.pid) if event.at > since}


@pytest.mark.parametrize(("slow_s", "each"), [(0.0, 300), (0.05, 50)], ids=["quick", "slow"])
def test_owners_paused_and_killed_on_a_cluster_skip_nothing_and_every_late_word_is_refused(
    cluster: Cluster, own: Own, slow_s: float, each: int
) -> None:
    """SPEC 43b: SIGSTOP beyond the lease, CONT, SIGKILL; the fence is at the master that has the data.

    With slow handlers a message is under way at the pause: the sleeper acknowledges it when it wakes.
    """
    owners = own(cluster, slow_s=slow_s, lease=LEASE_S)
    names = owners.announce(cluster.names(f"{owners.stream}-room", ROOMS))
    assert len({cluster.member_of(name).port for name in names}) == 3
    for name in names:
        owners.add(name, each // 2)
    sleeper = owners.start()
    owners.until(lambda _: len({event.about["name"] for event in owners.acked()}) == ROOMS, what="a warm start")
    sleeper.pause()
    heir = owners.start()
    owners.until(lambda _: entered(owners, heir) == set(names), what="the takeover")
    sleeper.cont()
    if slow_s:
        owners.until(lambda history: history.events("refused", pid=sleeper.pid), what="a refused ack")
    wait_until_sync(lambda: sleeper.log.count("assignment.lost") >= ROOMS, 10, what="the sleeper told")
    heir.kill()
    killed_at = time.monotonic()
    for name in names:
        owners.add(name, each // 2, first=each // 2)
    owners.until_acked(ROOMS * each, 30)
    assert owners.violations(dict.fromkeys(names, each)) == []
    assert entered(owners, sleeper, since=killed_at) == set(names), "it lives, and takes them back"
    back = max(event.at for event in owners.history.events("enter", pid=sleeper.pid))
    assert back - killed_at < 1.5 * LEASE_S + NOISE_S
    for name in names:
        last = max(owners.acked(name), key=lambda event: event.about["n"])
        standing = owners.standing(name)
        assert (last.about["n"], standing.position) == (each - 1, last.id)
        assert standing.epoch == max(event.about["epoch"] for event in owners.history.events("enter", name=name))


# ── the behaviour of one server, wherever the streams are ──


async def test_events_and_claims_work_on_a_cluster(cluster: Cluster, stream: str, make_app: MakeApp) -> None:
    """SPEC 44: Added, Expired, Disowned, Terminated; of two that claim at once one wins."""
    told = test_assignments.test_events_tell_what_was_added_expired_disowned_and_that_it_is_over
    await told(cluster, stream, make_app)  # type: ignore[arg-type]
    claimed = test_assignments.test_of_two_that_claim_at_once_one_wins_and_the_other_is_told_who
    await claimed(cluster, f"{stream}-2", make_app)  # type: ignore[arg-type]


async def test_events_and_claims_work_behind_sentinels(sentinels: Sentinels, stream: str, make_app: MakeApp) -> None:
    told = test_assignments.test_events_tell_what_was_added_expired_disowned_and_that_it_is_over
    await told(sentinels, stream, make_app)  # type: ignore[arg-type]
    claimed = test_assignments.test_of_two_that_claim_at_once_one_wins_and_the_other_is_told_who
    await claimed(sentinels, f"{stream}-2", make_app)  # type: ignore[arg-type]


async def test_an_ordered_message_that_fails_is_set_aside_at_the_master_of_its_partition(
    cluster: Cluster, stream: str, make_app: MakeApp
) -> None:
    """SPEC 26, 28, 51: the dead letter and the position in one step, in the partition's slot."""
    aside = test_partitions.test_a_failing_message_is_tried_in_place_then_set_aside_and_replayed_at_the_end
    await aside(cluster, stream, make_app)  # type: ignore[arg-type]
