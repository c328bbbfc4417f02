"""Worker processes on a server, and what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
