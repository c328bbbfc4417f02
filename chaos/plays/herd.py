"""Row 25: 1,000 orphans and as many workers as the scenario says, all at once: each orphan is started once.

Beside them a live owner holds many fresh messages with lower ids than some of the orphans: what lies behind them must
be reached in the same time (SPEC 15), by a scan as well as by CLAIM.
"""

from __future__ import annotations

import asyncio
import time
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
BROKEN_S: Final = 5.0  # a core that finds them takes about a lease; for a mutant nobody waits longer


async def play(stage: Stage) -> Verdict:
    client: Any = stage.topology.admin
    client.xgroup_create(stage.stream, GROUP, id="0", mkstream=True)
    before, fresh, behind = _add(stage, ORPHANS // 2), _add(stage, FRESH), _add(stage, ORPHANS // 2)
    client.xreadgroup(GROUP, IN_FRONT, {stage.stream: ">"}, count=len(before))
    client.xreadgroup(GROUP, "alive", {stage.stream: ">"}, count=len(fresh))
    client.xreadgroup(GROUP, IN_FRONT, {stage.stream: ">"}, count=len(behind))
    keeping = asyncio.create_task(_stay_alive(stage, fresh))
    try:
        orphans = {*before, *behind}
        for at in range(0, len(before), 500):
            _age(stage, before[at : at + 500])
            _age(stage, behind[at : at + 500])
        stage.begun = time.monotonic()
        for _ in range(stage.scenario.staff.workers):
            await stage.hire()
        await stage.crew.ready(timeout=60.0)
        joined_at = time.monotonic()
        stage.note_fault("herd")

        def started() -> bool:
            return orphans <= {event.id for event in History(stage.folder).starts()}

        late = ""
        try:
            limit_s = BROKEN_S if stage.broken else 10 * stage.lease_s + 10.0
            await wait_until(started, limit_s, 0.2, what="all orphans started")
        except AssertionError:
            late = "orphans behind fresh messages of a live owner were not reached"
        took_s = time.monotonic() - joined_at
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    stage.ended = time.monotonic()
    left = await stage.finish()
    verdict = judge(stage.facts(left))
    starts = [event.id for event in History(stage.folder).starts() if event.id in orphans]
    verdict.figures |= {
        "orphans": len(orphans),
        "taken_twice": len(starts) - len(set(starts)),
        "all_after_s": round(took_s, 2),
    }
    if late:
        verdict.breaches.setdefault("L1", Breach()).add(late)
    if len(starts) > len(set(starts)):
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


async def _stay_alive(stage: Stage, fresh: list[str]) -> None:
    """The live owner: it renews what it holds, and never ends it while this runs."""
    client: Any = stage.topology.admin
    while True:
        for at in range(0, len(fresh), 200):
            client.xclaim(stage.stream, GROUP, "alive", 0, fresh[at : at + 200], justid=True)
        await asyncio.sleep(stage.lease_s / 5)
