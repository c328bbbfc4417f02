"""A handler that gets the messages of a partition one after the other, in order, by one owner at a time (SPEC 51).

Partitions are assignments, and this is their owner: it calls an ordinary handler for each message and waits for its
outcome before the next one. What lets others pass elsewhere holds up the partition here, because order is the point:

    return         done: the position moves on
    raise          again after the backoff, in place; after max_attempts to the partition's dead letters, and on
    raise Bury     to the dead letters at once, and on
    raise Release  the partition is handed back, and begins with this message wherever it is taken next

Without dead letters a message that fails is tried for ever, and the partition waits for it.

Every start is noted on the server before it happens, so that a message that kills its process starts max_attempts
times: in the same step as the ack before it where the message is here by then, else by a call of its own. Its last
attempt runs alone in the process (gate.py), because what ran beside it would be counted with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import HandlerSettings
from headrace.errors import (
    AssignmentTaken,
    Bury,
    CodecError,
    ConfigError,
    EffectRefused,
    HandlerRefused,
    Release,
    Retry,
)
from headrace.gate import Gate
from headrace.job import Job
from headrace.member import Member
from headrace.message import ACK, Delivery, Outcome, State, SyncDelivery, Way, optional_ms
from headrace.names import keys_of, partition_assignments
from headrace.ownerjob import OwnerJob, OwnerSettings
from headrace.partitions import Partitions
from headrace.recovery import InPlace
from headrace.room import OwnedMessage, Room
from headrace.threads import Threads

log = logging.getLogger("headrace")

ALWAYS = 1_000_000  # a partition is never given up: its messages are
_OWNER_WORDS = ("concurrency", "prefetch", "rebalance")
_REFUSED = {
    "batch": "a batch has one outcome",
    "once": "a position is remembered instead",
    "delete_on_ack": "a position is remembered, and retention deletes",
    "recovery": "a partition changes hands whole",
}


@dataclass(frozen=True, slots=True)
class OrderedJob(OwnerJob):
    """An owner job whose function is an ordinary handler."""

    job: Job | None = None

    def bind(self, provided: Mapping[type, Any], gate: Gate) -> Callable[[Room[Any]], Any]:
        assert self.job is not None
        return Ordered(self.job, provided, gate).own


def make_ordered_job(job: Job, partitions: Partitions, options: Mapping[str, Any]) -> OrderedJob:
    """From a handler of a partition to the owner of all of them. Raises ConfigError, HandlerRefused."""
    for word, why in _REFUSED.items():
        if options.get(word) and options[word] != InPlace():
            raise HandlerRefused(f"{job.name} is ordered, and has {word}: {why}; remove one of them")
    own = {word: options[word] for word in _OWNER_WORDS if options.get(word) is not None}
    # Where a new group begins is said of the messages: partitions are all announced before, and all of them are owned.
    begin, handler = job.settings.start, replace(job.settings, max_attempts=ALWAYS, concurrency=None, start="0")
    settings = OwnerSettings(handler=handler, begin=begin, **own)
    return OrderedJob(
        partition_assignments(partitions.stream),
        job.group,
        job.function,
        settings,
        job.codec,
        job.wants,
        partitions=partitions,
        job=job,
    )


def handler_options(options: Mapping[str, Any]) -> HandlerSettings:
    """The settings of an ordered handler; those about owning partitions are read by OwnerSettings."""
    return HandlerSettings.of(**{word: value for word, value in options.items() if word not in _OWNER_WORDS})


class Ordered:
    """Calls one handler, in this process."""

    def __init__(self, job: Job, provided: Mapping[type, Any], gate: Gate) -> None:
        self._job = job
        self._gate = gate
        self._call = job.bind(provided)
        timeout_ms = job.settings.timeout_ms
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._threads = None if job.is_async else Threads(ALWAYS, f"headrace-{job.group}")

    async def own(self, room: Room[Any]) -> None:
        """Lead the messages of one partition to the handler until the room is left or lost."""
        before = room.attempt - 1  # starts of the first message in other hands
        room.counted = True
        async for message in room:
            if not await self._handled(room, message, before):
                return
            before = 0

    async def _handled(self, room: Room[Any], message: OwnedMessage[Any], before: int) -> bool:
        """One message, until it is done or set aside. False: the partition is to be handed back."""
        settings, attempt = self._job.settings, before
        while True:
            attempt += 1
            if settings.dead_letters and attempt > settings.max_attempts:
                await room.bury(message, "its owner died or hung during the last attempt", attempts=attempt - 1)
                return True
            alone = before > 0 and attempt == settings.max_attempts
            async with self._gate.alone() if alone else self._gate.taking():
                # Until its end is answered: what the next one kills must not be at work, nor seem to be.
                ended = await self._attempted(room, message, attempt, again=attempt > before + 1)
            if isinstance(ended, bool):
                return ended
            if not await self._waited(room, ended, attempt):
                return False

    async def _attempted(
        self, room: Room[Any], message: OwnedMessage[Any], attempt: int, *, again: bool
    ) -> bool | Outcome:
        """One attempt, noted now that its turn has come. True: it has ended, False: the room is to be left; else what
        the next attempt waits for."""
        room.check()
        if room.stopping:
            if again:
                room.forget_try()
            return False
        if again or not room.begun:
            await room.note_try()
            room.check()
        outcome = await self._tried(room, message, attempt)
        if outcome.way is Way.RELEASE:
            return False
        if outcome.way is Way.ACK:
            # Whoever has to wait for a turn is not counted before it has come.
            await (room.ack(message) if self._gate.closed else room.ack_and_go_on(message))
            return True
        last = outcome.way is Way.BURY or attempt >= self._job.settings.max_attempts
        if last and self._job.settings.dead_letters:
            await room.bury(message, outcome.reason, error=outcome.error, attempts=attempt)
            return True
        return outcome

    async def _waited(self, room: Room[Any], outcome: Outcome, attempt: int) -> bool:
        """Wait for the next attempt. False: the room is to be left meanwhile."""
        wait_ms = outcome.after_ms
        if wait_ms is None:
            wait_ms = self._job.settings.backoff.delay_ms(attempt, random.random())
        if await room.pause(wait_ms / 1000):
            return True
        room.forget_try()
        return False

    async def _tried(self, room: Room[Any], message: OwnedMessage[Any], attempt: int) -> Outcome:
        """Call the handler once. What it does to the delivery, returns or raises is one outcome."""
        ways = _Ways(self._job, room, message)
        delivery: Delivery[Any] = Delivery(ways, message.raw_id, message.fields, attempt, 0, time.monotonic())
        delivery.fate = room.lost
        delivery.state = State.STARTED
        try:
            payload = message.payload
        except CodecError as error:
            return Outcome(Way.BURY, reason=str(error), error=type(error).__name__)
        try:
            await self._perform(payload, delivery)
        except (Bury, Retry, Release, AssignmentTaken, Exception) as error:  # noqa: BLE001 - a handler's word
            return ways.outcome or self._outcome(delivery, error)
        return ways.outcome or ACK

    async def _perform(self, payload: Any, delivery: Delivery[Any]) -> None:
        if self._threads is not None:
            await self._threads.run(self._call, payload, SyncDelivery(delivery, asyncio.get_running_loop()))
            return
        async with asyncio.timeout(self._timeout_s):
            await self._call(payload, delivery)

    def _outcome(self, delivery: Delivery[Any], error: Exception) -> Outcome:
        if isinstance(error, AssignmentTaken):
            raise error
        if isinstance(error, Bury):
            return Outcome(Way.BURY, reason=error.reason, error="Bury")
        if isinstance(error, Release):
            return Outcome(Way.RELEASE)
        if isinstance(error, Retry):
            return Outcome(Way.RETRY, reason=error.reason, error="Retry", after_ms=optional_ms(error.after))
        log.warning(
            "handler.raised handler=%s stream=%s id=%s attempt=%d of %d",
            *(self._job.name, delivery.stream, delivery.id, delivery.attempt, self._job.settings.max_attempts),
            exc_info=error,
        )
        name = type(error).__name__
        return Outcome(Way.RETRY, reason=str(error) or name, error=name)


class _Ways:
    """What the delivery of an ordered handler can do: say how it ends. The partition does it when the handler returns,
    because the next message must not start before."""

    def __init__(self, job: Job, room: Room[Any], message: OwnedMessage[Any]) -> None:
        self._room = room
        self._message = message
        self.member = Member(keys_of(room.name), job.group, room.owner, job.settings)
        self.outcome: Outcome | None = None

    async def end(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        delivery.check_open()
        if outcome.effects:
            raise EffectRefused(
                f"{delivery!r} is of an ordered partition, whose position moves without effects: write them yourself, "
                "under a key that makes them repeatable"
            )
        self._room.check()
        if outcome.way is Way.ACK:
            await self._room.ack(self._message)
        delivery.state = State.ENDED
        self.outcome = outcome


def check_words(options: Mapping[str, Any]) -> None:
    """Options that only an ordered handler has, without ordered=True."""
    for word in ("prefetch", "rebalance"):
        if options.get(word) is not None:
            raise ConfigError(f"{word} is for ordered handlers: add ordered=True, or remove {word}")
