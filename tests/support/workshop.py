"""Workers inside the test's own event loop, and what their handler saw."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace import App, CountingRecorder, Delivery, Worker

GROUP = "billing"


@dataclass(frozen=True, slots=True)
class Seen:
    """One start of a handler."""

    at: float
    payload: Any
    id: str
    attempt: int
    owner: str


class Ledger:
    """Notes every start of a handler: the first line of most handlers of the tests."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def note(self, payload: Any, delivery: Delivery[Any]) -> Seen:
        seen = Seen(time.monotonic(), payload, delivery.id, delivery.attempt, delivery.owner)
        self.seen.append(seen)
        return seen

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def ids(self) -> list[str]:
        return [seen.id for seen in self.seen]

    @property
    def attempts(self) -> list[int]:
        return [seen.attempt for seen in self.seen]


@asynccontextmanager
async def pool(app: App, count: int, **options: Any) -> AsyncIterator[list[Worker]]:
    """Several workers of one app, each with an owner name of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(app.worker(**options)) for _ in range(count)]


def counted(app: App, name: str, **labels: str) -> int:
    """The sum of a counter of an app made by `make_app`."""
    assert isinstance(app.recorder, CountingRecorder)
    return app.recorder.total(name, **labels)
