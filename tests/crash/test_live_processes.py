"""Live processes are not robbed, whatever their event loop and their parent do (SPEC 9, 13)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.looking import pending
from tests.support.servers import Server
from tests.support.stays import stays_sync
from tests.support.wait import wait_until_sync
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]

LEASE_S = 0.5


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("order", [{"do": "block", "s": 3 * LEASE_S}, {"do": "gil", "s": 3 * LEASE_S}])
def test_a_handler_that_blocks_its_loop_or_holds_the_gil_is_not_robbed_under_the_supervisor(
    server: Server, hire: Hire, order: dict[str, object]
) -> None:
    """SPEC 13: the lifeline's thread renews for a blocked loop, the parent process for a held GIL."""
    workers = hire(server, lease=LEASE_S, concurrency=1)
    workers.supervise(2)
    message = workers.add(server, **order)
    workers.until(lambda history: history.starts(id=message))
    end = workers.until(lambda history: history.ends(id=message))[0]
    wait_until_sync(lambda: pending(server, workers.stream, GROUP) == {}, what="its ack")
    assert [(start.pid, start.attempt) for start in workers.history.starts(id=message)] == [(end.pid, 1)]


@pytest.mark.servers("valkey9")
def test_a_blocked_loop_is_warned_about_with_the_handlers_name_and_robbed_after_stall_after(
    server: Server, hire: Hire
) -> None:
    """SPEC 13: beyond `stall_after` renewal stops and a sibling takes over; a plain worker this time."""
    workers = hire(server, lease=LEASE_S, stall_after=3 * LEASE_S, concurrency=1)
    first = workers.start()
    message = workers.add(server, do="block", s=6 * LEASE_S)
    started = workers.until(lambda history: history.starts(id=message))[0]
    workers.start()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the take-over")[0]
    assert again.attempt == 2
    assert again.at - started.at > 3 * LEASE_S
    assert re.search(r"loop\.blocked .* by handler tests\.support\.shop\.handle", first.log)
    assert "loop.stalled" in first.log
    # Its return comes too late and is refused.
    workers.until(lambda history: history.ends(id=message, pid=first.pid))
    wait_until_sync(lambda: "outcome.refused" in first.log, what="the refusal")


@pytest.mark.servers("redis8")
def test_a_stalled_child_is_robbed_although_its_parent_lives(server: Server, hire: Hire) -> None:
    """SPEC 13: the parent does not renew for a loop that stood still for longer than `stall_after` either."""
    workers = hire(server, lease=LEASE_S, stall_after=2 * LEASE_S, concurrency=1)
    workers.supervise(2)
    message = workers.add(server, do="gil", s=6 * LEASE_S)
    started = workers.until(lambda history: history.starts(id=message))[0]
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the take-over")[0]
    assert again.pid != started.pid
    assert again.at - started.at > 2 * LEASE_S


@pytest.mark.servers("redis8")
def test_slow_handlers_beside_others_that_block_the_loop_run_once(server: Server, hire: Hire) -> None:
    """SPEC 13: four long handlers beside others that block the loop 60 ms at a time: four executions."""
    workers = hire(server, lease=LEASE_S, concurrency=20)
    slow = [workers.add(server, do="sleep", s=5 * LEASE_S) for _ in range(4)]
    workers.start()
    workers.start()
    workers.until(lambda history: len(history.starts(do="sleep")) == 4)
    for _ in range(60):
        workers.add(server, do="block", s=0.06)
    workers.until(lambda history: len(history.ends()) >= 64, timeout=20)
    wait_until_sync(lambda: pending(server, workers.stream, GROUP) == {}, what="the acks")
    assert sorted(start.id for start in workers.history.starts(do="sleep")) == sorted(slow)
    assert len(workers.history.starts(do="block")) == 60


@pytest.mark.servers("redis6")
def test_a_paused_parent_robs_no_child(server: Server, hire: Hire) -> None:
    """SPEC 13: SIGSTOP of the parent for 3 × L: the children's own lifelines renew."""
    workers = hire(server, lease=LEASE_S, concurrency=1)
    parent = workers.supervise(2)
    messages = [workers.add(server, do="sleep", s=4 * LEASE_S) for _ in range(2)]
    workers.until(lambda history: len(history.starts()) == 2)
    parent.pause()
    stays_sync(lambda: len(workers.history.starts()) == 2, 3 * LEASE_S)
    parent.cont()
    workers.until(lambda history: len(history.ends()) == 2)
    assert sorted(start.id for start in workers.history.starts()) == sorted(messages)


@pytest.mark.servers("redis8")
def test_children_of_a_dead_parent_keep_their_work_drain_and_exit(server: Server, hire: Hire) -> None:
    """SPEC 13: the parent is killed; nothing is robbed, run again or left behind."""
    workers = hire(server, lease=LEASE_S, concurrency=1)
    parent = workers.supervise(2)
    children = parent.children()
    messages = [workers.add(server, do="sleep", s=3 * LEASE_S) for _ in range(2)]
    workers.until(lambda history: len(history.starts()) == 2)
    parent.kill()
    workers.until(lambda history: len(history.ends()) == 2)
    try:
        wait_until_sync(lambda: not any(map(_runs, children)), what="the children's end")
    finally:
        for child in filter(_runs, children):
            os.kill(child, signal.SIGKILL)
    assert sorted(start.id for start in workers.history.starts()) == sorted(messages)
    assert pending(server, workers.stream, GROUP) == {}


def _runs(pid: int) -> bool:
    """Whether a process that is not our child is alive; one that nobody waited for is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
