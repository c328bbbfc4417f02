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
from collections.abc import Coroutine, Mapping
from secrets import token_hex
from typing import Any

from headrace.engines import engine_for
from headrace.executor import Executor
from headrace.gate import Gate
from headrace.groups import Groups
from headrace.intake import Intake
from headrace.janitor import Janitor
from headrace.job import Job
from headrace.lifeline import Strand
from headrace.marks import Marks
from headrace.member import Member
from headrace.message import Delivery, Outcome, State
from headrace.outbox import Outbox
from headrace.reader import Reader
from headrace.recorder import Recorder
from headrace.recovery import Requeue
from headrace.redis import capabilities, replies, scripts
from headrace.redis.calls import Call, Word
from headrace.redis.capabilities import Capabilities
from headrace.redis.connect import Server
from headrace.runners import Runners
from headrace.slots import Slots
from headrace.waiting import Waiting

log = logging.getLogger("headrace")


class Lane:
    def __init__(
        self,
        job: Job,
        member: Member,
        server: Server,
        can: Capabilities,
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
        # A name that no other connection has: after a cut answer it tells the old one from whoever has its number now.
        self.read_link = server.link(f"headrace:{member.owner}:read:{token_hex(4)}", at=member.stream)
        self.out_link = server.link(f"headrace:{member.owner}:out", at=member.stream)
        self.engine = engine_for(job, member, self.out_link, can, recorder, slots=self.slots, lost=self.lost)
        self.outbox = Outbox(
            member,
            self.out_link,
            self.slots,
            recorder,
            marks=marks,
            freed=self._freed,
            handled_in=self._handled_in,
            endings=self.engine.endings,
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
        self.intake = Intake(
            self, job, member, self.slots, self.runners, self.outbox, self.out_link, recorder, self.engine
        )
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
            rescue=self.engine.rescue,
            accept=self.intake.accept,
            regroup=self.groups.again,
            stuck=self.intake.stuck,
            learn=self._learn,
            native=self.engine.native,
        )
        self._warned_lease = 0

    @property
    def stream(self) -> str:
        return self.member.stream

    @property
    def group(self) -> str:
        return self.member.group

    @property
    def owner(self) -> str:
        return self.member.owner

    # ── what Delivery asks of its lane (message.Ways): its member, and this ──

    async def end(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        """A handler ends its delivery itself and waits for the answer."""
        if delivery.is_lost:
            if delivery.state < State.ENDED:
                self._recorder.count("refused_total", 1, outcome=outcome.way.value, **self.member.labels)
                delivery.answered()
            raise delivery.refusal()
        delivery.check_open()
        answer = delivery.waiter()
        self.outbox.put(delivery, outcome)
        await asyncio.shield(answer)

    # ── the owner ──

    def join_call(self) -> Call[replies.Joined]:
        """Enter the owner into its group: who holds what, and which leases there are, can be looked up by anybody."""
        member = self.member
        about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
        if isinstance(member.settings.recovery, Requeue):
            about["recovery"] = "requeue"
        info = json.dumps(about)
        return scripts.join(
            member.keys,
            member.group,
            member.owner,
            member.token,
            member.settings.lease_ms,
            info,
            member.fixed,
        )

    async def _learn(self) -> bool:
        """Another server may answer now: ask again what it can do. Answers whether the read itself takes over."""
        can = capabilities.judge(await self.read_link.pipe(capabilities.probe(self.member.keys)))
        self.engine.learn(can)
        return self.engine.native

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
            renew=self.engine.renew,
        )

    def lost(self, delivery: Delivery[Any], word: Word) -> None:
        """A renewal was refused: somebody else has it, or it is gone."""
        if word.kind == "taken" and self.member.is_me(word.holder):
            delivery.retake(word.count, time.monotonic())
            return
        if not self.slots.lose(delivery) and not self._crossed(delivery, word):
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

    def _crossed(self, delivery: Delivery[Any], word: Word) -> bool:
        """An outcome was on its way when a renewal found the entry deleted, and so removed it: it hears "gone" although
        nobody else had the message. An ack is done then, anything else came too late (outbox). True: it has heard so
        before us and was refused; then it is lost."""
        if word.kind != "trimmed":
            return False
        delivery.resent = delivery.trimmed = True
        return delivery.is_lost and delivery.state is State.ENDED

    def heard_lease(self, lease_ms: int) -> None:
        """The group's longest lease: rescue goes by it (SPEC 7b)."""
        own_ms = self.job.settings.lease_ms
        self.engine.heard_lease(max(lease_ms, own_ms))
        if lease_ms > own_ms and lease_ms != self._warned_lease:
            self._warned_lease = lease_ms
            log.warning(
                "lease.differs stream=%s group=%s: mine is %d ms, another worker's %d ms; rescue takes the longer",
                *(self.stream, self.group, own_ms, lease_ms),
            )

    # ── the end ──

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run for this lane, beside its handlers: the reader last, so that everything is ready for it."""
        return [
            self.outbox.run(),
            self.janitor.run(),
            *(step.run() for step in self.intake.steps),
            *self.engine.loops(),
        ]

    def stop_taking(self) -> None:
        """Nothing is read or started any more; what was read and not started goes back."""
        self.reader.stop()
        self.runners.close()
        self.intake.closed = True
        self.intake.release_queued()

    def client_ids(self) -> list[int]:
        return [link.client_id for link in (self.read_link, self.out_link) if link.client_id]

    async def close(self) -> None:
        self.executor.close()
        await self.engine.close()
        await self.read_link.close()
        await self.out_link.close()

    def _handled_in(self, seconds: float) -> None:
        self.intake.handled_in(seconds)

    def _freed(self) -> None:
        self.reader.freed()
        self.gate.nudge()
