"""kill -9 of a worker: a sibling takes over (SPEC 8)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.looking import pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import NATIVE, Server
from tests.support.workers import GROUP
from tests.support.wait import wait_until
from tests.support.workers import Workers

Hire = Callable[..., Workers]

NOISE_S = 1.5  # what a busy machine may add to a bound


def add(server: Server, stream: str, **order: object) -> str:
    return server.sync().xadd(stream, {"payload": json.dumps(order)}).decode()


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_a_sibling_starts_a_killed_workers_message_after_its_lease_and_not_before(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: within L + 250 ms (native), L + L/4 + 250 ms (fallback)."""
    lease_s = 0.5
    workers = hire(server, lease=lease_s, concurrency=1)
    first = workers.start()
    message = add(server, stream, do="sleep", s=30)
    started = workers.until(lambda history: history.starts(id=message))[0]
    sibling = workers.start()
    # busy with its own renewals for a while: whoever is alive keeps its message
    time.sleep(lease_s)
    assert len(workers.history.starts(id=message)) == 1
    held = pending(server, stream, GROUP)[message]
    killed_at = time.monotonic()
    first.kill()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the rescue")[0]
    assert (again.pid, again.attempt) == (sibling.pid, 2)
    assert started.owner != again.owner
    assert held.owner == started.owner
    # The last renewal was at most L/3 + one look before the kill, so the lease cannot end before half of it is over.
    assert again.at - killed_at > lease_s / 2
    scan_s = 0.0 if server.key in NATIVE else lease_s / 4
    assert again.at - killed_at < lease_s + scan_s + 0.25 + NOISE_S


@pytest.mark.servers("redis8", "redis6")
def test_under_the_supervisor_a_dead_childs_message_starts_again_at_once_whatever_the_lease(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: within 250 ms of the death, at a message's first crash."""
    workers = hire(server, lease="30s", concurrency=1)
    workers.supervise(2)
    message = add(server, stream, do="sleep", s=30)
    started = workers.until(lambda history: history.starts(id=message))[0]
    os.kill(started.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the hand-over")[0]
    assert again.attempt == 2
    assert again.pid != started.pid
    assert again.at - killed_at < 0.25 + NOISE_S


@pytest.mark.servers("redis8", "valkey9")
def test_what_a_dead_child_held_and_had_not_started_gives_its_attempt_back(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8, 25: under the supervisor attempt = handler starts, also for what was read ahead."""
    workers = hire(server, lease="30s", batch=2, batch_wait=10, concurrency=1)
    del workers.settings["handler"]["batch"], workers.settings["handler"]["batch_wait"]
    workers.supervise(1)
    blocked = add(server, stream, do="block", s=30)
    first = workers.until(lambda history: history.starts(id=blocked))[0]
    os.kill(first.pid, signal.SIGKILL)
    again = workers.until(lambda history: history.starts(id=blocked)[1:], what="the hand-over")[0]
    assert again.attempt == 2
    behind = add(server, stream, do="ok")
    os.kill(again.pid, signal.SIGKILL)
    done = workers.until(lambda history: history.ends(id=behind), timeout=15)[0]
    assert done.attempt == 1


@pytest.mark.servers("redis8")
async def test_a_child_killed_right_after_it_sent_its_ack_is_not_run_again_30_ms_away(
    server: Server, stream: str, hire: Hire
) -> None:
    """SPEC 8: the parent waits until the server has heard everything the child had said."""
    from headrace.redis.calls import load

    sha = load("ack").sha.encode()
    async with Proxy(server.socket) as proxy:
        proxy.delay_s = 0.03
        workers = hire(server, url=proxy.url, lease="30s", concurrency=1)
        parent = workers.supervise(1, ready=False)
        await wait_until(lambda: "worker.started" in parent.log, 15)
        for round_ in range(5):
            message = add(server, stream, do="ok", n=round_)
            killed: list[int] = []

            def kill(data: bytes) -> None:
                if sha in data and not killed:
                    killed.extend(pid for pid in parent.children())
                    for pid in killed:
                        os.kill(pid, signal.SIGKILL)

            proxy.on_request = kill
            await wait_until(lambda: killed, 15, what="the ack on its way")  # noqa: B023
            proxy.on_request = None
            started = round_ + 2
            await wait_until(lambda: parent.log.count("worker.started") >= started, 15)  # noqa: B023
            # adoption is over before the next child starts to read: whatever was handed back would be started by now
            marker = add(server, stream, do="ok", n=-1)
            await wait_until(lambda: workers.history.ends(id=marker), 15)  # noqa: B023
            assert len(workers.history.starts(id=message)) == 1, parent.log[-3000:]
    assert pending(server, stream, GROUP) == {}
    assert waiting(server, stream, GROUP) == {}
