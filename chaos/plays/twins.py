"""Row 24: two processes with one fixed owner name. The second is refused while the first lives; when the first stands
still for longer than its lease the second takes the name, and the first learns that it has lost it."""

from __future__ import annotations

import asyncio
import signal

from chaos.checker import judge
from chaos.stage import Stage
from chaos.verdict import Breach, Verdict
from tests.support.wait import wait_until

ROUND_S = 2.0  # of the run's length for a round


async def play(stage: Stage) -> Verdict:
    first = await stage.hire()
    first.kept = False
    await stage.crew.ready()
    stage.begun = asyncio.get_running_loop().time()
    feeding = asyncio.create_task(stage.feeder.run(stage.seconds))
    problems = []
    for _ in range(max(1, int(stage.seconds / ROUND_S))):
        refused = await stage.hire()
        refused.kept = False
        await wait_until(lambda: not refused.alive, 15.0, 0.02, what="the refusal")  # noqa: B023
        if b"OwnerTaken" not in refused.log.read_bytes():
            problems.append("a second process with the name of a live one was not refused")
        stage.note_fault("pause", [first], excuses=True)
        first.paused = True
        first.signal(signal.SIGSTOP)
        await asyncio.sleep(2.0 * stage.lease_s)
        second = await stage.hire()
        second.kept = False
        await wait_until(lambda: second.joined, 15.0, 0.02, what="the second's start")  # noqa: B023
        await asyncio.sleep(stage.lease_s)
        first.signal(signal.SIGCONT)
        await wait_until(lambda: not first.alive, 15.0, 0.02, what="the first's end")  # noqa: B023
        if b"worker.failed" not in first.log.read_bytes():
            problems.append("a process that lost its name went on")
        first = second
    await feeding
    stage.ended = asyncio.get_running_loop().time()
    verdict = judge(stage.facts(await stage.finish()))
    for problem in problems:
        verdict.breaches.setdefault("S3", Breach()).add(problem)
    return verdict
