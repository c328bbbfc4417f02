"""A worker that ends takes its owner out of the group (SPEC 22)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App
from headrace.janitor import Janitor
from headrace.redis import commands
from tests.support.servers import Server
from tests.support.wait import wait_until

GROUP = "billing"


@pytest.mark.servers("redis8", "redis6")
async def test_an_owner_leaves_its_group_although_its_janitor_was_at_work_when_it_was_stopped(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by row 2 on a busy machine: the call that was cut off took the connection with it, and nobody left."""
    rounds = 0

    async def busy(self: Janitor) -> None:
        nonlocal rounds
        while True:
            await self._link.call(commands.server_ms())
            rounds += 1

    monkeypatch.setattr(Janitor, "round", busy)
    monkeypatch.setattr("headrace.janitor.FLOOR_MS", 1)
    async with App(server.url) as app:

        @app.stream(stream).handler(group=GROUP)
        async def bill(order: Any) -> None:
            """Nothing to do."""

        async with app.worker():
            await wait_until(lambda: rounds > 10, what="the janitor is at work")
    assert server.sync().xinfo_consumers(stream, GROUP) == []
