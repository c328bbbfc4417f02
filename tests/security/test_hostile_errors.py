"""Whatever a handler raises or says, its delivery ends and the worker goes on (SPEC 24, 27, 30, 53)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Bury, Delivery, Release, Retry
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Numb(Exception):
    """One whose words are no text."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Stuck(Exception):
    """One that does not pickle, and whose constructor nobody else can call."""

    def __init__(self, one: object, *, two: object) -> None:
        super().__init__(one)
        self.two = two

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


LongName: Any = type("N" * 10_000, (Exception,), {})

ERRORS: dict[str, Callable[[], BaseException]] = {
    "mute": Mute,
    "numb": Numb,
    "stuck": lambda: Stuck(lambda: None, two=object()),
    "megabytes": lambda: ValueError("x" * (8 << 20)),
    "surrogate": lambda: ValueError("\ud800\udfff"),
    "long name": lambda: LongName("x"),
    "escapes": lambda: ValueError("\x1b]0;owned\x07\x1b[2J\r\nINFO forged line"),
    "nul": lambda: ValueError("\x00"),
    "markup": lambda: ValueError("<script>alert(1)</script>"),
    "bytes": lambda: ValueError(b"\xff\xfe"),
    "group": lambda: ExceptionGroup("many", [ValueError("a"), Mute()]),
    "bury with a number": lambda: Bury(5),  # type: ignore[arg-type]
    "bury with a mute thing": lambda: Bury(Mute()),  # type: ignore[arg-type]
    "bury with megabytes": lambda: Bury("\ud800" * (4 << 20)),
    "retry with nothing": lambda: Retry(None),  # type: ignore[arg-type]
    "retry after nonsense": lambda: Retry("x", after="soon"),
    "retry after a thing": lambda: Retry("x", after=object()),  # type: ignore[arg-type]
    "retry after -1": lambda: Retry("x", after=-1),
    "retry after nan": lambda: Retry("x", after=float("nan")),
    "retry in 10^30 s": lambda: Retry("x", after=10**30),
    "release after nonsense": lambda: Release(after="never"),
    "stop": StopAsyncIteration,
}


@pytest.mark.timeout(20)
@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
async def test_every_hostile_error_ends_its_delivery_and_nothing_else(
    server: Server, stream: str, make_app: MakeApp, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 24, 27: buried at the last attempt, with a bounded text; the next message is handled."""
    app = make_app(server)
    orders, handled = app.stream(stream), []
    options: dict[str, Any] = {"group": GROUP, "lease": "2s", "max_attempts": 1, "concurrency": 4}

    def act(order: Any) -> None:
        if order["do"] != "ok":
            error = ERRORS[order["do"]]()
            raise error
        handled.append(order)

    if kind == "async":

        @orders.handler(**options)
        async def bill(order: Any) -> None:
            act(order)

    elif kind == "plain":

        @orders.handler(**options)
        def bill_in_a_thread(order: Any) -> None:
            act(order)

    else:

        @orders.handler(**options, batch=1)
        async def bill_some(batch: list[Delivery[Any]]) -> None:
            act(batch[0].payload)

    async with app.worker():
        for name in ERRORS:
            await orders.add({"do": name})
        await orders.add({"do": "ok"})
        await wait_until(lambda: handled and counted(app, "buried_total") == len(ERRORS), 10, what="all ended")
        letters = await orders.dead_letters.listed()
    assert {json.loads(letter.payload or b"")["do"] for letter in letters} == set(ERRORS)
    for letter in letters:
        assert len(letter.reason.encode()) <= 2_000
        assert len(letter.error) <= 200
    assert "a runner of Headrace died" not in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 2_000
