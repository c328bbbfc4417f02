"""The announcer: keeps the partitions of an ordered handler announced, so that each of them finds an owner (SPEC 51).

Rooms are announced by whoever has them; partitions by nobody but the workers that own them. So every worker announces
all of them at its start, once more now and then, and at once when the group had to be made again: a failover may have
lost the announcements, and somebody may have deleted their stream. What is announced already is not announced twice
(announce.lua), so that costs a read for each partition and round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence

from headrace.assignment import write_info
from headrace.errors import HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.policy import reconnect_delay_ms, spread
from headrace.redis import ownership
from headrace.redis.link import Link

log = logging.getLogger("headrace")

ROUND_MS = 5_000  # how often they are announced again
BATCH = 200  # announcements in one write: nobody waits behind more


class Announcer:
    def __init__(self, member: Member, names: Sequence[str], link: Link) -> None:
        self._member = member
        self._names = names
        self._link = link
        self._tries = 0  # refused in a row
        self._again = asyncio.Event()

    def hurry(self) -> None:
        """The announcements may be gone: do not wait for the next round."""
        self._again.set()

    async def open(self) -> None:
        """Announce them all. Raises what nobody can help, and that the server is away; one that is there and cannot
        take them now (it is full) keeps nobody from starting: :meth:`run` tries again."""
        await self._announced()

    async def run(self) -> None:
        """Keep them announced until cancelled. Raises only what nobody can help."""
        while True:
            await self._pause()
            try:
                if new := await self._announced():
                    log.warning("partitions.announced stream=%s: %d of them again", self._member.stream, new)
            except HeadraceError as error:
                self._refused(error)

    async def _announced(self) -> int:
        """One round. Answers how many of them were new."""
        new = 0
        for at in range(0, len(self._names), BATCH):
            names = self._names[at : at + BATCH]
            calls = [ownership.announce(self._member.keys, name, write_info(None)) for name in names]
            for answer in await self._link.pipe(calls):
                if isinstance(answer, HeadraceError):
                    self._refused(answer)
                    return new
                new += answer.new
        self._tries = 0
        return new

    def _refused(self, error: HeadraceError) -> None:
        if classify(error) is not Verdict.RETRY:
            raise error
        if self._tries in (0, 5) or self._tries % 20 == 0:
            log.warning("announcer.waits stream=%s tries=%d: %s", self._member.stream, self._tries + 1, error)
        self._tries += 1

    async def _pause(self) -> None:
        wait_ms = spread(ROUND_MS, random.random())
        if self._tries:
            delay_ms = reconnect_delay_ms(self._tries, random.random(), may_move=self._link.may_move)
            wait_ms = min(wait_ms, delay_ms)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._again.wait()
        self._again.clear()
