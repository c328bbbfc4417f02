"""Completion markers: a message whose key is done is acknowledged without a handler (SPEC 34).

The marker is written by the same script that acknowledges, so there is no moment in which one is there without the
other. Looking it up before the handler starts costs one command a batch; two workers that look at the same time may
both start, and then the first to finish wins and the other is counted as a duplicate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.message import Delivery
from headrace.redis import commands
from headrace.redis.link import Link

BATCH = 500
AGAIN_S = 0.1


class Completion:
    def __init__(self, member: Member, link: Link, *, passed: Callable[[Delivery[Any], bool], None]) -> None:
        self._member = member
        self._link = link
        self._passed = passed
        self._asked: list[Delivery[Any]] = []
        self._work = asyncio.Event()

    def ask(self, delivery: Delivery[Any]) -> None:
        """Find out whether it is done; ``passed(delivery, done)`` is called with the answer."""
        self._asked.append(delivery)
        self._work.set()

    def forget(self) -> list[Delivery[Any]]:
        """What was asked and not answered yet: the lane hands it back at the end."""
        left, self._asked = self._asked, []
        return left

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._asked:
                try:
                    await self._look(self._asked[:BATCH])
                except HeadraceError as error:
                    if classify(error) is Verdict.FATAL:
                        raise
                    await asyncio.sleep(AGAIN_S)

    async def _look(self, batch: list[Delivery[Any]]) -> None:
        member = self._member
        keys = [member.keys.once(member.group, delivery.once_key) for delivery in batch]
        values = await self._link.call(commands.values(keys))
        del self._asked[: len(batch)]
        for delivery, value in zip(batch, values, strict=True):
            self._passed(delivery, value is not None)
