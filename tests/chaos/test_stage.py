"""The stage: which faults of a schedule count as played, and whose ends are noted."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from chaos.checker import judge
from chaos.faults import FAULTS
from chaos.scenario import Moment, Scenario
from chaos.scenarios import named
from chaos.stage import Stage, stage
from chaos.verdict import Verdict
from tests.support.history import History
from tests.support.wait import wait_until


def _stage(folder: Path) -> Stage:
    places: Any = SimpleNamespace(streams=lambda name: [name])
    return Stage(named("kill")[0], 1, 1.0, places, folder)


async def _played(folder: Path, fault: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Which faults count as played, and how many the judge hears of."""
    monkeypatch.setitem(FAULTS, "kill", fault)  # type: ignore[arg-type]
    told = _stage(folder)
    await told._happen(Moment(0.0, "kill", 1))
    events = History(folder).events("fault")
    return told.happened, sum(event.kind == "invoke" for event in events) - sum(
        event.kind == "fail" for event in events
    )


async def _harms(told: Stage, rng: Any) -> None:
    told.note_fault("kill")


async def _heals(told: Stage, rng: Any) -> None:
    told.note_fault("latency")
    told.healed_fault("slow")


async def _finds_nobody(told: Stage, rng: Any) -> None:
    """Nothing is noted."""


async def _fails(told: Stage, rng: Any) -> None:
    told.note_fault("cut")
    told.failed_fault("cut")


async def _is_interfered(told: Stage, rng: Any) -> None:
    told.note_fault("maxmemory")
    raise redis.ConnectionError("another fault has the server")


async def _is_interfered_when_it_is_over(told: Stage, rng: Any) -> None:
    await _heals(told, rng)
    raise redis.ConnectionError("another fault has the server")


@pytest.mark.parametrize("fault", [_harms, _heals, _is_interfered_when_it_is_over])
async def test_a_fault_that_did_its_harm_was_played(
    tmp_path: Path, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _played(tmp_path, fault, monkeypatch) == ({"kill"}, 1)


@pytest.mark.parametrize("fault", [_finds_nobody, _fails, _is_interfered])
async def test_a_fault_that_failed_or_was_interfered_with_was_not_played(
    tmp_path: Path, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _played(tmp_path, fault, monkeypatch) == (set(), 0)


async def test_a_fault_that_was_interfered_with_every_time_is_missing_unless_it_is_one_of_a_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAULTS, "kill", _is_interfered)  # type: ignore[arg-type]
    for row, missing in (("kill", {"kill"}), ("mix", set())):
        told = Stage(named(row)[0], 1, 1.0, _stage(tmp_path).topology, tmp_path)
        told.planned = {"kill"}
        await told._happen(Moment(0.0, "kill", 1))
        assert told.unhappened == missing


async def _judged(told: Stage) -> Verdict:
    return judge(told.facts(await told.finish()))


def _quiet(name: str) -> Scenario:
    scenario = named(name)[0]
    return replace(scenario, staff=replace(scenario.staff, workers=2))


@pytest.mark.servers("redis8")
@pytest.mark.timeout(120)
async def test_x_a_worker_that_ends_in_peace_and_unasked_is_found_out(server_key: str) -> None:
    async with stage(_quiet("kill"), 1, 0.0, server_key, "single") as told:
        await told.staff()
        victim = told.crew.alive[0]
        victim.kept = False
        os.kill(victim.pid, signal.SIGTERM)  # by nobody's order: the stage does not know of it
        await wait_until(lambda: not victim.alive, 20.0, what="its end")
        verdict = await _judged(told)
    assert victim.code == 0
    assert verdict.breaches.keys() == {"X"}
    assert verdict.breaches["X"].count == 1


@pytest.mark.servers("redis8")
@pytest.mark.timeout(120)
async def test_x_a_child_of_headrace_run_that_ends_in_peace_and_unasked_is_found_out(server_key: str) -> None:
    async with stage(_quiet("kill-supervised"), 1, 0.0, server_key, "single") as told:
        await told.staff()
        children = Path(f"/proc/{told.parent.pid}/task/{told.parent.pid}/children")
        victim = int(children.read_text().split()[0])
        os.kill(victim, signal.SIGTERM)
        await wait_until(lambda: not Path(f"/proc/{victim}").exists(), 20.0, what="its end")
        verdict = await _judged(told)
    assert verdict.breaches.keys() == {"X"}
    assert verdict.breaches["X"].count == 1


@pytest.mark.servers("redis8")
@pytest.mark.timeout(120)
async def test_x_headrace_run_that_ends_with_another_code_than_0_is_found_out(server_key: str) -> None:
    async with stage(_quiet("kill-supervised"), 1, 0.0, server_key, "single") as told:
        await told.staff()
        os.kill(told.parent.pid, signal.SIGKILL)  # its children notice, drain and end
        await wait_until(
            lambda: told.topology.admin.client_list() != [] and not _workers(told), 20.0, what="the children's end"
        )
        verdict = await _judged(told)
    assert "X" in verdict.breaches
    assert "-9" in verdict.breaches["X"].examples[0]


def _workers(told: Stage) -> list[str]:
    client: Any = told.topology.admin
    return [row["name"] for row in client.client_list() if row["name"].startswith("headrace:")]
