"""What happens on a stage. Most scenarios are traffic with faults; some rows need a script of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from chaos.checker import Verdict
from chaos.stage import Stage

Play = Callable[[Stage], Awaitable[Verdict | None]]
"""Returns None for the usual end: drain, stop, collect, judge."""


async def traffic(stage: Stage) -> None:
    """Workers, traffic, and the scenario's schedule beside it."""
    await stage.staff()
    await stage.play()


PLAYS: Final[Mapping[str, Play]] = {"traffic": traffic}
