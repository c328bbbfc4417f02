"""The four ways out of a handler that recovers by requeue (SPEC 46, ADR 13).

ack       the same fenced script as everywhere; the lock is removed once the server has said that it happened
retry     stays pending, out of our hands, and its lock is left to run out after the backoff (leave.lua)
release   handed back at once: a copy that costs no retry, appended and acked in one step; with a wait as retry
bury      appended to the dead letters and acked in one step, without the fields that requeue added
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.member import Member
from headrace.message import Delivery, Outcome, Way
from headrace.redis import requeue
from headrace.redis.calls import Call, Word
from headrace.redis.endings import Endings

RELEASE_MS = 1_000  # how long a delivery waits that its handler released without saying how long


class RequeueEndings(Endings):
    def __init__(
        self,
        member: Member,
        rules: requeue.Rules,
        *,
        unlock: Callable[[Sequence[bytes]], None],
        expect: Callable[[bytes, int], None],
    ) -> None:
        super().__init__(member, delete=rules.delete)
        self.rules = rules
        self._unlock = unlock
        self._expect = expect  # told (id, ms): what was left pending, and when its lock will be gone

    def acks(self, batch: Sequence[Delivery[Any]]) -> Call[list[Word]]:
        return self._unlocking(super().acks(batch), batch)

    def call(self, delivery: Delivery[Any], outcome: Outcome) -> Call[Any]:
        settings = self._member.settings
        if outcome.way is Way.ACK:
            return self._unlocking(super().call(delivery, outcome), [delivery])
        if outcome.way is Way.RELEASE:
            return self._hand_back(delivery, outcome)
        if outcome.way is Way.RETRY and delivery.attempt < settings.max_attempts:
            wait_ms = outcome.after_ms
            if wait_ms is None:
                wait_ms = settings.backoff.delay_ms(delivery.attempt, random.random())
            return self._leave(delivery, wait_ms, counts=True)
        if not settings.dead_letters:
            return super().call(delivery, outcome)  # parked until replayed; the lock runs out by itself
        return self._own(delivery, "bury", requeue.Why(outcome.error, self._short(outcome.reason)))

    def _hand_back(self, delivery: Delivery[Any], outcome: Outcome) -> Call[Any]:
        if delivery.alone:
            return self._release(delivery, outcome)  # has to wait until it can run alone (ADR 8)
        if outcome.after_ms == 0:
            return self._own(delivery, "release", requeue.Why("Exhausted", "released with no retries left"))
        return self._leave(delivery, outcome.after_ms or RELEASE_MS, counts=False)

    def _leave(self, delivery: Delivery[Any], wait_ms: int, *, counts: bool) -> Call[Word]:
        member = self._member
        self._expect(delivery.raw_id, wait_ms)
        return requeue.leave(
            member.keys, member.group, member.owner, delivery.raw_id, delivery.count, wait_ms, counts=counts
        )

    def _own(self, delivery: Delivery[Any], way: Any, why: requeue.Why) -> Call[Word]:
        member = self._member
        return requeue.requeue_own(
            member.keys, member.group, member.owner, delivery.raw_id, delivery.count, self.rules, way, why
        )

    def _short(self, reason: str) -> str:
        limit = self._member.settings.error_bytes
        return reason.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")

    def _unlocking(self, call: Call[Any], batch: Sequence[Delivery[Any]]) -> Call[Any]:
        """The same call; when its answer says that a message is done, its lock goes. Never before: an unlocked message
        that is still pending is an orphan to everybody else."""

        def parse(reply: Any) -> Any:
            answer = call.parse(reply)
            words = answer if isinstance(answer, list) else [answer]
            done = [
                delivery.raw_id
                for delivery, word in zip(batch, words, strict=True)
                if isinstance(word, Word) and word.kind in ("ok", "duplicate")
            ]
            if done:
                self._unlock(done)
            return answer

        return replace(call, parse=parse)
