"""Handlers without a server: one delivery through the executor that workers run.

The payload is encoded and decoded by the stream's codec, what the app provides is injected, and what the handler does
becomes the outcome that a worker would send. What cannot be shown is what only a server knows: whether an effect's key
holds another type, whether the message was handled before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.app import App, _make
from headrace.codec import codec_for, encode_fields, own_fields
from headrace.config import HandlerSettings, duration_ms
from headrace.effects import Effect
from headrace.errors import ConfigError, EffectRefused
from headrace.executor import Executor
from headrace.job import Job, make_job
from headrace.marks import NoMarks
from headrace.member import Member
from headrace.message import Delivery, Outcome, State, Way
from headrace.names import keys_of, same_slot
from headrace.recorder import NoRecorder
from headrace.slots import Slots

OWNER = "test"

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What would become of a delivery. ``way`` is "ack", "retry", "release", "bury" or "refused" (it was lost)."""

    way: str
    reason: str = ""  # of a retry or a burial
    error: str = ""  # type of the exception behind it
    after_ms: int | None = None  # wait before the next attempt; None: the handler's backoff decides
    effects: tuple[Effect, ...] = ()
    result: bytes = b""

    @property
    def acked(self) -> bool:
        return self.way == "ack"

    @property
    def retried(self) -> bool:
        return self.way == "retry"

    @property
    def released(self) -> bool:
        return self.way == "release"

    @property
    def buried(self) -> bool:
        """To the dead letters: Bury, an undecodable payload, or a failure at the last attempt."""
        return self.way == "bury"

    @property
    def refused(self) -> bool:
        """Another owner had it by then: nothing of what the handler wanted has happened."""
        return self.way == "refused"


async def deliver(
    what: App | Handler,
    payload: Any = None,
    *,
    stream: str | None = None,
    group: str | None = None,
    attempt: int = 1,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, str | bytes] | None = None,
    provided: Mapping[type, Any] | None = None,
    lost_after: float | str | None = None,
) -> Result:
    """Lead one message through a handler, without a server, and say what would become of it.

    ``what`` is an app (``stream`` and ``group`` choose among its handlers) or a handler itself, with default settings.
    ``fields`` gives the raw entry instead of a payload, for what other producers write. ``provided`` stands in for
    what the app would inject. ``lost_after``: another owner takes the message over while the handler runs.

    >>> async def bill(order: dict) -> None:
    ...     if order["total"] < 0:
    ...         raise ValueError("a negative total")
    >>> asyncio.run(deliver(bill, {"total": -1}))
    Result(way='retry', reason='a negative total', error='ValueError', after_ms=None, effects=(), result=b'')
    >>> asyncio.run(deliver(bill, {"total": -1}, attempt=5)).buried
    True
    """
    job = _job_of(what, stream, group, payload, provided)
    if job.batch is not None:
        raise ConfigError(f"{job.name} takes a list of deliveries: use deliver_batch(app, [payload, ...])")
    entry = _entry(job, payload, key, headers, fields)
    async with _dry_lane(what, job, provided) as lane:
        delivery = lane.take(entry, attempt)
        lane.lose_later([delivery], lost_after)
        await lane.executor.run(delivery)
        return lane.result(delivery)


async def deliver_batch(
    what: App | Handler,
    payloads: Sequence[Any],
    *,
    stream: str | None = None,
    group: str | None = None,
    attempt: int = 1,
    provided: Mapping[type, Any] | None = None,
    lost_after: float | str | None = None,
) -> list[Result]:
    """The same for a batch handler: one call with all of them, one result each."""
    job = _job_of(what, stream, group, payloads[0] if payloads else None, provided)
    entries = [_entry(job, payload, None, None, None) for payload in payloads]
    async with _dry_lane(what, job, provided) as lane:
        deliveries = [lane.take(entry, attempt) for entry in entries]
        lane.lose_later(deliveries, lost_after)
        await lane.executor.run_batch(deliveries)
        return [lane.result(delivery) for delivery in deliveries]


class DryLane:
    """A lane that leads nowhere: deliveries end here instead of on a server."""

    def __init__(self, job: Job, provided: Mapping[type, Any]) -> None:
        self._job = job
        self.member = Member(keys_of(job.stream), job.group, OWNER, job.settings)
        self._slots = Slots(job.slots)
        self._outcomes: dict[bytes, Outcome] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.executor = Executor(
            job,
            self.member,
            self._slots,
            NoRecorder(),
            marks=NoMarks(),
            ack=lambda delivery: self._put(delivery, Outcome(Way.ACK)),
            put=self._put,
            provided=provided,
        )

    # ── what Delivery asks of its lane (message.Ways): its member, and this ──

    async def end(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        if delivery.is_lost:
            delivery.answered()
            raise delivery.refusal("another-owner")
        delivery.check_open()
        for effect in outcome.effects:
            if not same_slot(effect.key, self.member.stream):
                raise EffectRefused(
                    f"{effect.command} {effect.key}: the key is in another slot; "
                    f"give it the tag of {self.member.stream}"
                )
        self._put(delivery, outcome)

    # ── one delivery's way ──

    def take(self, fields: list[bytes], attempt: int) -> Delivery[Any]:
        raw_id = b"%d-%d" % (time.time() * 1000, len(self._slots.held))
        delivery: Delivery[Any] = Delivery(self, raw_id, fields, attempt, 0, time.monotonic())
        self._slots.take(delivery)
        self._slots.queue.clear()
        return delivery

    def lose_later(self, deliveries: Sequence[Delivery[Any]], after: float | str | None) -> None:
        if after is None:
            return

        def lose() -> None:
            for delivery in deliveries:
                if delivery.state is State.STARTED:
                    self._slots.lose(delivery)

        delay_s = duration_ms(after, name="lost_after") / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, lose)

    def result(self, delivery: Delivery[Any]) -> Result:
        outcome = self._outcomes.get(delivery.raw_id)
        if outcome is None:
            return Result("refused")
        last = delivery.attempt >= self._job.settings.max_attempts
        way = Way.BURY if outcome.way is Way.RETRY and last else outcome.way
        return Result(way.value, outcome.reason, outcome.error, outcome.after_ms, outcome.effects, outcome.result)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.executor.close()

    def _put(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        self._outcomes[delivery.raw_id] = outcome
        self._slots.drop(delivery)
        delivery.answered()


@asynccontextmanager
async def _dry_lane(what: App | Handler, job: Job, provided: Mapping[type, Any] | None) -> AsyncIterator[DryLane]:
    """A lane with what the handler wants injected: the stand-ins given, else made as the worker would."""
    async with AsyncExitStack() as stack:
        made = dict(provided or {})
        factories = what._factories if isinstance(what, App) else {}  # noqa: SLF001 - the app's own tools
        for kind in job.wants.values():
            if kind not in made:
                made[kind] = await _make(stack, factories[kind])
        lane = DryLane(job, made)
        stack.callback(lane.close)
        yield lane


def _job_of(
    what: App | Handler, stream: str | None, group: str | None, payload: Any, provided: Mapping[type, Any] | None
) -> Job:
    if not isinstance(what, App):
        codec = codec_for(_model_of(payload))
        return make_job(stream or "test", group or "test", what, HandlerSettings(), codec, frozenset(provided or ()))
    fitting = [job for job in what.jobs if stream in (None, job.stream) and group in (None, job.group)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(f"{job.stream}/{job.group}" for job in what.jobs) or "none"
    found = "no handler" if not fitting else f"{len(fitting)} handlers"
    raise ConfigError(f"{found} for stream={stream!r}, group={group!r}: the app has {known}")


def _model_of(payload: Any) -> Any:
    """The model that a bare handler's payload stands for: its own class if it is one, else JSON."""
    kind = type(payload)
    named_tuple = isinstance(payload, tuple) and hasattr(kind, "_fields")
    if dataclasses.is_dataclass(kind) or isinstance(payload, msgspec.Struct) or named_tuple:
        return kind
    return kind if kind in (bytes, str) or hasattr(kind, "model_validate_json") else None


def _entry(
    job: Job,
    payload: Any,
    key: str | None,
    headers: Mapping[str, str] | None,
    fields: Mapping[str, str | bytes] | None,
) -> list[bytes]:
    """The entry as a server would hand it out: field names and values in turn, as bytes."""
    raw = () if fields is None else (word for pair in fields.items() for word in pair)
    words: list[bytes | str] = encode_fields(job.codec, payload) if fields is None else list(raw)
    words += own_fields(key=key, headers=headers, prefix=job.settings.prefix)
    return [word.encode() if isinstance(word, str) else word for word in words]
