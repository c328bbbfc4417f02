"""SIGSTOP beyond the lease: a zombie learns that it is one, and nothing it says counts (SPEC 11)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.looking import pending, waiting
from tests.support.servers import Server
from tests.support.wait import wait_until_sync
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]

LEASE_S = 0.4


@pytest.mark.servers("redis8", "valkey9")
def test_a_paused_owner_loses_its_message_and_is_told_within_one_renewal(server: Server, hire: Hire) -> None:
    """SPEC 11: taken over while paused; `delivery.lost` is set after SIGCONT; the return is refused."""
    workers = hire(server, lease=LEASE_S, concurrency=1)
    first = workers.start()
    message = workers.add(server, do="sleep", s=30)
    workers.until(lambda history: history.starts(id=message))
    sibling = workers.start()
    first.pause()
    again = workers.until(lambda history: history.starts(id=message)[1:], what="the rescue")[0]
    assert (again.pid, again.attempt) == (sibling.pid, 2)
    first.cont()
    woke_at = time.monotonic()
    lost = workers.until(lambda history: history.events("lost", pid=first.pid), what="delivery.lost")[0]
    assert lost.at - woke_at < LEASE_S / 3 + 1.5
    wait_until_sync(lambda: "outcome.refused" in first.log, what="the refusal")
    # The sibling's delivery is untouched, and the zombie did not steal it back.
    held = pending(server, workers.stream, GROUP)[message]
    assert (held.owner, held.count) == (again.owner, 2)
    assert workers.history.events("lost", pid=sibling.pid) == []


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("way", ["ack", "retry", "bury", "release"])
def test_every_late_word_of_a_zombie_is_refused(
    server: Server, hire: Hire, tmp_path: Path, way: str
) -> None:
    """SPEC 11: ack, retry, bury and release of a former owner change nothing. (Effects: test_effects.)

    The zombie speaks before its first renewal could tell it: it waits for a file that is there when it wakes.
    """
    workers = hire(server, lease=LEASE_S, concurrency=1)
    first = workers.start()
    go = tmp_path / "go"
    message = workers.add(server, do="ask", file=str(go), then=way)
    workers.until(lambda history: history.starts(id=message))
    first.pause()
    sibling = workers.start()
    again = workers.until(lambda history: history.starts(id=message, pid=sibling.pid), what="the rescue")[0]
    sibling.pause()  # it holds the message, and the file below is not for it
    before = server.sync().xpending_range(workers.stream, GROUP, "-", "+", 10)
    assert [row["consumer"].decode() for row in before] == [again.owner]
    go.touch()
    first.cont()
    refused = workers.until(lambda history: history.events("refused", pid=first.pid), what="the refusal")[0]
    assert refused.about["way"] == way
    wait_until_sync(lambda: "refused" in first.log or "lost" in first.log)
    held = pending(server, workers.stream, GROUP)
    assert set(held) == {message}
    assert (held[message].owner, held[message].count) == (again.owner, 2)
    assert waiting(server, workers.stream, GROUP) == {}
    assert server.sync().xlen(f"{{{workers.stream}}}:dlq") == 0
