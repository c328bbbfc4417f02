"""Apps on the server under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace import App, CountingRecorder
from tests.support.servers import Server


@pytest.fixture
async def make_app() -> AsyncIterator[Callable[..., App]]:
    """make_app(server), or make_app(url): an app that counts what happens (app.recorder)."""
    apps: list[App] = []

    def make(where: Server | str, **options: Any) -> App:
        url = where if isinstance(where, str) else where.url
        app = App(url, **{"recorder": CountingRecorder(), "grace": "2s", **options})
        apps.append(app)
        return app

    yield make
    for app in apps:
        await app.close()
