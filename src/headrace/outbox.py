"""Outcomes on their way to the server. One loop: gather, send, settle, send again what got no answer.

Acknowledgements are gathered: while the reader is busy it takes them along in front of its next read (one write, one
round trip, and the server frees the slots before it fills them); while it is blocked waiting for messages this loop
sends them over its own link. All other outcomes always go this way, many in one write.

An outcome that got no answer is sent again until it has one. That is safe: the first one that arrived ended the
delivery, and the repeated one is answered "gone" (SPEC 23). The delivery stays in the slots meanwhile, so the lifeline
keeps renewing it. What this does not give: an outcome whose answer was lost, and which could not be repeated before its
lease ran out, is refused although it may have happened; another owner may have ended the message as well.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace import points
from headrace.errors import CommandRefused, EffectRefused, HeadraceError, MissingRight, Verdict, classify
from headrace.marks import Marks
from headrace.member import Member
from headrace.message import ACK, Delivery, Outcome, State, Way
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis.calls import Call, Word
from headrace.redis.endings import Endings
from headrace.redis.link import Link
from headrace.slots import Slots

log = logging.getLogger("headrace")

PIPE_LIMIT = 200  # outcomes other than plain acks in one write
LEARNING = 5  # tries until the reader must have learnt what a new server can do
ACK_LIMIT = 500  # pairs in one ack script: keeps the script under a few milliseconds


class Outbox:
    def __init__(
        self,
        member: Member,
        link: Link,
        slots: Slots,
        recorder: Recorder,
        *,
        marks: Marks,
        freed: Callable[[], None],
        handled_in: Callable[[float], None],
        endings: Endings,
    ) -> None:
        self._member = member
        self._link = link
        self._slots = slots
        self._recorder = recorder
        self._marks = marks
        self._freed = freed
        self._handled_in = handled_in
        self._endings = endings
        self._acks: list[Delivery[Any]] = []
        self._others: list[tuple[Delivery[Any], Outcome]] = []
        self._work = asyncio.Event()
        self._carried = False

    # ── what handlers and runners call ──

    def ack(self, delivery: Delivery[Any]) -> None:
        """The hot path: a handler returned."""
        delivery.state = State.ENDING
        self._acks.append(delivery)
        if len(self._acks) > 1:
            return  # whoever takes the first one along takes this one too
        if self._carried:
            self._freed()
        else:
            self._work.set()

    def put(self, delivery: Delivery[Any], outcome: Outcome) -> None:
        """Choose the outcome of a delivery. From here on it cannot be replaced by another."""
        assert delivery.state < State.ENDING, delivery
        plain = outcome.way is Way.ACK and not outcome.effects and not outcome.result
        if plain:
            self.ack(delivery)
            return
        delivery.state = State.ENDING
        self._others.append((delivery, outcome))
        self._work.set()

    # ── what the reader calls ──

    @property
    def has_acks(self) -> bool:
        return bool(self._acks)

    def carried(self, by_reader: bool) -> None:
        """Say who takes the acks: the reader with its next read, or this loop."""
        self._carried = by_reader
        if not by_reader and self._acks:
            self._work.set()

    def take_acks(self) -> tuple[list[Delivery[Any]], Call[list[Word]] | None]:
        """What is to be acknowledged now, and the call that does it."""
        batch = self._acks[:ACK_LIMIT]
        if not batch:
            return batch, None
        self._acks = self._acks[ACK_LIMIT:]
        return batch, self._endings.acks(batch)

    def put_back(self, batch: Sequence[Delivery[Any]]) -> None:
        """No answer: the acks may or may not have happened. They go again, in front."""
        for delivery in batch:
            delivery.resent = True
        self._acks = [*batch, *self._acks]
        if not self._carried:
            self._work.set()

    def settle_acks(self, batch: Sequence[Delivery[Any]], words: Sequence[Word]) -> None:
        """The server's answers to a batch of acks."""
        done = 0
        for delivery, word in zip(batch, words, strict=True):
            if word.kind == "ok":
                done += 1
                self._end(delivery)
            else:
                self._settle(delivery, ACK, word)
        if done:
            self._handled_in(time.monotonic() - batch[0].read_at)
            self._recorder.count("handled_total", done, outcome="ack", **self._member.labels)
            self._recorder.count("acked_total", done, **self._member.labels)
        self._freed()

    # ── the loop ──

    async def run(self) -> None:
        """Send until cancelled. Raises only what nobody can help (a missing right, a wrong type)."""
        tries, epoch = 0, 0
        while True:
            await self._work.wait()
            self._work.clear()
            await asyncio.sleep(0)  # whatever else finishes in this turn of the loop goes along
            try:
                await self.flush()
                tries, epoch = 0, self._link.epoch
            except HeadraceError as error:
                # A server that took over may lack a command or a right: the reader learns it, and another way is gone.
                other = isinstance(error, (CommandRefused, MissingRight)) and self._link.epoch != epoch
                if classify(error) is Verdict.FATAL and not (other and tries < LEARNING):
                    raise
                if tries == 0:
                    log.warning("outcome.delayed stream=%s: %s", self._member.stream, error)
                await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=self._link.may_move) / 1000)
                tries += 1
                self._work.set()

    async def flush(self) -> None:
        """Send everything there is, once. What gets no answer is put back and the error raised."""
        points.reached("outbox.sending")
        while self._others:
            await self._send_others()
        while self._acks and not self._carried:
            batch, call = self.take_acks()
            assert call is not None
            try:
                words = await self._link.call(call)
            except BaseException:
                self.put_back(batch)
                raise
            points.reached("outbox.answered")
            self.settle_acks(batch, words)

    async def _send_others(self) -> None:
        batch, self._others = self._others[:PIPE_LIMIT], self._others[PIPE_LIMIT:]
        calls = [self._endings.call(delivery, outcome) for delivery, outcome in batch]
        try:
            answers = await self._link.pipe(calls)
        except BaseException:
            self._again(batch)
            raise
        points.reached("outbox.ended")
        failed: HeadraceError | None = None
        for (delivery, outcome), answer in zip(batch, answers, strict=True):
            if isinstance(answer, EffectRefused):
                self._effect_refused(delivery, answer)
            elif isinstance(answer, HeadraceError):
                failed = answer
                self._again([(delivery, outcome)])
            else:
                self._settle(delivery, outcome, answer)
        self._freed()
        if failed is not None:
            raise failed

    def _again(self, batch: Sequence[tuple[Delivery[Any], Outcome]]) -> None:
        for delivery, _ in batch:
            delivery.resent = True
        self._others = [*batch, *self._others]

    # ── answer to state ──

    def _settle(self, delivery: Delivery[Any], outcome: Outcome, answer: Word | Sequence[Word]) -> None:
        word = answer if isinstance(answer, Word) else answer[0]
        mine = word.kind == "taken" and self._member.is_me(word.holder)
        if mine and self._slots.held.get(delivery.raw_id) is delivery:
            # I claimed my own running entry: the fence has a new count, the outcome stays what it is (DESIGN 4b).
            delivery.retake(word.count, time.monotonic())
            self._again([(delivery, outcome)])
            self._work.set()
        elif word.kind == "gone" and delivery.trimmed and (outcome.way is not Way.ACK or outcome.effects):
            # It found nothing to send to wait or to bury, and effects were not written: the renewal came before it.
            self._count(delivery, outcome, Word("trimmed"))
            self._end(delivery, delivery.refusal() if outcome.effects else None)
        elif (word.kind == "taken" and not mine) or (word.kind == "gone" and not self._has_happened(delivery)):
            self._refused(delivery, outcome, word)
        else:
            self._count(delivery, outcome, word)
            self._end(delivery)

    def _has_happened(self, delivery: Delivery[Any]) -> bool:
        """Whether "gone" can only mean that this outcome, sent before, has arrived. Within a lease after a renewal
        nobody else can have ended the delivery; later somebody may, and then it is no longer ours to call it done."""
        held_s = time.monotonic() - delivery.renewed_at
        return delivery.resent and held_s * 1000 < self._member.settings.lease_ms

    def _refused(self, delivery: Delivery[Any], outcome: Outcome, word: Word) -> None:
        labels = self._member.labels
        self._recorder.count("refused_total", 1, outcome=outcome.way.value, **labels)
        if outcome.way is Way.ACK:
            self._recorder.count("recovery_duplicate_ack_total", 1, **labels)
        log.warning(
            "outcome.refused stream=%s group=%s id=%s attempt=%d outcome=%s holder=%s",
            *(
                labels["stream"],
                labels["group"],
                delivery.id,
                delivery.attempt,
                outcome.way.value,
                word.holder or "-",
            ),
        )
        delivery.lose()
        self._end(delivery, delivery.refusal(word.holder))

    def _count(self, delivery: Delivery[Any], outcome: Outcome, word: Word) -> None:
        """Count and log one outcome that is not a plain ack."""
        labels = self._member.labels
        if word.kind == "trimmed":
            self._recorder.count("trimmed_total", 1, **labels)
            log.error(
                "message.trimmed stream=%s group=%s id=%s",
                self._member.stream,
                self._member.group,
                delivery.id,
            )
            return
        if word.kind == "duplicate":
            self._recorder.count("duplicate_total", 1, **labels)
            return
        if word.kind == "gone":  # sent again, and the first one had arrived
            self._recorder.count("recovery_duplicate_ack_total", 1, **labels)
        ended = self._ended(delivery, outcome)
        way = Way.BURY if ended in ("buried_total", "parked_total") else outcome.way
        self._recorder.count("handled_total", 1, outcome=way.value, **labels)
        self._recorder.count(ended, 1, **labels)
        if ended == "buried_total":
            if outcome.starts is not None:
                self._recorder.count("recovery_dlq_total", 1, **labels)
            log.warning(
                "message.buried stream=%s group=%s id=%s attempts=%d reason=%r",
                *(self._member.stream, self._member.group, delivery.id, delivery.attempt, outcome.reason[:200]),
            )

    def _ended(self, delivery: Delivery[Any], outcome: Outcome) -> str:
        """The counter of how it really ended: a retry of the last attempt is a burial."""
        if outcome.way is Way.ACK:
            return "acked_total"
        if outcome.way is Way.RELEASE:
            return "released_total"
        if outcome.way is Way.RETRY and delivery.attempt < self._member.settings.max_attempts:
            return "retried_total"
        return "buried_total" if self._member.settings.dead_letters else "parked_total"

    def _effect_refused(self, delivery: Delivery[Any], error: EffectRefused) -> None:
        """Nothing was written: the handler hears it and may choose again, so the delivery is started once more."""
        delivery.state = State.STARTED
        delivery.tell(error)
        delivery.forget_waiter()

    def _end(self, delivery: Delivery[Any], error: HeadraceError | None = None) -> None:
        self._slots.drop(delivery)
        if delivery.mark_slot >= 0:
            self._marks.ended(delivery)
        delivery.answered(error)
