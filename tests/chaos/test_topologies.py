"""Rows of the fault programme behind sentinels and in a cluster (FAULTS 1, 2, 3, 7, 10, 11, 12, 13, 19)."""

from __future__ import annotations

import pytest

from chaos import runner
from chaos.scenarios import ROWS, named
from chaos.topology import Kind

SEED = 7

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

CASES = [(scenario.name, kind) for scenario in ROWS for kind in scenario.played if kind != "single"]
SERVERS = ("redis8", "valkey9", "redis6", "redis7")


def test_the_rows_that_must_hold_everywhere_are_played_everywhere() -> None:
    everywhere = {scenario.name for scenario in ROWS if len(scenario.played) == 3}
    assert everywhere == {"kill", "crash-points", "pause", "pause-owner", "roll", "cut", "scripts"}
    where = {"failover-partitioned", "zombie-primary", "slot-migration", "slot-migration-atomic"}
    assert {name for name, _ in CASES} - everywhere == where | {"mix-replicated", "mix-cluster"}


@pytest.mark.parametrize(("number", "name", "kind"), [(at, *case) for at, case in enumerate(CASES)])
async def test_every_invariant_holds_where_servers_have_replicas(number: int, name: str, kind: Kind) -> None:
    """FAULTS: nothing confirmed is lost; what a failover forgot is done again, and nothing else is."""
    server = SERVERS[number % len(SERVERS)]
    result = await runner.run(named(name)[0], SEED, server, kind)
    if result.skipped:
        pytest.skip(f"{name} on {server}: {result.skipped}")
    found = {invariant: breach.examples for invariant, breach in result.breaches.items()}
    assert found == {}, f"python -m chaos {name} --seed {SEED} --server {server} --topology {kind}"
    assert result.figures["messages"] > 0
    assert result.figures["lost"] == 0
