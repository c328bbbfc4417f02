"""Wait for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def wait_until(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = 5.0, interval: float = 0.01, *, what: str = ""
) -> T:
    """Ask until the answer is true, and return it. The predicate may be a plain or an async function."""
    until = time.monotonic() + timeout
    while True:
        answer = predicate()
        value: T = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        _give_up(until, timeout, predicate, what, value)
        await asyncio.sleep(interval)


def wait_until_sync(predicate: Callable[[], T], timeout: float = 5.0, interval: float = 0.01, *, what: str = "") -> T:
    """The same for tests without an event loop."""
    until = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        _give_up(until, timeout, predicate, what, value)
        time.sleep(interval)


def _give_up(until: float, timeout: float, predicate: object, what: str, value: object) -> None:
    if time.monotonic() >= until:
        named = what or getattr(predicate, "__name__", repr(predicate))
        raise AssertionError(f"not within {timeout:g} s: {named}; the last answer was {value!r:.200}")
