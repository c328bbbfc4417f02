"""Recovery by requeue with real processes that die (SPEC 8, 22, 25, 46)."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.support.looking import pending
from tests.support.servers import Server
from tests.support.wait import wait_until_sync
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]

NOISE_S = 1.5
LOCK_S = 0.5
INTERVAL_S = 0.25
REQUEUE: dict[str, Any] = {"interval": INTERVAL_S, "min_idle": "500ms", "hints": False}


def test_a_killed_workers_message_runs_elsewhere_within_its_lock_and_an_interval_and_not_before(
    server: Server, stream: str, hire: Hire
) -> None:
    workers = hire(server, lease=LOCK_S, concurrency=1, requeue=REQUEUE)
    first = workers.start()
    workers.add(server, do="sleep", s=30, n=1)
    workers.until(lambda history: history.starts(n=1))
    sibling = workers.start()
    time.sleep(LOCK_S)
    killed_at = time.monotonic()
    first.kill()
    again = workers.until(lambda history: history.starts(n=1)[1:], what="the copy")[0]
    assert (again.pid, again.attempt) == (sibling.pid, 2)
    assert again.at - killed_at > LOCK_S / 2
    assert again.at - killed_at < LOCK_S + 1.1 * INTERVAL_S + NOISE_S


def test_a_message_that_kills_its_process_is_buried_after_its_retries_and_nothing_is_lost(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 25: max_retries=2 is three starts, also when each start kills the process."""
    workers = hire(server, lease=LOCK_S, concurrency=1, requeue={**REQUEUE, "max_retries": 2})
    workers.add(server, do="kill", n=0)
    for n in range(1, 6):
        workers.add(server, do="ok", n=n)
    for _ in range(3):
        process = workers.start()
        assert process.wait(20) == -signal.SIGKILL
    workers.start()
    workers.until(lambda history: all(history.ends(n=n) for n in range(1, 6)), 15, what="the innocent ones")
    wait_until_sync(lambda: server.sync().xlen(f"{{{stream}}}:dlq") == 1, 10, what="the burial")
    assert [start.attempt for start in workers.history.starts(n=0)] == [1, 2, 3]
    wait_until_sync(lambda: pending(server, stream, GROUP) == {}, 10)


def test_a_paused_owner_loses_its_lock_and_its_late_ack_is_refused(server: Server, stream: str, hire: Hire) -> None:
    """SPEC 11: the copy runs once elsewhere; what comes back from the pause is told, and its outcome refused."""
    workers = hire(server, lease=LOCK_S, concurrency=1, requeue=REQUEUE)
    paused = workers.start()
    workers.add(server, do="sleep", s=5, n=1)
    workers.until(lambda history: history.starts(n=1))
    paused.pause()
    workers.start()
    workers.until(lambda history: history.starts(n=1)[1:], what="the copy")
    paused.cont()
    lost = workers.until(lambda history: [event for event in history.events() if event.op == "lost"], what="the news")
    assert lost[0].pid == paused.pid
    wait_until_sync(lambda: pending(server, stream, GROUP) == {}, 15)
    assert [start.attempt for start in workers.history.starts(n=1)] == [1, 2]
    assert server.sync().xlen(stream) == 2


def test_sigterm_hands_back_unfinished_work_without_burning_a_retry(server: Server, stream: str, hire: Hire) -> None:
    """SPEC 22: exit 0, a copy with the same retry count at once, no lock left."""
    workers = hire(server, lease=LOCK_S, concurrency=1, requeue={**REQUEUE, "interval": 60})
    stopping = workers.start(app={"grace": "100ms"})
    workers.add(server, do="sleep", s=1, n=1)
    workers.until(lambda history: history.starts(n=1))
    stopping.term()
    assert stopping.wait() == 0
    assert pending(server, stream, GROUP) == {}
    workers.start(app={"grace": "5s"})
    workers.until(lambda history: history.ends(n=1))
    assert [start.attempt for start in workers.history.starts(n=1)] == [1, 1]
    redis = server.sync()
    wait_until_sync(lambda: not [key for key in redis.keys("lock:*") if stream.encode() in key], what="no lock")


def test_under_the_supervisor_a_dead_childs_message_starts_again_at_once(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: the parent hands it back, in place; the lock of the dead child does not stand in the way."""
    workers = hire(server, lease="30s", concurrency=1, requeue={"interval": 60, "hints": False})
    parent = workers.supervise(2)
    workers.add(server, do="sleep", s=30, n=1)
    started = workers.until(lambda history: history.starts(n=1))[0]
    workers.kill(started.pid)
    killed_at = time.monotonic()
    again = workers.until(lambda history: history.starts(n=1)[1:], what="the hand-over")[0]
    assert again.attempt == 2
    assert again.pid != started.pid
    assert again.at - killed_at < 0.25 + NOISE_S, parent.log[-2000:]


def test_a_child_that_holds_the_gil_is_not_robbed_although_its_lock_runs_out(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 13: the parent cannot lock for it, but keeps its messages too fresh for any scan or hint."""
    workers = hire(server, lease=LOCK_S, concurrency=1, requeue=REQUEUE)
    workers.supervise(2)
    workers.add(server, do="gil", s=6 * LOCK_S, n=1)
    workers.until(lambda history: history.ends(n=1), 20)
    wait_until_sync(lambda: pending(server, stream, GROUP) == {}, 10)
    assert [start.attempt for start in workers.history.starts(n=1)] == [1]


def test_under_the_supervisor_a_requeued_neighbour_of_a_message_that_kills_has_its_last_attempt_alone(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 25, ADR 8: what a copy was tried under its earlier ids counts when the parent hands it back."""
    rules = {"interval": 60, "hints": False, "max_retries": 2}
    workers = hire(server, lease="30s", concurrency=4, requeue=rules)
    copy = {"_retry_count": "1", "_original_id": "1-1"}
    for n in (1, 2):  # their first attempt has failed before
        server.sync().xadd(stream, {"payload": json.dumps({"do": "sleep", "s": 0.3, "n": n}), **copy})
    workers.add(server, do="kill", n=0)
    workers.supervise(1)
    workers.until(lambda history: history.ends(n=1) and history.ends(n=2), 20, what="the innocent ones")
    wait_until_sync(lambda: server.sync().xlen(f"{{{stream}}}:dlq") == 1, 20, what="the burial")
    for n in (1, 2):
        assert [start.attempt for start in workers.history.starts(n=n)] == [2, 3]
    assert [start.attempt for start in workers.history.starts(n=0)] == [1, 2, 3]
    wait_until_sync(lambda: pending(server, stream, GROUP) == {}, 10)
