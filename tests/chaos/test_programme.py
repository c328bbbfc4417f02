"""The fault programme itself: rows as data, schedules that a seed gives again, the table, the command line."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from chaos import campaign, table
from chaos.__main__ import main
from chaos.faults import FAULTS
from chaos.long import Series
from chaos.orders import Orders
from chaos.plays import PLAYS, spark
from chaos.runner import RESULTS, Result
from chaos.scenario import BLOCK_S, Moment, Scenario, schedule
from chaos.scenarios import ROWS, named
from chaos.topology import NotAtHand
from tests.support.servers import Server


def test_all_31_rows_are_there_and_every_fault_and_play_they_name_exists() -> None:
    assert {scenario.row for scenario in ROWS} == set(range(1, 32))
    assert len({scenario.name for scenario in ROWS}) == len(ROWS)
    assert {plan.fault for scenario in ROWS for plan in scenario.plans} <= FAULTS.keys()
    assert {scenario.play or "traffic" for scenario in ROWS} <= PLAYS.keys()


def test_a_seed_gives_the_same_schedule_and_the_same_orders_again() -> None:
    scenario = named("mix")[0]
    assert schedule(scenario, 3, 60.0) == schedule(scenario, 3, 60.0)
    assert schedule(scenario, 3, 60.0) != schedule(scenario, 4, 60.0)
    first, again = (Orders(3, scenario.traffic.mix) for _ in range(2))
    assert [first.payload(n) for n in range(500)] == [again.payload(n) for n in range(500)]


def test_a_quarter_of_the_mix_is_quiet() -> None:
    """FAULTS 31."""
    moments = schedule(named("mix")[0], 1, 200.0)
    assert moments
    assert not [moment for moment in moments if moment.at_s % BLOCK_S > 0.75 * BLOCK_S]


def test_the_mix_shifts_in_every_run_of_it() -> None:
    """FAULTS 31: other faults in every block, and several blocks also in the shortest run."""
    mix = named("mix")[0]
    blocks: dict[int, set[str]] = {}
    for moment in schedule(mix, 1, mix.seconds):
        blocks.setdefault(int(moment.at_s // BLOCK_S), set()).add(moment.fault)
    assert len(blocks) >= 3
    assert len({frozenset(faults) for faults in blocks.values()}) == len(blocks)


@pytest.mark.parametrize("mix", named("31"), ids=lambda scenario: scenario.name)
def test_every_kind_of_fault_of_a_mix_comes_in_every_run_of_it(mix: Scenario) -> None:
    """FAULTS 31: its title counts them; and what was planned and did not happen breaks a run."""
    kinds = {Moment(0.0, plan.fault, 0, plan.words).kind for plan in mix.plans}
    assert mix.what.startswith(f"{len(kinds)} kinds of fault")
    for seed in range(50):
        moments = schedule(mix, seed, mix.seconds)
        assert {moment.kind for moment in moments} == kinds
        assert not [moment for moment in moments if moment.at_s % BLOCK_S > 0.75 * BLOCK_S]


def test_every_fault_is_in_a_row() -> None:
    assert FAULTS.keys() == {plan.fault for scenario in ROWS for plan in scenario.plans}


def test_a_topology_that_is_not_there_is_said_and_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zombie-primary", "--topology", "single"]) == 2
    told = capsys.readouterr()
    assert "zombie-primary was not played on redis8, single: needs sentinel or cluster" in told.err
    assert "It is played on sentinel and cluster" in told.err
    assert told.out == "", "what was not played has no verdict"


def test_where_nothing_was_played_nothing_has_held() -> None:
    skipped = Result(30, "spark", "Spark", 1, "redis8", "single", skipped="MISSING java")
    played = Result(1, "kill", "kill", 1, "redis8", "single", figures={"messages": 1})
    assert not campaign.summary([skipped])["holds"]
    assert campaign.summary([skipped, played])["holds"]


def test_a_pytest_that_died_is_no_machine_without_spark() -> None:
    """Row 30."""
    assert spark.told_by("== 18 passed in 99 s ==", 0).figures["tests_passed"] == 18
    assert spark.told_by("== 18 passed in 99 s ==", 0).holds
    with pytest.raises(NotAtHand, match="MISSING java"):
        spark.told_by("servers: redis8\nspark: MISSING java; its tests are left out\nERROR: found no collectors", 4)
    with pytest.raises(NotAtHand, match="skipped"):
        spark.told_by("== 18 skipped in 1 s ==", 0)
    assert spark.told_by(".......", -11).breaches.keys() == {"run"}
    assert spark.told_by("== 12 passed, 6 skipped in 9 s ==", 3).breaches.keys() == {"run"}
    assert spark.told_by("no tests ran", 5).breaches.keys() == {"run"}
    failed = "FAILED tests/spark/test_faults.py::test_x - AssertionError\n== 1 failed, 17 passed in 99 s =="
    assert spark.told_by(failed, 1).breaches["S1"].examples == ["tests/spark/test_faults.py::test_x"]


@pytest.mark.servers("redis8")
async def test_a_fault_that_finds_no_server_does_not_stop_the_proxies(
    own_server: Callable[..., Server], server_key: str
) -> None:
    """They live in the same event loop, and what they do not pass on robs live owners."""
    server = own_server(server_key)
    places: Any = SimpleNamespace(nodes=[server.sync()], admin=server.sync())
    told: Any = SimpleNamespace(topology=places, note_fault=lambda *_: None, healed_fault=lambda *_: None)
    faults = [FAULTS[name](told, random.Random(1)) for name in ("flush-scripts", "keyspace", "fill-memory")]
    server.kill()
    harm, late_s = asyncio.gather(*faults, return_exceptions=True), 0.0
    while not harm.done():
        asked = time.monotonic()
        await asyncio.sleep(0.01)
        late_s = max(late_s, time.monotonic() - asked)
    assert all(isinstance(error, redis.RedisError) for error in await harm)
    assert late_s < 0.5


def test_an_unknown_row_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "13 cut" in capsys.readouterr().err


def test_the_table_is_made_from_results_files_alone(tmp_path: Path) -> None:
    run = Result(1, "kill", "kill -9 worker at random", 7, "redis8", "single", version="redis 8.10.2", fsync="no")
    run.date, run.machine = "2026-01-02T03:04:05", "2 cores"
    run.figures = {"messages": 3_000, "lost": 0, "duplicates": 0, "deaths": 4, "faults": {"kill": 4}}
    skipped = Result(11, "zombie-primary", "zombie primary", 7, "redis8", "single", skipped="needs sentinel")
    skipped.date = run.date
    for result in (run, skipped):
        result.write(tmp_path / "results")
    page = tmp_path / "page.md"
    table.write(tmp_path / "results", page)
    written = page.read_text()
    assert "lost: 0 of 3,000 (below 0.001 with 95 %)" in written
    assert "| 1 | kill -9 worker at random | 8.10 | single | 1 (7) | 3,000 | 4 kill | 0 | 0 | yes |" in written
    assert "skipped: needs sentinel" in written


def _told(name: str, **figures: Any) -> dict[str, Any]:
    about = {"row": 1, "name": name, "seed": 1, "version": "redis 8.10.2", "topology": "single", "lease_s": 1.0}
    more = {"date": "2026-01-02T03:04:05", "machine": "2 cores", "durability": "received", "fsync": "no"}
    return {**about, **more, "skipped": "", "holds": True, "breaches": {}, **figures}


def test_a_bound_is_rounded_up_and_the_worst_run_of_a_version_is_told() -> None:
    assert table.bound(1_324_351) == "0 of 1,324,351 (below 2.3e-06 with 95 %)"
    assert table.bound(3_000) == "0 of 3,000 (below 0.001 with 95 %)"
    runs = [_told("kill", messages=1, **{f"rescue_{word}_ms": ms for word in ("p50", "p99", "max")}) for ms in (20, 10)]
    assert "redis 8.10.2 p50 20, p99 20, max 20 ms" in table.text(runs)


def test_what_was_not_measured_is_no_zero_and_tests_that_ran_twice_are_counted_once() -> None:
    runs = [_told("spark", tests_passed=18, faults={"fault test passed": 18})] * 2
    (line,) = [line for line in table.text(runs).splitlines() if line.startswith("| 30 ")]
    assert "| 2 (1) | - | 18 fault test passed | - | - | yes |" in line
    judged = [_told("power", messages=9, judged_share=share) for share in (0.419, 0.9)]
    assert "| `power` | 41 % | - | - | - | - |" in table.text(judged)


def test_the_table_of_the_guarantees_is_what_the_results_files_say(tmp_path: Path) -> None:
    """Nothing in it is written by hand."""
    page = tmp_path / "page.md"
    table.write(RESULTS, page)
    assert page.read_text() == table.GUARANTEES.read_text(), "python -m chaos table"


def test_a_slope_is_that_of_the_line_through_what_comes_after_warming_up() -> None:
    series = Series()
    for at in range(100):
        series.add(at, 50.0 if at < 20 else 10.0 + 0.5 * at)
    assert series.slope() == pytest.approx(0.5)
