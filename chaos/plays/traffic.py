"""Workers, traffic, and the scenario's schedule beside it."""

from __future__ import annotations

from chaos.stage import Stage


async def play(stage: Stage) -> None:
    await stage.staff()
    await stage.play()
