"""SIGTERM: what runs may finish, what is finished is acked, the rest goes back untouched (SPEC 22)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.looking import pending, waiting
from tests.support.servers import Server
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("supervised", [False, True], ids=["plain", "supervised"])
def test_sigterm_lets_handlers_finish_acks_and_exits_with_zero(server: Server, hire: Hire, supervised: bool) -> None:
    """SPEC 22: reading stops, what runs gets its grace, finished work is acked, exit 0."""
    workers = hire(server, lease="10s", concurrency=2)
    worker = workers.supervise(1) if supervised else workers.start()
    running = [workers.add(server, do="sleep", s=0.5) for _ in range(2)]
    workers.until(lambda history: len(history.starts()) == 2)
    worker.term()
    unread = [workers.add(server, do="ok") for _ in range(3)]
    assert worker.wait() == 0, worker.log
    assert sorted(end.id for end in workers.history.ends()) == sorted(running)
    assert len(workers.history.starts()) == 2
    # Nothing is left in the dead owner's name, so nobody waits for its lease.
    assert pending(server, workers.stream, GROUP) == {}
    assert waiting(server, workers.stream, GROUP) == {}
    workers.start()
    workers.until(lambda history: {end.id for end in history.ends()} >= set(unread))


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("supervised", [False, True], ids=["plain", "supervised"])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
def test_what_does_not_finish_in_its_grace_is_released_and_burns_no_attempt(
    server: Server, hire: Hire, supervised: bool, plain: bool
) -> None:
    """SPEC 22: claimable at once, whatever the lease; a plain def handler cannot hold the process."""
    workers = hire(server, lease="30s", concurrency=2)
    settings = {"app": {"grace": "300ms"}, "plain": plain}
    worker = workers.supervise(1, options={"grace_s": 0.3}, **settings) if supervised else workers.start(**settings)
    stuck = workers.add(server, do="sleep", s=6 if plain else 30)
    workers.until(lambda history: history.starts(id=stuck))
    begun = time.monotonic()
    worker.term()
    assert worker.wait() == 0, worker.log
    took_s = time.monotonic() - begun
    assert 0.25 < took_s < 0.3 + 2.5
    workers.start(**settings)
    again = workers.until(lambda history: history.starts(id=stuck)[1:], timeout=5, what="the next start")[0]
    assert again.attempt == 1


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("supervised", [False, True], ids=["plain", "supervised"])
def test_a_second_sigterm_ends_at_once(server: Server, hire: Hire, supervised: bool) -> None:
    """SPEC 22: the grace is 30 s, nobody waits for it, and the delivery is released all the same."""
    workers = hire(server, lease="30s", concurrency=1)
    worker = workers.supervise(1) if supervised else workers.start()
    stuck = workers.add(server, do="sleep", s=30)
    workers.until(lambda history: history.starts(id=stuck))
    worker.term()
    time.sleep(0.2)  # a second signal, not the same one twice: pending signals merge
    assert worker.code is None
    begun = time.monotonic()
    worker.term()
    assert worker.wait() == 0, worker.log
    assert time.monotonic() - begun < 3
    assert pending(server, workers.stream, GROUP) == {}
    assert [held.count for held in waiting(server, workers.stream, GROUP).values()] == [0]


@pytest.mark.servers("redis6")
def test_a_rolling_restart_burns_no_attempt_and_runs_nothing_twice(server: Server, hire: Hire) -> None:
    """SPEC 22: a deploy, as messages come: three workers replaced one after the other."""
    workers = hire(server, lease="30s", concurrency=5)
    old = [workers.start() for _ in range(2)]
    sent = []
    for worker in [*old, workers.start()]:
        sent += [workers.add(server, do="sleep", s=0.05, n=n) for n in range(20)]
        workers.start()
        worker.term()
        sent += [workers.add(server, do="sleep", s=0.05, n=n) for n in range(20)]
        assert worker.wait() == 0, worker.log
    workers.until(lambda history: len(history.ends()) >= len(sent), what="everything handled")
    assert sorted(start.id for start in workers.history.starts()) == sorted(sent)
    assert {start.attempt for start in workers.history.starts()} == {1}
