"""Many runs: every row once, every mutant, or row 31 for hours. Each run leaves a results file; a summary ends it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from chaos import broken, runner
from chaos.mutants import MUTANTS, Mutant
from chaos.runner import Result, say
from chaos.scenario import Scenario
from chaos.scenarios import ROWS, named
from chaos.topology import KINDS, Kind
from tests.support.digest import digest

MUTANT_SEEDS: Final = 3
SOAK_BLOCK_S = 300.0  # a soak is a row of runs of this length, each with a seed of its own


def server_of(scenario: Scenario, seed: int, servers: Sequence[str], topology: Kind = "single") -> str:
    """Which server of the row a run takes when none is named: another one for each seed, row and topology."""
    fitting = [key for key in scenario.servers if not servers or key in servers]
    number = scenario.row + seed + KINDS.index(topology)
    return fitting[number % len(fitting)] if fitting else scenario.servers[0]


async def every_row(seed: int, servers: Sequence[str], topology: Kind | None, folder: Path) -> list[Result]:
    """Every scenario once on each topology that it names (or on the one given): on the servers named, or on one that
    the seed picks."""
    results = []
    for scenario in ROWS:
        for kind in scenario.played if topology is None else (topology,):
            for key in servers or [server_of(scenario, seed, (), kind)]:
                result = await runner.run(scenario, seed, key, kind)
                say(result.as_line())
                result.write(folder)
                results.append(result)
    return results


async def soak(seconds: float, seed: int, servers: Sequence[str], topology: Kind, folder: Path) -> list[Result]:
    """Row 31 again and again, with rising seeds."""
    mix = next(scenario for scenario in named("31") if topology in scenario.topologies)
    results, until = [], time.monotonic() + seconds
    while (left := until - time.monotonic()) > 5.0:
        key = server_of(mix, seed, servers)
        result = await runner.run(mix, seed, key, topology, min(left, SOAK_BLOCK_S))
        say(result.as_line())
        result.write(folder)
        results.append(result)
        seed += 1
    return results


async def mutants(seed: int, folder: Path) -> dict[str, Any]:
    """Every mutant on the row that must catch it; a few seeds, as one schedule may lack the moment that shows a
    mistake. That the core passes those rows is what playing them says. What came of it is left in mutants.json."""
    versions, found = {}, []
    for mutant in MUTANTS.values():
        run, caught = await _until_caught(mutant, seed)
        versions[run.server] = run.version.partition(" ")[2]
        about = {"name": mutant.name, "mistake": mutant.mistake, "scenario": mutant.scenario}
        found.append({**about, "server": run.server, "seed": run.seed, "caught_by": caught})
        say(f"{mutant.name:<24} {mutant.mistake}: {' '.join(caught) or run.skipped or 'NOT CAUGHT'}")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    told = {"date": date, "code": digest(), "servers": versions, "mutants": found}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / broken.MUTANTS).write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return {"holds": all(one["caught_by"] for one in found), **told}


async def _until_caught(mutant: Mutant, seed: int) -> tuple[Result, list[str]]:
    """The run that caught it, or the last one."""
    scenario, last = named(mutant.scenario)[0], seed + MUTANT_SEEDS - 1
    while True:
        run = await runner.run(scenario, seed, mutant.servers[0], "single", mutant.seconds, mutant.name)
        caught = mutant.caught_by(run.breaches)
        if caught or seed == last:
            return run, caught
        seed += 1


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """All runs in one object."""

    def total(name: str) -> int:
        return sum(int(result.figures.get(name, 0)) for result in results)

    played = [result for result in results if not result.skipped]
    return {
        "holds": bool(played) and all(result.holds for result in played),  # what was not played has not held
        "runs": len(played),
        **{name: total(name) for name in ("messages", "lost", "duplicates", "refused", "burnt", "deaths")},
        "broken": [
            f"{result.row} {result.name} on {result.server} {result.topology}" for result in played if not result.holds
        ],
        "skipped": {f"{result.row} {result.name}": result.skipped for result in results if result.skipped},
    }
