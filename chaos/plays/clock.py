"""Row 26. A retry parked while the clock was an hour ahead is due in an hour: the clock goes there to drain."""

from __future__ import annotations

from chaos import libraries
from chaos.plays import traffic
from chaos.stage import Stage


async def play(stage: Stage) -> None:
    await traffic.play(stage)
    libraries.set_clock(stage.folder, 3_700)
