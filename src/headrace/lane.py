"""A lane leads one stream of one group to one handler: it wires the services and decides what to do with what was read.

reader ──▶ accept ──▶ slots ──▶ runners ──▶ executor ──▶ outbox ──▶ server
             │                                              ▲
             └── exhausted, not startable, to run alone ────┘
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.completion import Completion
from headrace.errors import DeliveryLost
from headrace.executor import Executor
from headrace.gate import Gate
from headrace.groups import Groups
from headrace.janitor import Janitor
from headrace.job import Job
from headrace.lifeline import Strand
from headrace.marks import Marks
from headrace.member import Member
from headrace.message import Delivery, Outcome, State, Way
from headrace.outbox import Outbox
from headrace.policy import crash_delay_ms
from headrace.reader import Origin, Reader
from headrace.recorder import Recorder
from headrace.redis import replies, scripts
from headrace.redis.calls import Call, Word
from headrace.redis.capabilities import Capabilities
from headrace.redis.connect import Server
from headrace.rescuer import Rescuer
from headrace.runners import Runners
from headrace.slots import Slots
from headrace.waiting import Waiting

log = logging.getLogger("headrace")

QUICK_S = 0.025  # a delivery held for less than this, from read to ack, has a quick handler
AHEAD_SHARE = 4  # of the slots, one in so many may be read ahead
AHEAD_MOST = 32


class Lane:
    def __init__(
        self,
        job: Job,
        member: Member,
        server: Server,
        capabilities: Capabilities,
        *,
        gate: Gate,
        marks: Marks,
        recorder: Recorder,
        provided: Mapping[type, Any],
    ) -> None:
        self.job = job
        self.member = member
        self._recorder = recorder
        self.slots = Slots(job.slots)
        self.gate = gate
        gate.watch(self.slots)
        self.read_link = server.link(f"headrace:{member.owner}:read")
        self.out_link = server.link(f"headrace:{member.owner}:out")
        self._marks = marks
        self.outbox = Outbox(
            member,
            self.out_link,
            self.slots,
            recorder,
            marks=marks,
            freed=self._freed,
            handled_in=self._handled_in,
            delete=_delete_mode(job, capabilities),
        )
        self.executor = Executor(
            job,
            member,
            self.slots,
            recorder,
            marks=marks,
            ack=self.outbox.ack,
            put=self.outbox.put,
            provided=provided,
        )
        self.runners = Runners(
            job.concurrency,
            self.slots.queue,
            self.executor.run_batch if job.batch else self.executor.run,
            batch=job.batch,
            batch_wait_ms=job.settings.batch_wait_ms,
        )
        self.rescuer = Rescuer(member, recorder, native=capabilities.claim)
        self.groups = Groups(member, self.out_link, recorder)
        self.janitor = Janitor(member, self.out_link, recorder, in_flight=lambda: len(self.slots.held))
        self.reader = Reader(
            member,
            self.read_link,
            self.slots,
            gate,
            recorder,
            acks=self.outbox,
            due=Waiting(member, recorder),
            rescue=self.rescuer,
            accept=self.accept,
            regroup=self.groups.again,
            stuck=self._stuck,
            native=capabilities.claim,
        )
        self.completion: Completion | None = None
        if job.settings.once_ms is not None:
            self.completion = Completion(member, self.out_link, passed=self._looked_up)
        self._warned_lease = 0
        self._residence_s = 1.0

    # ── what Delivery asks of its lane (message.Ways) ──

    @property
    def stream(self) -> str:
        return self.member.stream

    @property
    def group(self) -> str:
        return self.member.group

    @property
    def owner(self) -> str:
        return self.member.owner

    @property
    def prefix(self) -> str:
        return self.member.prefix

    async def end(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        """A handler ends its delivery itself and waits for the answer."""
        if delivery.is_lost:
            if delivery.state < State.ENDED:
                self._recorder.count("refused_total", 1, outcome=outcome.way.value, **self.member.labels)
                delivery.answered()
            raise delivery.refusal()
        if delivery.state >= State.ENDING:
            raise DeliveryLost(
                f"{delivery!r} has already ended: a delivery ends once, and its outcome is not replaced",
                stream=delivery.stream,
                group=delivery.group,
                id=delivery.id,
            )
        answer = delivery.waiter()
        self.outbox.put(delivery, outcome)
        await asyncio.shield(answer)

    # ── what the reader hands over ──

    def accept(self, entries: Sequence[Any], origin: Origin) -> None:
        """Decide what becomes of each entry that was taken, and wake the runners."""
        if not entries:
            return
        now = time.monotonic()
        held, take = self.slots.held, self.slots.take
        for entry in entries:
            raw_id, fields, attempt, idle_ms = entry[0], entry[1], entry[2], entry[3]
            if attempt == 1 and raw_id not in held and origin is Origin.NEW:
                take(Delivery(self, raw_id, fields, 1, 0, now))
            else:
                self._accept_odd(entry, Delivery(self, raw_id, fields, attempt, idle_ms, now), origin)
        counter = Origin.DUE.value if origin is Origin.ALONE else origin.value
        self._recorder.count(counter, len(entries), **self.member.labels)
        if self.completion is not None:
            self._look_up(self.completion)
        if self.reader.stopping:
            self.release_queued()
        self.runners.wake()

    def _accept_odd(self, entry: Any, delivery: Delivery[Any], origin: Origin) -> None:
        """Everything that is not a new message read for the first time."""
        max_attempts = self.job.settings.max_attempts
        if self._is_mine(delivery):
            return
        rescued = origin is Origin.RESCUED or (origin is Origin.NEW and delivery.attempt > 1)
        if rescued:
            self._count_rescue(delivery)
        if len(entry) > 4 and origin in (Origin.DUE, Origin.ALONE):
            delivery.level = _level(entry[4])
        delivery.alone = origin is Origin.ALONE
        self.slots.take(delivery)
        if delivery.attempt > max_attempts:
            self.slots.queue.remove(delivery)
            self._exhausted(delivery)
        elif rescued and delivery.attempt == max_attempts and max_attempts > 1:
            self.slots.queue.remove(delivery)
            delivery.alone = True
            wait_ms = crash_delay_ms(delivery.attempt - 1, max_attempts)
            self.outbox.put(delivery, Outcome(Way.RELEASE, after_ms=wait_ms))

    def _is_mine(self, delivery: Delivery[Any]) -> bool:
        """The same id is in this process already: take the new count, or hand it back while the old handler runs."""
        running = self.slots.held.get(delivery.raw_id)
        if running is not None:
            running.retake(delivery.attempt, time.monotonic())
            return True
        if delivery.raw_id in self.slots.zombies:
            delivery.state = State.READ
            self.slots.held[delivery.raw_id] = delivery
            self.outbox.put(delivery, Outcome(Way.RELEASE))
            return True
        return False

    def _count_rescue(self, delivery: Delivery[Any]) -> None:
        late_ms = max(0, delivery.idle_ms - self.job.settings.lease_ms)
        self._recorder.count("recovery_scan_requeued_total", 1, **self.member.labels)
        self._recorder.observe("rescue_latency_seconds", late_ms / 1000, **self.member.labels)
        log.info(
            "message.rescued stream=%s group=%s id=%s attempt=%d idle_ms=%d",
            *(self.stream, self.group, delivery.id, delivery.attempt, delivery.idle_ms),
        )

    def _exhausted(self, delivery: Delivery[Any]) -> None:
        starts = delivery.attempt - 1
        reason = f"its owner died or hung during attempt {starts} of {self.job.settings.max_attempts}"
        self.outbox.put(delivery, Outcome(Way.BURY, reason=reason, error="Exhausted", starts=starts))

    def _look_up(self, completion: Completion) -> None:
        """Nothing starts before its key was looked up."""
        while self.slots.queue:
            completion.ask(self.slots.queue.popleft())

    # ── reading ahead (ADR 7) ──

    def _handled_in(self, seconds: float) -> None:
        """How long one of the deliveries just acknowledged was held: quick handlers earn a little reading ahead."""
        self._residence_s += (seconds - self._residence_s) / 8
        # Handlers that never wait keep one or two runners busy: what they could gain is lost in smaller batches.
        waits = 2 * self.runners.busy >= self.job.concurrency
        quick = self._residence_s < QUICK_S and waits and self.job.batch is None
        self.slots.ahead = min(self.slots.limit // AHEAD_SHARE, AHEAD_MOST) if quick else 0

    def _stuck(self) -> None:
        """What was read ahead did not start soon: handlers have become slow. Others may have it."""
        self.slots.ahead = 0
        self._residence_s = 1.0
        while len(self.slots.held) > self.slots.limit and self.slots.queue:
            self.outbox.put(self.slots.queue.pop(), Outcome(Way.RELEASE, after_ms=0))

    # ── completion markers (SPEC 34) ──

    def _looked_up(self, delivery: Delivery[Any], done: bool) -> None:
        """The answer of the completion markers: run it, or end it here as a duplicate."""
        if self.slots.held.get(delivery.raw_id) is not delivery or delivery.state is not State.READ:
            return
        if done:
            self.outbox.ack(delivery)
        else:
            self.slots.queue.append(delivery)
            self.runners.wake()

    # ── the owner ──

    def join_call(self) -> Call[replies.Joined]:
        """Enter the owner into its group: who holds what, and which leases there are, can be looked up by anybody."""
        member = self.member
        info = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        return scripts.join(
            member.keys,
            member.group,
            member.owner,
            member.token,
            member.settings.lease_ms,
            info,
            member.fixed,
        )

    # ── what the lifeline tells, on the loop ──

    def strand(self, failed: Any) -> Strand:
        return Strand(
            member=self.member,
            slots=self.slots,
            code=getattr(self.job.function, "__code__", None),
            name=self.job.name,
            lost=self.lost,
            lease=self.heard_lease,
            failed=failed,
            join=self.join_call(),
        )

    def lost(self, delivery: Delivery[Any], word: Word) -> None:
        """A renewal was refused: somebody else has it, or it is gone."""
        if word.kind == "taken" and word.holder == self.owner:
            delivery.retake(word.count, time.monotonic())
            return
        if not self.slots.lose(delivery):
            return
        if word.kind == "trimmed":
            self._recorder.count("trimmed_total", 1, **self.member.labels)
            log.error("message.trimmed stream=%s group=%s id=%s", self.stream, self.group, delivery.id)
        else:
            self._recorder.count("lost_total", 1, **self.member.labels)
            log.warning(
                "delivery.lost stream=%s group=%s id=%s attempt=%d holder=%s",
                *(self.stream, self.group, delivery.id, delivery.attempt, word.holder or "-"),
            )
        self._freed()

    def heard_lease(self, lease_ms: int) -> None:
        """The group's longest lease: rescue goes by it (SPEC 7b)."""
        own_ms = self.job.settings.lease_ms
        self.rescuer.lease_ms = max(lease_ms, own_ms)
        if lease_ms > own_ms and lease_ms != self._warned_lease:
            self._warned_lease = lease_ms
            log.warning(
                "lease.differs stream=%s group=%s: mine is %d ms, another worker's %d ms; rescue takes the longer",
                *(self.stream, self.group, own_ms, lease_ms),
            )

    # ── the end ──

    def release_queued(self) -> None:
        """Hand back what was read and not started: at once, attempt not burnt."""
        if self.completion is not None:
            self.slots.queue.extend(self.completion.forget())
        while self.slots.queue:
            delivery = self.slots.queue.popleft()
            if delivery.state is State.READ:
                self.outbox.put(delivery, Outcome(Way.RELEASE, after_ms=0))

    def client_ids(self) -> list[int]:
        return [link.client_id for link in (self.read_link, self.out_link) if link.client_id]

    async def close(self) -> None:
        self.executor.close()
        await self.read_link.close()
        await self.out_link.close()

    def _freed(self) -> None:
        self.reader.freed()
        self.gate.nudge()


def _delete_mode(job: Job, capabilities: Capabilities) -> scripts.Delete:
    if not job.settings.delete_on_ack:
        return "no"
    return "acked" if capabilities.ackdel else "sole"


def _level(mark: str) -> int:
    """How often in a row a handler has released this delivery: told by the mark it waited under."""
    word, _, level = mark.partition("-")
    return int(level) if word == "released" and level.isdigit() else 0
