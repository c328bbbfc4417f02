"""One delivery through its steps: admit, perform, conclude.

    admit      is it for this group, was it done before, can it be decoded?   else it ends here, without a handler
    perform    call the handler: on the loop, or in a thread for a plain def
    conclude   return, Retry, Release, Bury, any exception  ->  one outcome, handed to the outbox

A handler never learns of the server here, and the executor never talks to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.codec import decode_fields
from headrace.errors import Bury, DeliveryLost, Ending, HeadraceError, Release, Retry
from headrace.job import Job
from headrace.marks import Marks
from headrace.member import Member
from headrace.message import Delivery, Outcome, State, SyncDelivery, Way, optional_ms
from headrace.recorder import NoRecorder, Recorder
from headrace.redis.letters import open_copy
from headrace.slots import Slots
from headrace.threads import Threads

log = logging.getLogger("headrace")

Put = Callable[[Delivery[Any], Outcome], None]


class Executor:
    def __init__(
        self,
        job: Job,
        member: Member,
        slots: Slots,
        recorder: Recorder,
        *,
        marks: Marks,
        ack: Callable[[Delivery[Any]], None],
        put: Put,
        provided: Mapping[type, Any],
    ) -> None:
        self._job = job
        self._member = member
        self._slots = slots
        self._recorder = recorder
        self._marks = marks
        self._ack = ack
        self._put = put
        self._call = job.bind(provided)
        self._decode = decode_fields(job.codec, member.prefix)
        self._only = f"{member.prefix}only".encode()
        self._group = member.group.encode()
        self._timeout_s = None if job.settings.timeout_ms is None else job.settings.timeout_ms / 1000
        self._measured = not isinstance(recorder, NoRecorder)
        self._threads: Threads | None = None
        if not job.is_async:
            self._threads = Threads(job.concurrency, f"headrace-{job.group}")
        self._direct = job.is_async and self._timeout_s is None
        self.stopping = False  # set by the lane at the end of grace: a cancelled handler is released, not retried

    def close(self) -> None:
        """Forget the threads. Those that still run a handler end with it."""
        if self._threads is not None:
            self._threads.close()

    # ── the pipe ──

    async def run(self, delivery: Delivery[Any]) -> None:
        """Lead one delivery from read to an outcome. Raises nothing but a bug of ours."""
        if not self._admit(delivery):
            return
        delivery.state = State.STARTED
        self._marks.started(delivery)
        begun = self._begin(delivery) if self._measured else 0.0
        try:
            if self._direct:
                await self._call(delivery.payload, delivery)
            else:
                await self._perform(delivery.payload, delivery)
        except BaseException as error:
            self._conclude(delivery, error)
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise  # SystemExit, KeyboardInterrupt: the process wants to end, the outcome is chosen
        else:
            if delivery.state is State.STARTED and delivery.fate is None:
                self._ack(delivery)
            else:
                self._conclude(delivery, None)
        if self._measured:
            self._recorder.observe("handle_seconds", time.perf_counter() - begun, **self._member.labels)

    async def run_batch(self, batch: list[Delivery[Any]]) -> None:
        """The same for a batch handler: one call, one outcome for all that the handler did not end itself."""
        admitted = [delivery for delivery in batch if self._admit(delivery)]
        for delivery in admitted:
            delivery.state = State.STARTED
            self._marks.started(delivery)
        if not admitted:
            return
        failure: BaseException | None = None
        try:
            await self._perform(admitted, None)
        except BaseException as error:  # noqa: BLE001 - concluded for each delivery, raised again below
            failure = error
        for delivery in admitted:
            self._conclude(delivery, failure)
        if failure is not None and not isinstance(failure, (Exception, asyncio.CancelledError)):
            raise failure

    def _begin(self, delivery: Delivery[Any]) -> float:
        waited_ms = time.time() * 1000 - int(delivery.raw_id.partition(b"-")[0])
        self._recorder.observe("time_in_stream_seconds", max(0.0, waited_ms / 1000), **self._member.labels)
        return time.perf_counter()

    # ── admit ──

    def _admit(self, delivery: Delivery[Any]) -> bool:
        """Whether a handler is to be started. If not, the outcome is already chosen."""
        fields = delivery.raw_fields
        if len(fields) > 3 and fields[2] == self._only:
            if fields[3] != self._group:  # a replayed copy that is meant for another group alone (SPEC 28)
                self._recorder.count("skipped_total", 1, **self._member.labels)
                self._ack(delivery)
                return False
            copy = open_copy(fields, self._member.prefix)
            if copy is not None:
                fields = copy.fields
                delivery.restore(fields)
        try:
            delivery.payload = self._decode(fields)
        except HeadraceError as error:
            self._recorder.count("undecodable_total", 1, **self._member.labels)
            self._put(delivery, Outcome(Way.BURY, reason=str(error), error=type(error).__name__))
            return False
        return True

    # ── perform ──

    async def _perform(self, payload: Any, delivery: Delivery[Any] | None) -> None:
        if self._threads is not None:
            await self._perform_in_thread(self._threads, payload, delivery)
        else:
            async with asyncio.timeout(self._timeout_s):
                await self._call(payload, delivery)

    async def _perform_in_thread(self, threads: Threads, payload: Any, delivery: Delivery[Any] | None) -> None:
        loop = asyncio.get_running_loop()
        held = None if delivery is None else SyncDelivery(delivery, loop)
        if delivery is None:
            payload = [SyncDelivery(one, loop) for one in payload]
        await threads.run(self._call, payload, held)

    # ── conclude ──

    def _conclude(self, delivery: Delivery[Any], error: BaseException | None) -> None:
        """From what the handler did to one outcome, unless it ended the delivery itself."""
        if delivery.is_lost:
            self._late(delivery)
        elif delivery.state is not State.STARTED:
            if error is not None and not isinstance(error, (Ending, DeliveryLost)):
                log.warning(
                    "handler.raised_after_outcome handler=%s id=%s",
                    self._job.name,
                    delivery.id,
                    exc_info=error,
                )
        elif error is None:
            self._ack(delivery)
        else:
            self._put(delivery, self._outcome(delivery, error))

    def _outcome(self, delivery: Delivery[Any], error: BaseException) -> Outcome:
        if isinstance(error, Bury):
            return Outcome(Way.BURY, reason=error.reason, error="Bury")
        if isinstance(error, Release):
            return Outcome(Way.RELEASE, after_ms=optional_ms(error.after))
        if isinstance(error, Retry):
            return Outcome(Way.RETRY, reason=error.reason, error="Retry", after_ms=optional_ms(error.after))
        if isinstance(error, asyncio.CancelledError) and self.stopping:
            return Outcome(Way.RELEASE, after_ms=0)
        log.warning(
            "handler.raised handler=%s id=%s attempt=%d of %d",
            *(self._job.name, delivery.id, delivery.attempt, self._job.settings.max_attempts),
            exc_info=error,
        )
        name = type(error).__name__
        return Outcome(Way.RETRY, reason=str(error) or name, error=name)

    def _late(self, delivery: Delivery[Any]) -> None:
        """A zombie's late word (SPEC 11): refused here already, because the lifeline knows that it was taken."""
        if delivery.state < State.ENDED:
            self._recorder.count("refused_total", 1, outcome="ack", **self._member.labels)
            self._recorder.count("recovery_duplicate_ack_total", 1, **self._member.labels)
            log.warning("outcome.refused stream=%s group=%s id=%s: taken over", *self._who(), delivery.id)
            self._marks.ended(delivery)
            delivery.answered(delivery.refusal())
        self._slots.finished(delivery)

    def _who(self) -> tuple[str, str]:
        return self._member.stream, self._member.group
