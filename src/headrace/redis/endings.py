"""From an outcome to the call that makes it so: the four ways out, as scripts.

Pure but for the clock and the dice: what is sent follows from the delivery, the outcome and the handler's settings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from headrace.member import Member
from headrace.message import Delivery, Outcome, Way
from headrace.policy import release_delay_ms
from headrace.redis import scripts
from headrace.redis.calls import Call, Word

ERROR_NAME_LIMIT = 200  # characters of an exception's type that a dead letter keeps


class Endings:
    def __init__(self, member: Member, *, delete: scripts.Delete = "no") -> None:
        self._member = member
        self.delete = delete

    def acks(self, batch: Sequence[Delivery[Any]]) -> Call[list[Word]]:
        """Plain acks, many in one call."""
        member = self._member
        if member.settings.once_ms is None:
            pairs = [(delivery.raw_id, delivery.count) for delivery in batch]
            return scripts.ack(member.keys, member.group, member.owner, pairs, delete=self.delete)
        finished = [(delivery.raw_id, delivery.count, delivery.once_key, b"") for delivery in batch]
        return self._done(finished, member.settings.once_ms)

    def call(self, delivery: Delivery[Any], outcome: Outcome) -> Call[Any]:
        """Any other outcome. A retry of the last attempt is a burial; without dead letters a burial is a parking."""
        if outcome.way is Way.ACK:
            return self._effects(delivery, outcome)
        if outcome.way is Way.RELEASE:
            return self._release(delivery, outcome)
        settings = self._member.settings
        if outcome.way is Way.RETRY and delivery.attempt < settings.max_attempts:
            wait = outcome.after_ms
            if wait is None:
                wait = settings.backoff.delay_ms(delivery.attempt, random.random())
            return self._park(delivery, wait, "waiting", delivery.starts)
        if not settings.dead_letters:
            return self._park(delivery, -1, "parked", delivery.starts)
        return self._bury(delivery, outcome)

    def _park(
        self, delivery: Delivery[Any], wait_ms: int, mark: str, keep: int, *, alone: bool = False
    ) -> Call[list[Word]]:
        member = self._member
        triple = (delivery.raw_id, delivery.count, keep)
        return scripts.park(member.keys, member.group, member.owner, wait_ms, mark, [triple], alone=alone)

    def _release(self, delivery: Delivery[Any], outcome: Outcome) -> Call[list[Word]]:
        """Back untouched: the count goes down again. A handler's own releases wait longer each time."""
        keep = delivery.starts - 1
        if delivery.alone:
            return self._park(delivery, outcome.after_ms or 0, "crashed", keep, alone=True)
        if outcome.after_ms is not None:
            return self._park(delivery, outcome.after_ms, "waiting", keep)
        level = delivery.level + 1
        return self._park(delivery, release_delay_ms(level), f"released-{level}", keep)

    def _bury(self, delivery: Delivery[Any], outcome: Outcome) -> Call[Word]:
        member = self._member
        now_ms = int(time.time() * 1000)
        settings = member.settings
        extra = {
            "original_id": delivery.id,
            "stream": member.stream,
            "group": member.group,
            "owner": member.owner,
            "attempts": str(delivery.attempt if outcome.starts is None else outcome.starts),
            "first_ms": delivery.id.partition("-")[0],
            "last_ms": str(now_ms),
            "error": outcome.error[:ERROR_NAME_LIMIT],
            "reason": outcome.reason.encode("utf-8", "replace")[: settings.error_bytes].decode("utf-8", "ignore"),
        }
        return scripts.bury(
            member.keys,
            member.group,
            member.owner,
            delivery.raw_id,
            delivery.count,
            extra={settings.prefix + name: value for name, value in extra.items()},
            maxlen=settings.dead_letters_maxlen,
            prefix=settings.prefix,
        )

    def _effects(self, delivery: Delivery[Any], outcome: Outcome) -> Call[Any]:
        """An ack that carries something: a result for the completion marker, effects, or both."""
        member, once_ms = self._member, self._member.settings.once_ms
        if not outcome.effects and once_ms is not None:
            return self._done([(delivery.raw_id, delivery.count, delivery.once_key, outcome.result)], once_ms)
        once = None if once_ms is None else (delivery.once_key, outcome.result, once_ms)
        return scripts.effects(
            member.keys,
            member.group,
            member.owner,
            delivery.raw_id,
            delivery.count,
            outcome.effects,
            once=once,
            delete=self.delete,
        )

    def _done(self, finished: Sequence[tuple[bytes, int, str, bytes]], once_ms: int) -> Call[list[Word]]:
        member = self._member
        return scripts.done(member.keys, member.group, member.owner, finished, once_ms, delete=self.delete)
