"""The short, seeded part of the fault programme (FAULTS 1, 2, 3, 5, 7, 13, 21, 22, 24), and the mutants it must catch.

`make chaos` runs every row at full length and at full rate. Here the rate is low: these tests run beside others, and
mostly wait. A failure names its seed: `python -m chaos NAME --seed N` plays it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos import runner
from chaos.checker import judge
from chaos.mutants import MUTANTS, Mutant
from chaos.plays import crash_points, owned_points
from chaos.scenario import Scenario
from chaos.scenarios import named
from chaos.stage import stage
from chaos.verdict import Verdict
from tests.support.remembered import Remembered

SEED = 7
SAFETY = frozenset({"S1", "S2", "S3", "S4", "S6", "S7", "S8", "S9", "S10", "X"})
ROBBED = "which was alive"  # of S5 this alone can be a busy machine's doing: a lease is a time, a count is none
RATE = 400  # adds a second, at most

pytestmark = [pytest.mark.timeout(150)]

SHORT = [
    ("kill", "redis8", 3.0),
    ("kill-backlog", "redis8", 3.5),
    ("kill-backlog", "redis7", 3.5),
    ("kill-supervised", "valkey9", 3.5),
    ("pause", "redis6", 2.5),
    ("pause-owner", "redis7", 0.0),
    ("slow", "valkey9", 2.5),
    ("roll", "redis7", 2.5),
    ("roll-short-grace", "redis8", 2.5),
    ("cut", "redis6", 2.5),
    ("trimmed", "valkey9", 2.5),
    ("vanished", "redis7", 7.0),
    ("set-back", "redis6", 7.0),
    ("stream-set-back", "redis6", 3.5),
    ("wrong-type", "redis8", 2.5),
    ("poison", "valkey9", 2.0),
    ("twins", "redis8", 2.5),
    ("herd-behind", "valkey9", 0.0),
]
LONG = [pytest.param("keyspace-requeue", "valkey9", 3.0, marks=pytest.mark.long)]  # `make long` alone


def _short(name: str) -> Scenario:
    """The row at a low rate, with room in its liveness bounds for a busy machine; its safety bounds are its own."""
    scenario = named(name)[0]
    return replace(scenario, traffic=replace(scenario.traffic, rate=min(RATE, scenario.traffic.rate), batch=40))


async def _run(name: str, server: str, seconds: float, mutant: str = "", seed: int = SEED) -> runner.Result:
    result = await runner.run(_short(name), seed, server, "single", seconds, mutant)
    if result.skipped:
        pytest.skip(f"{name} on {server}: {result.skipped}")
    return result


Held = Callable[[runner.Result | Verdict, str], None]


@pytest.fixture
def held(remembered: Remembered) -> Held:
    """That nothing was broken. What concerns safety is not mended by a second run alone (`make test`): it is
    remembered."""

    def check(result: runner.Result | Verdict, how: str) -> None:
        found = {invariant: breach.examples for invariant, breach in result.breaches.items()}
        burnt = {"S5"} if any(ROBBED not in example for example in found.get("S5", ())) else set()
        remembered.note(SAFETY.intersection(found) | burnt)
        assert found == {}, how
        assert remembered.before == [], f"alone it holds, and beside the others it broke {remembered.before}: {how}"
        assert result.figures["messages"] > 0
        assert result.figures["lost"] == 0

    return check


@pytest.mark.parametrize(("name", "server", "seconds"), [*SHORT, *LONG])
async def test_every_invariant_holds(held: Held, name: str, server: str, seconds: float) -> None:
    """FAULTS: the row's faults happen by a schedule that the seed gives again."""
    result = await _run(name, server, seconds)
    held(result, f"python -m chaos {name} --seed {SEED} --server {server} --seconds {seconds:g}")
    assert result.figures["duplicates"] == 0 or not named(name)[0].promise.keeps


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "server", "seed", "seconds", "lease_s"),
    [("trimmed", "redis8", 2, 12.0, 0.6), ("mix", "redis8", 1, 30.0, 1.0), ("refusals-long", "redis6", 2, 8.0, 1.0)],
)
async def test_a_row_whose_seed_broke_something_once_holds_at_that_length_and_lease(
    held: Held, name: str, server: str, seed: int, seconds: float, lease_s: float
) -> None:
    """FAULTS: as long and with the lease with which it did (chaos/results/before-fixes). The plans of some rows are
    others since, so their schedule is not that one."""
    row = named(name)[0]
    result = await runner.run(replace(row, staff=replace(row.staff, lease_s=lease_s)), seed, server, "single", seconds)
    held(result, f"python -m chaos {name} --seed {seed} --server {server} --seconds {seconds:g}, lease {lease_s:g} s")


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
async def test_a_broken_core_is_caught(mutant: Mutant) -> None:
    """FAULTS: a checker that catches nothing proves nothing. The core as it is passes the same scenarios above.

    On a busy machine a schedule may pass without the moment at which a mistake shows: a few seeds are tried.
    """
    found = {}
    for seed in range(SEED, SEED + 3):
        result = await _run(mutant.scenario, mutant.servers[0], mutant.seconds, mutant.name, seed)
        if mutant.caught_by(result.breaches):
            return
        found[seed] = result.breaches
    pytest.fail(f"{mutant.mistake}: not caught, found was {found}")


def test_every_mutant_has_its_scenario_among_those_that_the_core_passes() -> None:
    """In the same run: a row that only `make long` plays tells nothing about a mutant that `make test` catches."""
    assert {mutant.scenario for mutant in MUTANTS.values()} <= {name for name, _, _ in SHORT}


async def test_a_worker_killed_at_any_crash_point_loses_nothing(held: Held) -> None:
    """FAULTS 2: every named point, at its first occurrence; more of them, and more topologies, in `make chaos`."""
    scenario = named("crash-points")[0]
    async with stage(scenario, SEED, 0.0, "redis6", "single") as told:
        await crash_points.rounds(told, crash_points.cases(1))
        verdict = judge(told.facts(await told.finish()))
        reached = {name for name, _ in crash_points.reached(told)}
        if verdict.breaches:
            runner.keep(told.folder)
    held(verdict, f"python -m chaos crash-points --seed {SEED}")
    assert verdict.figures["duplicates"] == 0
    assert crash_points.missed(reached | {*owned_points.names()}, native=False) == []


async def test_an_owner_of_streams_killed_at_any_crash_point_leaves_them_in_order(held: Held) -> None:
    """FAULTS 2, SPEC 43: the same for the points of owners, judged by order, by whose word counted, by what is left."""
    async with stage(named("crash-points")[0], SEED, 0.0, "redis7", "single") as told:
        verdict = await owned_points.play(told, owned_points.cases(1))
        reached = {name for name, _ in crash_points.reached(told)}
        if verdict.breaches:
            runner.keep(told.folder)
    held(verdict, f"python -m chaos crash-points --seed {SEED}")
    assert verdict.figures["duplicates"] == 0
    assert sorted({*owned_points.names()} - reached) == []
