"""Watches the machine and the stage: who sleeps notes when it was woken much later than it had asked for.

A lease is a time. Where the machine let nobody run for a good part of it, a live owner can lose what it holds, and no
program can prevent it; where workers go through the stage's proxies, neither when those passed nothing on. The results
say how long that was at most, and the judge excuses what was taken over just then.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chaos.crew import ROOT
from tests.support.history import Pen

NAP_S: Final = 0.005
LATE_S: Final = 0.05


@asynccontextmanager
async def watching(folder: Path, *, proxied: bool) -> AsyncIterator[None]:
    """As long as this lasts, lateness is noted in the folder's histories: a process's, and with proxies in this event
    loop that of the loop."""
    file = str(folder / "witness.jsonl")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "chaos.witness", file, cwd=ROOT)
    here = [asyncio.create_task(_watch_loop(Pen(folder / "lateness.jsonl")))] if proxied else []
    try:
        yield
    finally:
        for task in here:
            task.cancel()
        process.kill()
        await asyncio.gather(*here, process.wait(), return_exceptions=True)


async def _watch_loop(pen: Pen) -> None:
    woken = time.monotonic()
    while True:
        await asyncio.sleep(NAP_S)
        woken = _noted(pen, woken)


def _noted(pen: Pen, slept_at: float) -> float:
    now = time.monotonic()
    if now - slept_at - NAP_S > LATE_S:
        pen.note("stood", seconds=round(now - slept_at - NAP_S, 3))
    return now


def main(path: str) -> None:
    pen, woken, parent = Pen(path), time.monotonic(), os.getppid()
    while os.getppid() == parent:  # it does not outlive the stage
        time.sleep(NAP_S)
        woken = _noted(pen, woken)


if __name__ == "__main__":
    main(sys.argv[1])
