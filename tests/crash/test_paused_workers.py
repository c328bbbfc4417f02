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
def test_every_late_word_of_a_zombie_is_refused(server: Server, hire: Hire, tmp_path: Path) -> None:
    """SPEC 11: ack, retry, bury and release of a former owner change nothing. (Effects: test_effects.)

    The zombie speaks before its first renewal could tell it: it waits for a file that is there when it wakes.
    """
    ways = ["ack", "retry", "bury", "release"]
    workers = hire(server, lease=LEASE_S, concurrency=len(ways))
    first = workers.start()
    go = tmp_path / "go"
    for way in ways:
        workers.add(server, do="ask", file=str(go), then=way)
    workers.until(lambda history: len(history.starts()) == len(ways))
    first.pause()
    sibling = workers.start()
    again = workers.until(lambda history: history.starts(pid=sibling.pid)[len(ways) - 1 :], what="the rescue")[0]
    sibling.pause()  # it holds the messages, and the file below is not for it
    before = pending(server, workers.stream, GROUP)
    assert [(held.owner, held.count) for held in before.values()] == [(again.owner, 2)] * len(ways)
    go.touch()
    first.cont()
    refused = workers.until(
        lambda history: history.events("refused", pid=first.pid)[len(ways) - 1 :] and history.events("refused"),
        what="the refusals",
    )
    assert sorted(event.about["way"] for event in refused) == sorted(ways)
    after = pending(server, workers.stream, GROUP)
    assert {id_: (held.owner, held.count) for id_, held in after.items()} == {
        id_: (held.owner, held.count) for id_, held in before.items()
    }
    assert waiting(server, workers.stream, GROUP) == {}
    assert server.sync().xlen(f"{{{workers.stream}}}:dlq") == 0
