"""Clusters and sentinels, started once a session for each version, and mended after a test that broke them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import App, CountingRecorder
from tests.support.owners import Owners
from tests.support.servers import KEYS, ServerMissing
from tests.support.topologies import Cluster, Sentinels, Topology, start_cluster, start_sentinels
from tests.support.workers import Workers

COVERED = pytest.StashKey[dict[str, set[str]]]()
"""The tests of topologies, with the servers that each runs on in the wide run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file run in one worker of xdist: nobody else may kill a master under them.

    A failover takes seconds, so each test runs on the first server that it names; HEADRACE_WIDE=1 runs all of them.
    """
    here, wide = Path(__file__).parent, "HEADRACE_WIDE" in os.environ
    left_out, covered = [], config.stash.setdefault(COVERED, {})
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.xdist_group(f"topology-{item.path.stem}"))
        named, params = item.get_closest_marker("servers"), getattr(getattr(item, "callspec", None), "params", {})
        if params.get("server_key") in KEYS:  # it may have none of those that --servers allows
            covered.setdefault(f"{item.path.stem}::{item.originalname}", set()).add(params["server_key"])  # type: ignore[attr-defined]
        if not wide and named is not None and params.get("server_key", named.args[0]) != named.args[0]:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


class Kept:
    """The session's topologies by key."""

    def __init__(self, start: Callable[[str], Topology]) -> None:
        self._start = start
        self._running: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._running:
            try:
                self._running[key] = self._start(key)
            except ServerMissing as missing:
                pytest.skip(f"MISSING SERVER: {missing}")
        return self._running[key]

    def mend(self) -> None:
        """After a test: what was killed or paused runs again, is in step, and is empty.

        Sentinels take ten seconds to look at a server that is back: they are started anew.
        """
        for key, topology in list(self._running.items()):
            if isinstance(topology, Sentinels) and topology.hurt:
                self._running.pop(key).stop()
                continue
            for member in topology.members:
                if not member.alive:
                    member.start()
                else:
                    member.cont()
            topology.until(topology.ready, "everything mended", 30)
            topology.flush()

    def stop(self) -> None:
        for topology in self._running.values():
            topology.stop()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Kept]:
    kept = Kept(start_cluster)
    yield kept
    kept.stop()


@pytest.fixture(scope="session")
def guarded() -> Iterator[Kept]:
    kept = Kept(start_sentinels)
    yield kept
    kept.stop()


@pytest.fixture
def cluster(clusters: Kept, server_key: str) -> Iterator[Cluster]:
    """A cluster of three masters with a replica each, of the server version under test."""
    yield clusters[server_key]
    clusters.mend()


@pytest.fixture
def sentinels(guarded: Kept, server_key: str) -> Iterator[Sentinels]:
    """A primary, a replica and three sentinels."""
    yield guarded[server_key]
    guarded.mend()


@pytest.fixture
async def make_app() -> AsyncIterator[Callable[..., App]]:
    """make_app(url): an app that counts what happens (app.recorder)."""
    apps: list[App] = []

    def make(where: Topology | str, **options: Any) -> App:
        url = where if isinstance(where, str) else where.url  # type: ignore[attr-defined]
        app = App(url, **{"recorder": CountingRecorder(), "grace": "2s", **options})
        apps.append(app)
        return app

    yield make
    for app in apps:
        with contextlib.suppress(OSError):
            await app.close()


@pytest.fixture
def hire(tmp_path: Path, stream: str) -> Iterator[Callable[..., Workers]]:
    """hire(topology, lease="500ms", ...): worker processes, with these options of their handler."""
    hired: list[Workers] = []

    def hire(topology: Any, **handler: Any) -> Workers:
        folder = tmp_path / str(len(hired))
        folder.mkdir()
        workers = Workers(folder, topology.url, stream)
        workers.settings["handler"].update(handler)
        hired.append(workers)
        return workers

    yield hire
    for workers in hired:
        workers.end()


@pytest.fixture
def own(tmp_path: Path, stream: str) -> Iterator[Callable[..., Owners]]:
    """own(topology, slow_s=0.01, lease="500ms", ...): owner processes, with these options of @rooms.owner."""
    made: list[Owners] = []

    def own(topology: Any, *, slow_s: float = 0.0, **options: Any) -> Owners:
        folder = tmp_path / f"owners-{len(made)}"
        folder.mkdir()
        made.append(Owners(folder, topology, stream, slow_s=slow_s, owner={"lease": "500ms", **options}))
        return made[-1]

    yield own
    for owners in made:
        owners.end()
