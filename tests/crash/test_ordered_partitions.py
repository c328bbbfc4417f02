"""Workers of an ordered stream killed and paused: strict order for each key, none lost, takeover (SPEC 51)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.names import keys_of
from headrace.partitions import Partitions
from tests.support.forked import Forked
from tests.support.history import History
from tests.support.servers import Server
from tests.support.wait import wait_until

KEYS, PER_KEY = 12, 25
LEASE_S = 0.5  # tests/support/ordered.py

pytestmark = pytest.mark.servers("redis8", "redis6", "valkey9")


class Crew:
    def __init__(self, server: Server, stream: str, folder: Path, slow_s: float) -> None:
        self._env = {
            **os.environ,
            "HEADRACE_ORDERED": json.dumps(
                {"url": server.url, "stream": stream, "history": str(folder / "history"), "slow_s": slow_s}
            ),
        }
        self.history = History(folder / "history")
        self._log = folder / "log"
        self.processes: list[Forked] = []

    def hire(self) -> Forked:
        self.processes.append(Forked("from tests.support.ordered import app; app.run()", (), self._env, self._log))
        return self.processes[-1]

    def done(self) -> list[tuple[str, int]]:
        return [(event.about["key"], event.about["n"]) for event in self.history.events("done")]


@pytest.fixture
def hire(server: Server, stream: str, tmp_path: Path) -> Iterator[Any]:
    crews: list[Crew] = []

    def make(slow_s: float) -> Crew:
        crews.append(Crew(server, stream, tmp_path, slow_s))
        return crews[-1]

    yield make
    for crew in crews:
        for process in crew.processes:
            process.kill()
            process.wait()


async def fill(app: App, stream: str, first: int, last: int) -> None:
    orders = app.stream(stream, partitions=4)
    numbers = [(key, n) for n in range(first, last) for key in range(KEYS)]
    await orders.add_many(
        [{"key": f"k{key}", "n": n} for key, n in numbers], partition_keys=[f"k{key}" for key, _ in numbers]
    )


@pytest.mark.parametrize("slow_s", [0.0, 0.01], ids=["quick", "slow"])
async def test_a_killed_workers_partitions_go_on_in_order_elsewhere(
    server: Server, stream: str, hire: Any, slow_s: float
) -> None:
    """SPEC 51: strict order for each key, one owner at a time; at most the message at hand runs again."""
    async with App(server.url) as app:
        await fill(app, stream, 0, PER_KEY)
        crew = hire(slow_s)
        crew.hire(), crew.hire()
        await wait_until(lambda: len(crew.done()) >= 40, 20)
        busy = crew.history.events("done")[-1].pid
        victim = next(process for process in crew.processes if process.pid == busy)
        victim.kill()
        killed_at = time.monotonic()
        await wait_until(lambda: len(set(crew.done())) == KEYS * PER_KEY, 40)
    starts: dict[str, list[int]] = {}
    for event in crew.history.events("start"):
        starts.setdefault(event.about["key"], []).append(event.about["n"])
    for numbers in starts.values():
        # a message may be started again by the heir, never an earlier one, and none is left out
        assert all(after - before in (0, 1) for before, after in pairwise(numbers)), numbers
        assert set(numbers) == set(range(PER_KEY))
    again = sum(len(numbers) - PER_KEY for numbers in starts.values())
    assert again <= 4  # one for each partition
    waited = takeovers(crew.history, busy, killed_at)
    assert waited
    assert max(waited) < LEASE_S + 1.5, waited  # a lease, a look, and a busy machine


def takeovers(history: History, pid: int, killed_at: float) -> list[float]:
    """How long each partition of a killed worker waited for the first start elsewhere."""
    last: dict[str, int] = {}
    waited: dict[str, float] = {}
    for event in sorted(history.events("start"), key=lambda event: event.at):
        stream = event.about["stream"]
        if event.pid != pid and last.get(stream) == pid and event.at > killed_at:
            waited[stream] = event.at - killed_at
        last[stream] = event.pid
    return list(waited.values())


@pytest.mark.parametrize("poison", [0, 1, 3], ids=["first", "after progress", "alone"])
async def test_a_message_that_kills_its_worker_is_set_aside_and_those_behind_it_are_handled(
    server: Server, stream: str, hire: Any, poison: int
) -> None:
    """SPEC 25 for an ordered stream: poison starts exactly max_attempts times and is buried, and buries nobody else;
    wherever it stands, read ahead with others or come alone to an idle partition."""
    async with App(server.url) as app:
        orders = app.stream(stream, partitions=4)
        crew = hire(0.0)
        crew.hire()

        async def add(*numbers: int) -> None:
            for n in numbers:
                await orders.add({"key": "k", "n": n, "kill": n == poison}, partition_key="k")

        def handled(*numbers: int) -> bool:
            if crew.processes[-1].poll() is not None:
                crew.hire()  # what a supervisor does
            return {n for _, n in crew.done()} == set(numbers) - {poison}

        await add(0, 1, 2)
        await wait_until(lambda: handled(0, 1, 2), 60, 0.05)
        await add(3, 4)
        await wait_until(lambda: handled(0, 1, 2, 3, 4), 60, 0.05)
        letters = await orders.dead_letters.listed()
    assert [json.loads(letter.payload or b"")["n"] for letter in letters] == [poison]
    assert letters[0].attempts == 2
    starts = [(event.about["n"], event.attempt) for event in crew.history.events("start")]
    assert starts == [(n, attempt) for n in range(5) for attempt in ((1, 2) if n == poison else (1,))]
    part = Partitions(stream, 4).names[Partitions(stream, 4).of("k")]
    assert letters[0].stream == part
    assert server.sync().xlen(keys_of(part).dead_letters) == 1


async def test_a_message_that_kills_its_worker_buries_none_of_those_that_ran_beside_it(
    server: Server, stream: str, hire: Any
) -> None:
    """SPEC 25: its last attempt runs alone, so whatever died with it once has another."""
    async with App(server.url) as app:
        orders = app.stream(stream, partitions=4)
        for n in range(6):
            for key in range(KEYS):
                kill = (key, n) == (3, 2)
                await orders.add({"key": f"k{key}", "n": n, "kill": kill}, partition_key=f"k{key}")
        crew = hire(0.05)
        crew.hire()

        def handled() -> bool:
            if crew.processes[-1].poll() is not None:
                crew.hire()
            return len(set(crew.done())) == KEYS * 6 - 1

        await wait_until(handled, 60, 0.05)
        letters = await orders.dead_letters.listed()
    assert [json.loads(letter.payload or b"")["key"] for letter in letters] == ["k3"]
    assert sum(event.about["key"] == "k3" and event.about["n"] == 2 for event in crew.history.events("start")) == 2
    assert len(crew.processes) == 3
