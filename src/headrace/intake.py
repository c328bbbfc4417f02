"""The intake of a lane: what becomes of each entry that the reader took.

    new, first attempt              held, and queued for a runner
    in this process already         the running delivery takes the new count, or the entry goes back until it has ended
    attempts exhausted              buried: its owner died during the last one
    last attempt after a crash      goes to wait until it can run alone (ADR 8)
    key already done (``once``)     acknowledged without a handler (SPEC 34)

It also decides how much may be read ahead (ADR 7).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.completion import Completion
from headrace.engines import Engine, Step
from headrace.job import Job
from headrace.member import Member
from headrace.message import Delivery, Outcome, State, Way, Ways
from headrace.outbox import Outbox
from headrace.policy import crash_delay_ms
from headrace.reader import Origin
from headrace.recorder import Recorder
from headrace.redis.link import Link
from headrace.runners import Runners
from headrace.slots import Slots

log = logging.getLogger("headrace")

QUICK_S = 0.025  # a delivery held for less than this, from read to ack, has a quick handler
AHEAD_SHARE = 4  # of the slots, one in so many may be read ahead
AHEAD_MOST = 32


class Intake:
    def __init__(
        self,
        ways: Ways,
        job: Job,
        member: Member,
        slots: Slots,
        runners: Runners,
        outbox: Outbox,
        link: Link,
        recorder: Recorder,
        engine: Engine,
    ) -> None:
        self._ways = ways
        self._job = job
        self._member = member
        self._slots = slots
        self._runners = runners
        self._outbox = outbox
        self._recorder = recorder
        self._residence_s = 1.0
        self._make = engine.delivery
        self._may_read_ahead = engine.reads_ahead and job.batch is None
        self.closed = False
        self.arrived_after: Callable[[float], float] = lambda now: now
        self.steps: list[Step] = engine.steps(self._stepped)
        if job.settings.once_ms is not None:
            self.steps.append(Completion(member, link, passed=self._looked_up))

    # ── what the reader hands over ──

    def accept(self, entries: Sequence[Any], origin: Origin) -> None:
        """Decide what becomes of each entry that was taken, and wake the runners."""
        if not entries:
            return
        now = self.arrived_after(time.monotonic())
        held, take, make = self._slots.held, self._slots.take, self._make
        for entry in entries:
            raw_id, fields, count, idle_ms = entry[0], entry[1], entry[2], entry[3]
            if count == 1 and raw_id not in held and origin is Origin.NEW:
                take(make(self._ways, raw_id, fields, 1, 0, now))
            else:
                self._accept_odd(entry, make(self._ways, raw_id, fields, count, idle_ms, now), origin)
        self._recorder.count(origin.value, len(entries), **self._member.labels)
        if self.steps:
            self._begin_steps()
        if self.closed:
            self.release_queued()
        self._runners.wake()

    def _accept_odd(self, entry: Any, delivery: Delivery[Any], origin: Origin) -> None:
        """Everything that is not a new message read for the first time."""
        max_attempts = self._job.settings.max_attempts
        if self._is_mine(delivery, origin):
            return
        rescued = origin is Origin.RESCUED or (origin is Origin.NEW and delivery.count > 1)
        if rescued:
            self._count_rescue(delivery, origin)
        if origin in (Origin.DUE, Origin.ALONE):
            delivery.level = _level(entry[4])
        delivery.alone = origin is Origin.ALONE
        if delivery.attempt > max_attempts:
            self._end(delivery, self._exhausted(delivery))
        elif rescued and delivery.attempt == max_attempts and max_attempts > 1:
            delivery.alone = True
            self._end(delivery, Outcome(Way.RELEASE, after_ms=crash_delay_ms(delivery.attempt - 1, max_attempts)))
        else:
            self._slots.take(delivery)

    def _is_mine(self, delivery: Delivery[Any], origin: Origin) -> bool:
        """The same id is in this process already: take the new count, or hand it back while the old one is not over.

        What was due had been sent to wait by the one that is here: its outcome has happened and only the answer is on
        its way. So this is another delivery, not a new count of that one.
        """
        running = self._slots.held.get(delivery.raw_id)
        waited = origin in (Origin.DUE, Origin.ALONE)
        if running is not None and not waited:
            running.retake(delivery.count, time.monotonic())
            return True
        if running is not None or delivery.raw_id in self._slots.zombies:
            self._end(delivery, Outcome(Way.RELEASE))
            return True
        return False

    def _end(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        """End it without a handler. It is held until the server has answered."""
        self._slots.hold(delivery)
        self._outbox.put(delivery, outcome)

    def _exhausted(self, delivery: Delivery[Any]) -> Outcome:
        starts, limit = delivery.attempt - 1, self._job.settings.max_attempts
        reason = f"its owner died or hung during attempt {starts} of {limit}"
        return Outcome(Way.BURY, reason=reason, error="Exhausted", starts=starts)

    def _count_rescue(self, delivery: Delivery[Any], origin: Origin) -> None:
        labels = self._member.labels
        if origin is Origin.NEW:  # by the read itself, on servers with CLAIM
            self._recorder.count(Origin.RESCUED.value, 1, **labels)
        late_ms = max(0, delivery.idle_ms - self._job.settings.lease_ms)
        self._recorder.count("recovery_scan_requeued_total", 1, **labels)
        self._recorder.observe("rescue_latency_seconds", late_ms / 1000, **labels)
        log.info(
            "message.rescued stream=%s group=%s id=%s attempt=%d idle_ms=%d",
            *(*labels.values(), delivery.id, delivery.attempt, delivery.idle_ms),
        )

    def release_queued(self) -> None:
        """Hand back what was read and not started: at once, attempt not burnt."""
        for step in self.steps:
            self._slots.queue.extend(step.forget())
        while self._slots.queue:
            delivery = self._slots.queue.popleft()
            if delivery.state is State.READ:
                self._outbox.put(delivery, Outcome(Way.RELEASE, after_ms=0))

    # ── before a handler starts: its lock (SPEC 46), then its completion marker (SPEC 34) ──

    def _begin_steps(self) -> None:
        """Nothing starts before the server was asked."""
        while self._slots.queue:
            self.steps[0].ask(self._slots.queue.popleft())

    def _stepped(self, delivery: Delivery[Any]) -> None:
        """It has its lock: one step further."""
        if len(self.steps) > 1:
            self.steps[1].ask(delivery)
        else:
            self._looked_up(delivery, done=False)

    def _looked_up(self, delivery: Delivery[Any], done: bool) -> None:
        """The answer: run it, or end it here as a duplicate."""
        if self._slots.held.get(delivery.raw_id) is not delivery or delivery.state is not State.READ:
            return
        if done:
            self._outbox.ack(delivery)
        else:
            self._slots.queue.append(delivery)
            self._runners.wake()

    # ── reading ahead (ADR 7) ──

    def handled_in(self, seconds: float) -> None:
        """How long one of the deliveries just acknowledged was held: quick handlers earn a little reading ahead."""
        self._residence_s += (seconds - self._residence_s) / 8
        # Handlers that never wait keep one or two runners busy: what they could gain is lost in smaller batches.
        waits = 2 * self._runners.busy >= self._job.concurrency
        quick = self._residence_s < QUICK_S and waits and self._may_read_ahead
        self._slots.ahead = min(self._slots.limit // AHEAD_SHARE, AHEAD_MOST) if quick else 0

    def stuck(self) -> None:
        """What was read ahead did not start soon: handlers have become slow. Others may have it."""
        self._slots.ahead = 0
        self._residence_s = 1.0
        excess = min(len(self._slots.held) - self._slots.limit, len(self._slots.queue))
        for _ in range(excess):
            self._outbox.put(self._slots.queue.pop(), Outcome(Way.RELEASE, after_ms=0))


def _level(mark: str) -> int:
    """How often in a row a handler has released this delivery: told by the mark it waited under."""
    word, _, level = mark.partition("-")
    return int(level) if word == "released" and level.isdigit() else 0
