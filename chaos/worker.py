"""The program under test: a handler that does what its message says, and notes what came of it.

Everything it notes goes to a file outside the Redis under test, before and after each step: `start`, then an outcome
(`ack`, `retry`, `release`, `bury`) with kind `invoke`, and its answer: `ok`, `fail` (refused: another owner has it) or
`info` (nobody knows). The `invoke` of an ack is the external effect; its `ok` says that the fence let it count. `took`
is what came into its hands, started or not.

Settings come as JSON in HEADRACE_CHAOS. Mutants and crash points are switched on here and only
here, before the app is made: the product knows of neither.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
import zlib
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final

from chaos import detour, mutants, owning
from chaos.orders import SLOW, Order
from chaos.worklogs import LINES
from headrace import App, Bury, Delivery, DeliveryLost, Effect, HeadraceError, Requeue
from headrace.config import ConnectSettings
from headrace.intake import Intake
from headrace.options import duration_ms
from headrace.reader import Origin
from tests.support.history import Pen

VARIABLE: Final = "HEADRACE_CHAOS"
GROUP: Final = "billing"
SOON_S: Final = 0.05  # a timeout was there before its handler began to wait
RARE: Final = frozenset(
    {
        "rescued_total",
        "trimmed_total",
        "refused_total",
        "lost_total",
        "found_total",
        "alone_total",
        "stalled_total",
        "group_recreated_total",
        "group_pulled_back_total",
        "recovery_duplicate_ack_total",
        "reconnected_total",
        "owner_removed_total",
    }
)
"""Counters that are noted the moment they rise, so that a kill loses none."""


def sink_of(stream: str) -> str:
    """Where effects of a stream's messages go: in its slot, so that they happen with the ack."""
    return f"{{{stream}}}:sink"


class NotingRecorder:
    """Writes the rare counters down and drops the rest."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        if name in RARE:
            self._pen.note("count", name=name, n=n)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""


class Handler:
    """One handler for every stream of the worker."""

    def __init__(self, pen: Pen, healed: Path | None, timeout_s: float, *, qualified: bool = False) -> None:
        self._pen = pen
        self._timeout_s = timeout_s
        self._healed = healed  # once this file is there, poison is none any more
        self._qualified = qualified  # several streams: an id alone does not name a message

    async def handle(self, order: Order, delivery: Delivery[Order]) -> None:
        id_ = delivery.original_id  # of a requeued copy, the message that it is
        if self._qualified:
            id_ = f"{delivery.stream}/{id_}"
        who: dict[str, Any] = {"id": id_, "owner": delivery.owner, "attempt": delivery.attempt}
        self._pen.note("start", "", **who, n=order.n, do=order.do.removeprefix("slow-"))
        try:
            await self._act(order, delivery, who)
        except asyncio.CancelledError:
            if order.do != "hang":  # that one was cancelled by its timeout, and has said so
                self._pen.note("release", "info", **who)  # the end of its grace
            raise

    async def _act(self, order: Order, delivery: Delivery[Order], who: dict[str, Any]) -> None:
        do = "ok" if self._healed is not None and self._healed.exists() else order.do
        await self._work(do, order.s, who)
        first = delivery.attempt == 1
        if do in ("sink", "slow-sink"):
            effect = Effect.xadd(
                sink_of(delivery.stream), {"id": delivery.original_id, "attempt": str(delivery.attempt)}
            )
            await self._end("ack", delivery.ack(effects=[effect]), delivery, who)
        elif do == "again" and first:
            await self._end("retry", delivery.retry(after="20ms"), delivery, who)
        elif do == "handback" and first and not delivery.level:
            await self._end("release", delivery.release(), delivery, who)
        elif (do == "grave" and first) or do == "bury":
            await self._end("bury", delivery.bury("as the order says"), delivery, who)
        elif do == "raise" or (do == "flaky" and first):
            self._pen.note("retry", "info", **who)
            raise RuntimeError("as the order says")
        else:
            await self._end("ack", delivery.ack(), delivery, who)

    async def _work(self, do: str, seconds: float, who: dict[str, Any]) -> None:
        """What takes time, or the process's life."""
        if do in SLOW:
            await asyncio.sleep(seconds)
        elif do == "block":
            time.sleep(seconds)
        elif do == "gil":
            _hold_gil(seconds)
        elif do == "kill":
            self._pen.note("died", pid=os.getpid(), code=-signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "hang":
            await self._waits(who)

    async def _waits(self, who: dict[str, Any]) -> None:
        begun = time.monotonic()
        try:
            await asyncio.Event().wait()
        finally:  # by its timeout, or by the end of its process's grace
            timed_out = time.monotonic() - begun > self._timeout_s - SOON_S
            self._pen.note("retry" if timed_out else "release", "info", **who)

    async def _end(self, op: str, ending: Awaitable[None], delivery: Delivery[Order], who: dict[str, Any]) -> None:
        self._pen.note(op, "invoke", **who)
        try:
            await ending
        except DeliveryLost:
            self._pen.note(op, "fail", **who, resent=delivery.resent)
        except (HeadraceError, asyncio.CancelledError):
            self._pen.note(op, "info", **who)
            raise
        else:
            self._pen.note(op, "ok", **who)


class Sized:
    """The handler of row 23: any bytes at all, judged by their checksum."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    async def handle(self, payload: bytes, delivery: Delivery[bytes]) -> None:
        who: dict[str, Any] = {"id": delivery.id, "owner": delivery.owner, "attempt": delivery.attempt}
        self._pen.note("start", "", **who, n=zlib.crc32(payload), words=len(delivery.raw_fields))
        if payload[:1] == b"!":
            self._pen.note("bury", "invoke", **who)
            raise Bury("a dead letter of any size")
        self._pen.note("ack", "invoke", **who)
        await delivery.ack()
        self._pen.note("ack", "ok", **who)


def _hold_gil(seconds: float) -> None:
    """One call into native code that neither gives up the GIL nor sleeps."""
    sample = 500_000
    begun = time.perf_counter()
    sum(range(sample))
    sum(range(int(sample / (time.perf_counter() - begun) * seconds)))


def _note_takes(pen: Pen, *, qualified: bool) -> None:
    """Note what this process takes into its hands, before any of it is started: the judge times a rescue by it."""
    accept = Intake.accept

    def noting(self: Intake, entries: Sequence[Any], origin: Origin) -> None:
        if entries:
            member = self._member
            before = f"{member.stream}/" if qualified else ""
            pen.note("took", owner=member.owner, ids=[before + entry[0].decode() for entry in entries])
        accept(self, entries, origin)

    Intake.accept = noting  # type: ignore[method-assign]


def make_app(settings: dict[str, Any]) -> App:
    """Switch on what this process is to suffer, then make the app it runs."""
    pen = Pen(Path(settings["folder"], f"worker-{os.getpid()}.jsonl"))
    mutants.apply(settings.get("mutant", ""))
    detour.take(settings.get("detour", {}))
    if "crash" in settings:
        from chaos import crashpoints

        crashpoints.arm(pen, *settings["crash"])
    _note_takes(pen, qualified=settings.get("qualified", False))
    pen.note("born", tag=settings.get("tag", ""))
    tasks_file = Path(settings["folder"], f"tasks-{os.getpid()}")
    signal.signal(signal.SIGUSR1, lambda *_: tasks_file.write_text(str(len(asyncio.all_tasks()))))  # chaos/long.py asks
    patience = ConnectSettings.of(**settings.get("connect", {}))
    app = App(settings["url"], recorder=NotingRecorder(pen), connect=patience, **settings.get("app", {}))
    healed = Path(settings["healed"]) if "healed" in settings else None
    kind: Any = bytes if settings.get("sized") else Order
    timeout_s = duration_ms(settings["handler"].get("timeout", 0)) / 1000
    handle: Any = (
        Sized(pen).handle
        if settings.get("sized")
        else Handler(pen, healed, timeout_s, qualified=settings.get("qualified", False)).handle
    )
    handler = dict(settings["handler"])
    if "requeue" in handler:
        handler["recovery"] = Requeue(**handler.pop("requeue"))
    for stream in settings["streams"]:
        options = {"max_bytes": settings["max_bytes"]} if "max_bytes" in settings else {}
        app.stream(stream, kind, **options).handler(group=GROUP, **handler)(handle)
    owning.own(app, settings.get("owned", []), handler["lease"], pen)
    return app


def main(settings: dict[str, Any]) -> None:
    """A plain worker process, until SIGTERM."""
    logging.basicConfig(level="INFO", stream=sys.stderr, format=LINES, force=True)
    make_app(settings).run()


def from_environment() -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(os.environ[VARIABLE])
    return settings
