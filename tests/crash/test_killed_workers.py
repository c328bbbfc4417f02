"""kill -9 of a worker: a sibling takes over (SPEC 8)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from headrace.redis.calls import load
from tests.support.looking import pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import NATIVE, Server
from tests.support.stays import stays_sync
from tests.support.wait import wait_until
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]

NOISE_S = 1.5  # what a busy machine may add to a bound


@pytest.mark.servers("redis8", "redis6")
def test_a_sibling_starts_a_killed_workers_message_after_its_lease_and_not_before(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: within L + 250 ms (native), L + L/4 + 250 ms (fallback)."""
    lease_s = 0.5
    workers = hire(server, lease=lease_s, concurrency=1)
    first = workers.start()
    message = workers.add(server, do="sleep", s=30)
    started = workers.until(lambda history: history.starts(id=message))[0]
    sibling = workers.start()
    stays_sync(lambda: len(workers.history.starts(id=message)) == 1, lease_s)
    held = pending(server, stream, GROUP)[message]
    killed_at = time.monotonic()
    first.kill()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the rescue")[0]
    assert (again.pid, again.attempt) == (sibling.pid, 2)
    assert held.owner == started.owner != again.owner
    # The last renewal was at most L/3 and one look before the kill: more than half of the lease was left.
    assert again.at - killed_at > lease_s / 2
    scan_s = 0.0 if server.key in NATIVE else lease_s / 4
    assert again.at - killed_at < lease_s + scan_s + 0.25 + NOISE_S


@pytest.mark.servers("redis8", "redis6")
def test_under_the_supervisor_a_dead_childs_message_starts_again_at_once_whatever_the_lease(
    server: Server, hire: Hire
) -> None:
    """SPEC 8: within 250 ms of the death, at a message's first crash."""
    workers = hire(server, lease="30s", concurrency=1)
    workers.supervise(2)
    message = workers.add(server, do="sleep", s=30)
    started = workers.until(lambda history: history.starts(id=message))[0]
    os.kill(started.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the hand-over")[0]
    assert again.attempt == 2
    assert again.pid != started.pid
    assert again.at - killed_at < 0.25 + NOISE_S


@pytest.mark.servers("redis8")
def test_what_a_dead_child_had_read_and_not_started_gives_its_attempt_back(server: Server, hire: Hire) -> None:
    """SPEC 8, 25: under the supervisor attempt = handler starts, also for what was read ahead, also twice."""
    workers = hire(server, lease="30s", concurrency=2)
    blocking = workers.add(server, do="block", s=30)
    behind = workers.add(server, do="ok")
    workers.supervise(1)
    for crash in (1, 2):
        start = workers.until(lambda history: history.starts(id=blocking)[crash - 1 :])[0]  # noqa: B023
        assert (start.attempt, workers.history.starts(id=behind)) == (crash, [])
        os.kill(start.pid, signal.SIGKILL)
    # The second crash makes the blocking one wait: now the one behind it is first.
    done = workers.until(lambda history: history.ends(id=behind))[0]
    assert done.attempt == 1


@pytest.mark.servers("redis8")
async def test_a_child_killed_right_after_it_sent_its_ack_is_not_run_again_30_ms_away(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: the parent waits until the server has heard everything that the child had said."""
    async with Proxy(server.socket) as proxy:
        workers = hire(server, url=proxy.url, lease="30s", concurrency=1)
        parent = workers.supervise(1, ready=False, parent=server.url)  # the parent is near, the child is not
        warm = workers.add(server, do="ok")  # loads the script: from here on one write is the whole ack
        await wait_until(lambda: workers.history.ends(id=warm), 15)
        await wait_until(lambda: pending(server, stream, GROUP) == {})
        proxy.delay_s = 0.03
        for deaths in (1, 2):
            killed: list[int] = []
            proxy.on_request = lambda data: _kill_at_ack(data, parent.children(), killed)  # noqa: B023
            message = workers.add(server, do="ok")
            await wait_until(lambda: killed, 15, what="the ack on its way")  # noqa: B023
            await wait_until(lambda: parent.log.count("worker.started") > deaths, 15)  # noqa: B023
            # Taken after everything that was handed back: what would run again has run by then.
            behind = workers.add(server, do="ok")
            await wait_until(lambda: workers.history.ends(id=behind), 15)  # noqa: B023
            assert len(workers.history.starts(id=message)) == 1, parent.log[-3000:]
            await wait_until(lambda: pending(server, stream, GROUP) == {})
        assert waiting(server, stream, GROUP) == {}


def _kill_at_ack(data: bytes, children: list[int], killed: list[int]) -> None:
    if load("ack").sha.encode() in data and not killed:
        killed.extend(children)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
