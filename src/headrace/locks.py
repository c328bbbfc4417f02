"""The locks of a handler that recovers by requeue: taken before a handler starts, removed after its outcome (SPEC 46).

A delivery waits here until its lock is there: the handler of an unlocked message would run beside the copy that a
sibling makes of it. While the server cannot be reached nothing starts. What stays open is the time between the read
and the lock; a scan leaves what was delivered less than ``min_idle`` ago alone, so it has to be longer than that.

The lifeline keeps the locks alive. Removing one is a courtesy: a lock that is left behind runs out by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace import points
from headrace.errors import HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.message import Delivery, State
from headrace.redis import commands, requeue
from headrace.redis.calls import Word
from headrace.redis.link import Link

BATCH = 200
AGAIN_S = 0.1


class Locks:
    def __init__(
        self,
        member: Member,
        link: Link,
        *,
        passed: Callable[[Delivery[Any]], None],
        lost: Callable[[Delivery[Any], Word], None],
    ) -> None:
        self._member = member
        self._link = link
        self._passed = passed
        self._lost = lost
        self._asked: list[Delivery[Any]] = []
        self._done: list[bytes] = []
        self._work = asyncio.Event()

    def ask(self, delivery: Delivery[Any]) -> None:
        """Lock it; ``passed(delivery)`` is called when its handler may start."""
        self._asked.append(delivery)
        self._work.set()

    def forget(self) -> list[Delivery[Any]]:
        """What is not locked yet: the lane hands it back at the end."""
        left, self._asked = self._asked, []
        return left

    def unlock(self, ids: Sequence[bytes]) -> None:
        """These are done."""
        self._done.extend(ids)
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self.flush()
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                await asyncio.sleep(AGAIN_S)
                self._work.set()

    async def flush(self) -> None:
        """Take and remove everything there is, once."""
        while self._asked:
            await self._take(self._asked[:BATCH])
        while self._done:
            done, self._done = self._done[:BATCH], self._done[BATCH:]
            points.reached("locks.removing")
            await self._link.call(commands.remove([self._member.keys.lock(id_.decode()) for id_ in done]))

    async def _take(self, batch: list[Delivery[Any]]) -> None:
        member, begun = self._member, time.monotonic()
        pairs = [(delivery.raw_id, delivery.count) for delivery in batch]
        words = await self._link.call(
            requeue.hold(member.keys, member.group, member.owner, member.settings.lease_ms, pairs)
        )
        points.reached("locks.taken")
        taken = set(map(id, batch))
        self._asked = [delivery for delivery in self._asked if id(delivery) not in taken]
        for delivery, word in zip(batch, words, strict=True):
            if delivery.state is State.READ:  # else it was handed back meanwhile
                self._heard(delivery, word, begun)

    def _heard(self, delivery: Delivery[Any], word: Word, begun: float) -> None:
        if word.kind == "ok":
            delivery.renewed_at = begun
            self._passed(delivery)
        elif word.kind == "taken" and word.holder == self._member.owner:
            delivery.retake(word.count, begun)  # handed to me once more: lock it under its new count
            self.ask(delivery)
        else:
            self._lost(delivery, word)
