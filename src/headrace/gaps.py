"""The gaps: messages of owned streams that somebody trimmed or deleted before their owner had read them.

A read goes on behind a gap as if nothing had been there. So the messages read are compared with those ever added, which
servers count from 7.0 on: at each takeover (take.lua), and every few seconds for the rooms that have read something
since (trimmed.lua). Both count for good, so a gap that is found late is found whole, and none is counted twice.

A read may be on its way whose messages were trimmed behind it: they are counted here only when its answer has come. So
what seems to be gone is noted when the next look, a round later, says so too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import WrongType
from headrace.member import Member
from headrace.policy import spread
from headrace.recorder import Recorder
from headrace.redis import ownership
from headrace.redis.ownership import Gap, Place
from headrace.redis.shards import Spread
from headrace.room import Room

log = logging.getLogger("headrace")

ROUND_MS = 5_000  # how often rooms that have read something are looked at
CHUNK, REST_S = 50, 0.05  # so many at once, with a rest in between: 10,000 busy rooms cost a server 2 %


class Gaps:
    def __init__(
        self,
        member: Member,
        data: Spread,
        recorder: Recorder,
        *,
        place: Callable[[str], Place],
        rooms: Callable[[], Sequence[Room[Any]]],
    ) -> None:
        self._member = member
        self._data = data
        self._recorder = recorder
        self._place = place
        self._rooms = rooms

    async def run(self) -> None:
        """Look until cancelled. Raises only what nobody can help."""
        while True:
            await asyncio.sleep(spread(ROUND_MS, random.random()) / 1000)
            due = [room for room in self._rooms() if room.cursor != room.looked or room.missing is not None]
            for at in range(0, len(due), CHUNK):
                await asyncio.gather(*map(self._look, due[at : at + CHUNK]))
                await asyncio.sleep(REST_S)

    def found(self, stream: str, gap: Gap) -> None:
        """Count and say it: once a gap."""
        self._recorder.count("trimmed_total", gap.messages, **self._member.labels)
        log.error(
            "message.trimmed stream=%s group=%s: %d messages between %s and %s, before anybody read them",
            *(stream, self._member.group, gap.messages, gap.after, gap.before),
        )

    async def _look(self, room: Room[Any]) -> None:
        cursor, place = room.cursor, self._place(room.name)
        call = ownership.trimmed(place, room.owner, room.epoch, *room.progress, most=room.missing)
        try:
            told = await self._data.call(call)
        except WrongType:
            return  # the feed says so to whoever reads it
        if not told.sure:
            return
        if told.noted:
            self.found(room.name, Gap(told.noted, room.looked.decode(), told.before))
        room.missing = told.gone if told.doubtful else None
        if room.missing is None:
            room.looked = cursor
