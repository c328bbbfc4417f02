"""The fault programme itself: rows as data, schedules that a seed gives again, the table, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos import table
from chaos.__main__ import main
from chaos.faults import FAULTS
from chaos.long import Series
from chaos.orders import Orders
from chaos.plays import PLAYS
from chaos.runner import RESULTS, Result
from chaos.scenario import schedule
from chaos.scenarios import ROWS, named


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
    assert not [moment for moment in moments if moment.at_s % 20.0 > 15.0]


def test_a_topology_that_is_not_there_is_said_and_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zombie-primary", "--topology", "single"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["skipped"] == "needs sentinel or cluster"


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
    page.write_text(f"before\n{table.BEGIN}\nstale\n{table.END}\nafter\n")
    table.write(tmp_path / "results", page)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "stale" not in written
    assert "lost: 0 of 3,000 (below 0.001 with 95 %)" in written
    assert "| 1 | kill -9 worker at random | redis 8.10.2 | single | 1 (7) | 3,000 | 4 kill | 0 | 0 |" in written
    assert "skipped: needs sentinel" in written


def test_the_table_of_the_guarantees_is_what_the_results_files_say(tmp_path: Path) -> None:
    """Nothing in it is written by hand."""
    page = tmp_path / "page.md"
    page.write_text(table.GUARANTEES.read_text())
    table.write(RESULTS, page)
    assert page.read_text() == table.GUARANTEES.read_text(), "python -m chaos table"


def test_a_slope_is_that_of_the_line_through_what_comes_after_warming_up() -> None:
    series = Series()
    for at in range(100):
        series.add(at, 50.0 if at < 20 else 10.0 + 0.5 * at)
    assert series.slope() == pytest.approx(0.5)
