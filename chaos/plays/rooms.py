"""Row 3 for owned streams: an owner stands still beyond its lease, another takes its streams over, the first wakes.

Once with slow handlers and once with quick ones: a message that was under way at the pause is acknowledged by whoever
wakes up, and only then an ack without a fence shows.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from chaos.stage import Stage
from chaos.topology import Topology
from chaos.verdict import Breach, Verdict
from tests.support.owners import Owners

ROOMS: Final = 3
EACH: Final = {0.1: 60, 0.0: 300}  # seconds a message takes -> messages of each stream


class Where:
    """The servers under test as owners and whoever adds see them."""

    def __init__(self, topology: Topology) -> None:
        self.url = topology.url
        self._topology = topology

    def sync(self) -> Any:
        return self._topology.admin


async def play(stage: Stage) -> Verdict:
    verdict = Verdict({}, {"messages": 0, "lost": 0, "duplicates": 0, "refused": 0, "faults": {"pause": len(EACH)}})
    for slow_s, each in EACH.items():
        await asyncio.to_thread(_round, stage, verdict, slow_s, each)
        if stage.broken and verdict.breaches:
            break  # a mutant, and it is caught
    return verdict


def _round(stage: Stage, verdict: Verdict, slow_s: float, each: int) -> None:
    folder = stage.folder / f"rooms-{slow_s}"
    folder.mkdir()
    settings: dict[str, Any] = {"owner": {"lease": stage.lease_s}, "mutant": stage.crew.settings.get("mutant", "")}
    owners = Owners(folder, Where(stage.topology), f"rooms-{each}", slow_s=slow_s, **settings)
    owners.program = "chaos.rooms"
    names, late = owners.announce(_names(stage, owners)), ""
    try:
        for name in names:
            owners.add(name, each)
        _pause(owners)
        owners.until_acked(ROOMS * each)
    except AssertionError as waited:
        late = str(waited).splitlines()[0]
    finally:
        owners.end()
    _note(verdict, owners, owners.violations(dict.fromkeys(names, each)), late)


def _names(stage: Stage, owners: Owners) -> list[str]:
    """In a cluster a room at every master."""
    spread = stage.topology.streams(owners.room(0))
    return spread if len(spread) == ROOMS else [owners.room(number) for number in range(ROOMS)]


def _pause(owners: Owners) -> None:
    """The first owner is stopped in mid-work, and wakes as soon as the heir works on all of its streams."""
    first = owners.start()
    owners.until(lambda history: len({event.about["name"] for event in owners.acked()}) == ROOMS, what="a warm start")
    first.pause()
    try:
        heir = owners.start()
        owners.until(
            lambda history: len({event.about["name"] for event in history.events("start", pid=heir.pid)}) == ROOMS,
            what="the takeover",
        )
    finally:
        first.cont()
    woken = time.monotonic()
    owners.until(lambda history: "assignment.lost" in first.log or time.monotonic() > woken + 5, what="the loss told")


def _note(verdict: Verdict, owners: Owners, wrong: list[str], late: str) -> None:
    verdict.figures["messages"] += len({(event.about["name"], event.about["n"]) for event in owners.acked()})
    verdict.figures["refused"] += len(owners.history.events("refused"))
    for problem in wrong:
        twice, lost = "twice" in problem, "never" in problem
        verdict.figures["duplicates"] += twice
        verdict.figures["lost"] += lost
        verdict.breaches.setdefault("S4" if twice else "S1" if lost else "S3", Breach()).add(problem)
    if late:
        verdict.breaches.setdefault("L2", Breach()).add(late)
