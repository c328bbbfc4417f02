"""Messages that kill their process: counted exactly, buried, and nobody else with them (SPEC 25, 26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from headrace.redis.calls import load
from headrace.redis.letters import open_letter
from tests.support.looking import fill, pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until, wait_until_sync
from tests.support.workers import GROUP, Workers

Hire = Callable[..., Workers]


def buried(server: Server, stream: str) -> list[str]:
    """The original ids of the dead letters."""
    found = []
    for _, fields in server.sync().xrange(f"{{{stream}}}:dlq"):
        letter = open_letter([word for pair in fields.items() for word in pair], "_")
        assert letter is not None
        found.append(letter.about["original_id"].decode())
    return found


@pytest.mark.servers("valkey9")
def test_a_message_that_kills_its_process_starts_exactly_max_attempts_times_and_is_buried(
    server: Server, hire: Hire
) -> None:
    """SPEC 25: exactly three starts, attempts 1, 2, 3, also when each start kills the process; then one dead letter."""
    workers = hire(server, lease="30s", concurrency=10, max_attempts=3)
    workers.supervise(1)
    poison = workers.add(server, do="kill")
    wait_until_sync(lambda: buried(server, workers.stream), 25, what="the burial")
    assert [start.attempt for start in workers.history.starts(id=poison)] == [1, 2, 3]
    assert buried(server, workers.stream) == [poison]
    after = workers.add(server, do="ok")
    workers.until(lambda history: history.ends(id=after), timeout=15)
    assert buried(server, workers.stream) == [poison]


@pytest.mark.parametrize(("poisons", "supervised"), [(4, True), (1, False)], ids=["supervised", "plain"])
@pytest.mark.servers("redis8")
def test_a_message_that_kills_its_process_never_buries_another(
    server: Server, hire: Hire, poisons: int, supervised: bool
) -> None:
    """SPEC 25: 1 and 4 poison messages among 200, 50 slots: dead letters = the poison set, everything else is done.

    Without the supervisor a test has to restart what dies, as systemd would.
    """
    workers = hire(server, lease="500ms", concurrency=50, max_attempts=3)
    orders = [workers.add(server, do="sleep", s=0.02) for _ in range(100)]
    poison = {workers.add(server, do="kill") for _ in range(poisons)}
    orders += [workers.add(server, do="sleep", s=0.02) for _ in range(100)]
    if supervised:
        workers.supervise(2)
    else:
        workers.start(ready=False)
        workers.start(ready=False)

    def finished() -> bool:
        if not supervised:
            for dead in [worker for worker in workers.processes if worker.code is not None]:
                workers.processes.remove(dead)
                workers.start(ready=False)
        return len(buried(server, workers.stream)) >= poisons and not (
            {*orders} - {end.id for end in workers.history.ends()}
        )

    wait_until_sync(finished, 50, interval=0.05, what="everything handled or buried")
    assert sorted(buried(server, workers.stream)) == sorted(poison)
    starts = Counter(start.id for start in workers.history.starts())
    assert all(starts[id_] <= 3 for id_ in starts), starts.most_common(5)
    if supervised:
        # One that is killed by another between its mark and its handler's first line has spent that start.
        fewest = 3 if poisons == 1 else 2
        assert {starts[id_] for id_ in poison} <= {fewest, 3}
    wait_until_sync(lambda: pending(server, workers.stream, GROUP) == {}, what="the last acks")
    assert waiting(server, workers.stream, GROUP) == {}


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("heard", [False, True], ids=["before", "after"])
async def test_a_worker_killed_at_its_burial_loses_nothing_and_buries_once(
    server: Server, hire: Hire, heard: bool
) -> None:
    """SPEC 26: killed when the script is on its way, which the server never hears, or hears without an answer."""
    sha = load("bury").sha.encode()
    killed: list[int] = []

    def kill(data: bytes) -> bool:
        if sha not in data or killed:
            return True
        killed.extend(parent.children())
        workers.kill(killed[0])
        return heard

    async with Proxy(server.socket) as proxy:
        workers = hire(server, url=proxy.url, lease="500ms", concurrency=5)
        parent = workers.supervise(1, ready=False)
        warm = workers.add(server, do="bury")  # loads the script: from here on one write is the whole burial
        await wait_until(lambda: buried(server, workers.stream) == [warm], 15)
        proxy.on_request = kill
        message = workers.add(server, do="bury")
        await wait_until(lambda: len(buried(server, workers.stream)) == 2, 15, what="the burial")
        # Whatever would bury again has done so once the next child has handled what comes after.
        behind = workers.add(server, do="ok")
        await wait_until(lambda: workers.history.ends(id=behind), 15)
        assert buried(server, workers.stream) == [warm, message]
        attempts = [start.attempt for start in workers.history.starts(id=message)]
        assert attempts == ([1] if heard else [1, 2])
        await wait_until(lambda: pending(server, workers.stream, GROUP) == {})


@pytest.mark.servers("redis6")
def test_workers_killed_among_their_burials_lose_nothing_and_bury_once(server: Server, hire: Hire) -> None:
    """SPEC 26: 2,000 messages to be buried, four kills at moments nobody chose."""
    workers = hire(server, lease="400ms", concurrency=20, max_attempts=1000)
    sent = fill(server, workers.stream, 2_000, '{"do":"bury","n":%d}')
    parent = workers.supervise(2)
    for mark in (100, 500, 900, 1_300):
        wait_until_sync(lambda: server.sync().xlen(f"{{{workers.stream}}}:dlq") >= mark, 20, 0.001)  # noqa: B023
        for child in parent.children()[:1]:
            workers.kill(child)
    wait_until_sync(lambda: server.sync().xlen(f"{{{workers.stream}}}:dlq") >= 2_000, 20, what="all buried")
    wait_until_sync(lambda: pending(server, workers.stream, GROUP) == {}, what="nothing pending")
    assert sorted(buried(server, workers.stream)) == sorted(sent)
