"""All rows of the fault programme, in order. A row may have several scenarios; `python -m chaos ROW` plays them all."""

from __future__ import annotations

from typing import Final

from chaos.rows import everything, keys, servers, ways, workers
from chaos.rows.mixes import QUICK
from chaos.scenario import EVERY, Scenario

__all__ = ["QUICK", "ROWS", "named"]

ROWS: Final[tuple[Scenario, ...]] = tuple(
    sorted(
        (*workers.ROWS, *servers.ROWS, *ways.ROWS, *keys.ROWS, *everything.ROWS), key=lambda scenario: scenario.row
    )  # in a row they stay as they are written
)


def named(word: str) -> list[Scenario]:
    """Scenarios by row number or by name."""
    found = [scenario for scenario in ROWS if word in (str(scenario.row), scenario.name)]
    if not found:
        names = ", ".join(f"{scenario.row} {scenario.name}" for scenario in ROWS)
        raise LookupError(f"no row is called {word!r}: there are {names}")
    return found


assert {scenario.row for scenario in ROWS} == set(range(1, 32))
assert all(set(scenario.servers) <= set(EVERY) for scenario in ROWS)
