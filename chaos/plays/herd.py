"""Row 25: 1,000 orphans and as many workers as the scenario says, all at once: each orphan is started once.

They become orphans when all workers are there and may rescue (nobody does for half a lease after its start): until
then their owner renews them. Beside them a live owner holds many fresh messages with lower ids than some of the
orphans: what lies behind them must be reached in the same time (SPEC 15), by a scan as well as by CLAIM.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import Any, Final

from chaos.checker import judge
from chaos.stage import Stage
from chaos.verdict import Breach, Verdict
from chaos.worker import GROUP
from tests.support.history import Event, History
from tests.support.wait import wait_until

ORPHANS: Final = 1_000
FRESH: Final = 600
IN_FRONT: Final = "gone"
KEEN_SHARE: Final = 0.9  # of the workers must take part, where handlers outlast the herd
TOGETHER: Final = 20  # how many end at once: 200 interpreters that end together keep each other for half a minute
SOON_S: Final = 4.0  # beyond the quarter of a lease between two scans: 200 processes share the cores of one machine


async def play(stage: Stage) -> Verdict:
    client: Any = stage.topology.admin
    client.xgroup_create(stage.stream, GROUP, id="0", mkstream=True)
    before, fresh, behind = _add(stage, ORPHANS // 2), _add(stage, FRESH), _add(stage, ORPHANS // 2)
    client.xreadgroup(GROUP, IN_FRONT, {stage.stream: ">"}, count=len(before))
    client.xreadgroup(GROUP, "alive", {stage.stream: ">"}, count=len(fresh))
    client.xreadgroup(GROUP, IN_FRONT, {stage.stream: ">"}, count=len(behind))
    held = {"alive": fresh, IN_FRONT: [*before, *behind]}
    keeping = asyncio.create_task(_stay_alive(stage, held))
    try:
        orphans = {*before, *behind}
        stage.begun = time.monotonic()
        for _ in range(stage.scenario.staff.workers):
            await stage.hire()
        await stage.crew.ready(timeout=60.0)
        await asyncio.sleep(stage.lease_s / 2)
        stage.note_harm("herd", [0], excuses=True)  # their owner was no process of ours
        del held[IN_FRONT]
        orphaned_at = time.monotonic()
        for ids in (before, behind):
            _age(stage, ids)

        def started() -> bool:
            return orphans <= {event.id for event in History(stage.folder).starts()}

        late = ""
        try:
            await wait_until(started, stage.lease_s / 4 + SOON_S, 0.2, what="all orphans started")
        except AssertionError:
            late = "orphans behind fresh messages of a live owner were not reached"
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    stage.ended = time.monotonic()
    drain_s = await _disperse(stage)
    left = await stage.finish()
    left.drain_s += drain_s
    verdict = judge(stage.facts(left))
    starts = [event for event in History(stage.folder).starts() if event.id in orphans]
    twice = len(starts) - len({event.id for event in starts})
    verdict.figures |= {
        "orphans": len(orphans),
        "rescuers": len({event.owner for event in starts}),
        "taken_twice": twice,
        "all_after_s": round(max((event.at for event in starts), default=orphaned_at) - orphaned_at, 2),
    }
    if late:
        verdict.breaches.setdefault("L1", Breach()).add(late)
    outlasts = set(stage.scenario.traffic.mix) == {"slow"}  # else a few that are quick can do it all
    if outlasts and verdict.figures["rescuers"] < KEEN_SHARE * stage.scenario.staff.workers:
        told = f"{verdict.figures['rescuers']} of {stage.scenario.staff.workers} took part: that is no herd"
        verdict.breaches.setdefault("run", Breach()).add(told)
    if twice:
        verdict.breaches.setdefault("S3", Breach()).add("an orphan was started twice")
    return verdict


def _add(stage: Stage, count: int) -> list[str]:
    client: Any = stage.topology.admin
    numbers = range(stage.feeder.added, stage.feeder.added + count)
    stage.feeder.added += count
    pipe = client.pipeline(transaction=False)
    for n in numbers:
        pipe.xadd(stage.stream, {"payload": stage.orders.payload(n)})
    ids = [id_.decode() for id_ in pipe.execute()]
    now = time.monotonic()
    stage.pen.note_all([Event(now, 0, "add", "ok", id_, about={"n": n}) for n, id_ in zip(numbers, ids, strict=True)])
    return ids


def _age(stage: Stage, ids: list[str]) -> None:
    client: Any = stage.topology.admin
    client.xclaim(stage.stream, GROUP, IN_FRONT, 0, ids, idle=3_600_000, justid=True)


async def _disperse(stage: Stage) -> float:
    """All but the last few workers end, a few at a time, when everything is done. Answers when that was."""
    _, drain_s = await stage.drain()
    going = stage.crew.alive[TOGETHER:]
    for at in range(0, len(going), TOGETHER):
        few = going[at : at + TOGETHER]
        for worker in few:
            worker.kept = False
            worker.signal(signal.SIGTERM)
        with suppress(AssertionError):
            await wait_until(lambda: not any(worker.alive for worker in few), 20.0, 0.02)  # noqa: B023
        stage.stuck += [worker for worker in few if worker.alive]
    return drain_s


async def _stay_alive(stage: Stage, held: dict[str, list[str]]) -> None:
    """Owners that live: they renew what they hold, and never end it while this runs."""
    client: Any = stage.topology.admin
    while True:
        for owner, ids in held.items():
            for at in range(0, len(ids), 200):
                client.xclaim(stage.stream, GROUP, owner, 0, ids[at : at + 200], justid=True)
        await asyncio.sleep(stage.lease_s / 5)
