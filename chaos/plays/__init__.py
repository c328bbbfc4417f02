"""What happens on a stage. Most scenarios are traffic with faults; some rows need a script of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from chaos.plays import clock, crash_points, herd, poison, rooms, sizes, spark, traffic, twins
from chaos.stage import Stage
from chaos.verdict import Verdict

Play = Callable[[Stage], Awaitable[Verdict | None]]
"""Returns None for the usual end: drain, stop, collect, judge."""

PLAYS: Final[Mapping[str, Play]] = {
    "traffic": traffic.play,
    "clock": clock.play,
    "crash_points": crash_points.play,
    "poison": poison.play,
    "sizes": sizes.play,
    "twins": twins.play,
    "herd": herd.play,
    "rooms": rooms.play,
    "spark": spark.play,
}
