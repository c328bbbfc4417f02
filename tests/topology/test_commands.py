"""The command line on a cluster and behind sentinels: what it says about them, and that all of it works (SPEC 58)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Bury
from headrace.cli import main
from tests.support.looking import orphan
from tests.support.topologies import Cluster, Sentinels, every
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command answers with --json."""
    code = main([*words, "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    return json.loads(out.out)


@pytest.mark.servers(*every("redis8"))
def test_the_doctor_tells_of_masters_replicas_and_slots(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    shape = told(capsys, "doctor", "--url", cluster.url)["topology"]
    assert (shape["kind"], len(shape["masters"]), shape["replicas"], shape["slots"]) == ("cluster", 3, 3, 16_384)
    assert (shape["alone"], shape["full_coverage"]) == ([], False)
    assert len(shape["versions"]) == 1


@pytest.mark.servers(*every("redis8"))
def test_the_doctor_tells_of_sentinels_and_quorum(sentinels: Sentinels, capsys: pytest.CaptureFixture[str]) -> None:
    shape = told(capsys, "doctor", "--url", sentinels.url)["topology"]
    assert (shape["kind"], shape["sentinels"], shape["quorum"], shape["replicas"]) == ("sentinel", 3, 2, 1)
    assert len(shape["masters"]) == 1


@pytest.mark.servers(*every("redis8"))
def test_every_look_at_a_stream_works_wherever_it_is(
    cluster: Cluster, prefix: str, make_app: Callable[..., App], capsys: pytest.CaptureFixture[str]
) -> None:
    names = cluster.names(prefix, 3)
    asyncio.run(_bury_one_each(cluster, names))
    for name in names:
        url = ("--url", cluster.url)
        assert told(capsys, "groups", name, *url)["dead_letters"] == 1
        assert told(capsys, "backlog", name, GROUP, *url)["backlog"] == 1
        assert told(capsys, "pending", name, GROUP, *url)["held_total"] == 1
        assert told(capsys, "owners", name, *url)["owners"]
        assert told(capsys, "dlq", "list", name, *url)["stream"] == name
        told(capsys, "dlq", "replay", name, "--all", *url)
        assert told(capsys, "backlog", name, GROUP, *url)["backlog"] == 2
        told(capsys, "add", name, '{"n": 3}', "--key", "k", *url)
        assert told(capsys, "backlog", name, GROUP, *url)["backlog"] == 3


async def _bury_one_each(cluster: Cluster, names: list[str]) -> None:
    from headrace import CountingRecorder

    app = App(cluster.url, recorder=CountingRecorder())

    async def bill(order: Any) -> None:
        raise Bury("never")

    for name in names:
        app.stream(name).handler(group=GROUP)(bill)
        await app.stream(name).add({"n": 1})
    async with app.worker():
        await wait_until(lambda: counted(app, "buried_total") == 3, 10)
    for name in names:
        await app.stream(name).add({"n": 2})
        orphan(cluster, name, GROUP, 1)  # type: ignore[arg-type]
    await app.close()
