"""Worker processes on a server, and what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.owners import Owners
from tests.support.servers import Server
from tests.support.workers import Workers


@pytest.fixture
def hire(tmp_path: Path, stream: str) -> Iterator[Callable[..., Workers]]:
    """hire(server, lease="500ms", ...): workers on a server, with these options of their handler."""
    hired: list[Workers] = []

    def hire(server: Server, *, url: str = "", **handler: Any) -> Workers:
        folder = tmp_path / str(len(hired))
        folder.mkdir()
        workers = Workers(folder, url or server.url, stream)
        workers.settings["handler"].update(handler)
        hired.append(workers)
        return workers

    yield hire
    for workers in hired:
        workers.end()


@pytest.fixture
def own(tmp_path: Path, stream: str) -> Iterator[Callable[..., Owners]]:
    """own(server, slow_s=0.01, lease="500ms", ...): owner processes, with these options of @rooms.owner."""
    made: list[Owners] = []

    def own(server: Server, *, slow_s: float = 0.0, app: dict[str, Any] | None = None, **options: Any) -> Owners:
        folder = tmp_path / f"owners-{len(made)}"
        folder.mkdir()
        settings = {"slow_s": slow_s, "app": app or {}, "owner": {"lease": "500ms", **options}}
        owners = Owners(folder, server, stream, **settings)
        made.append(owners)
        return owners

    yield own
    for owners in made:
        owners.end()
