"""Processes that end: killed, or asked to."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from chaos.stage import Stage


async def kill(stage: Stage, rng: random.Random, /, *, at_once: int = 1, spare: int = 1) -> None:
    """SIGKILL some workers; the crew replaces them. `spare` of those that have joined are left alive."""
    joined = [worker for worker in stage.crew.alive if worker.joined and not worker.paused]
    for worker in rng.sample(joined, max(0, min(at_once, len(joined) - spare))):
        stage.note_fault("kill", [worker], excuses=True)
        worker.signal(signal.SIGKILL)


async def kill_child(stage: Stage, rng: random.Random, /) -> None:
    """SIGKILL a child of `headrace run`; its parent hands back what it held and starts another."""
    told = Path(f"/proc/{stage.parent.pid}/task/{stage.parent.pid}/children").read_text().split()
    if len(told) < 2:
        return
    child = int(rng.choice(sorted(told)))
    stage.note_harm("kill", [child], excuses=True)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


async def roll(stage: Stage, rng: random.Random, /, *, grace_s: float = 15.0) -> None:
    """SIGTERM a worker once its successor has joined: one step of a rolling restart."""
    joined = [worker for worker in stage.crew.alive if worker.joined and worker.kept]
    if len(joined) < 2:
        return
    worker = rng.choice(joined)
    worker.kept = False
    stage.note_fault("roll")  # without its name: it must leave well
    successor = await stage.hire()
    await wait_until(lambda: successor.joined or not successor.alive, 20.0, 0.02, what="the successor")
    worker.signal(signal.SIGTERM)
    with suppress(AssertionError):
        await wait_until(lambda: not worker.alive, grace_s, 0.02)
    if worker.alive:
        stage.stuck.append(worker)
    await asyncio.sleep(0)
