"""The janitor: what somebody has to do now and then, and nobody's message waits for.

    floor       the lowest id that is not finished yet, kept beside the group, so that a group that vanishes can be made
                again without handing out everything a second time (SPEC 3)
    place       a group that is ahead of its stream, because somebody set that back, is set back too: what is added
                would never be handed out (ADR 14)
    owners      owners gone for longer than their retention, with nothing pending, are removed (SPEC 19), also those
                that joined and never read: the server knows no such consumer, only their entry tells of them
    levels      lag, pending, waiting, oldest idle, for the recorder

Each lane has one; they keep out of each other's way only by jitter, because doing this twice harms nobody. A holding
has one for its owners only: a group of assignments is made again at 0 (acquirer.py) and needs no floor.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from headrace import points
from headrace.errors import HeadraceError, NoGroup, Verdict, classify
from headrace.member import Member
from headrace.policy import spread
from headrace.recorder import NoRecorder, Recorder
from headrace.redis import commands, replies, scripts
from headrace.redis.link import Link

log = logging.getLogger("headrace")

FLOOR_MS = 1_000  # how often the floor is kept: what was finished since then is handed out again if a group vanishes
ROUNDS = 5  # of those for one of the rest


class Janitor:
    def __init__(
        self, member: Member, link: Link, recorder: Recorder, *, in_flight: Callable[[], int], owners_only: bool = False
    ) -> None:
        self._member = member
        self._link = link
        self._recorder = recorder
        self._in_flight = in_flight
        self._owners_only = owners_only
        self._said = replies.Pulled("even")  # what nobody but the user can help is said once

    async def run(self) -> None:
        turn = random.randrange(ROUNDS)
        while True:
            await asyncio.sleep(spread(FLOOR_MS, random.random()) / 1000)
            turn = (turn + 1) % ROUNDS
            try:
                if not self._owners_only:
                    await self.look(thorough=turn == 0)
                if turn == 0:
                    await self.round()
            except NoGroup:
                continue  # the reader makes it again
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                log.debug("janitor.waits stream=%s: %s", self._member.stream, error)

    async def round(self) -> None:
        await self.remove_owners()
        if not self._owners_only and not isinstance(self._recorder, NoRecorder):
            await self.record_levels()

    async def look(self, *, thorough: bool = False) -> None:
        """At where the group is: it is put right first, and then noted."""
        await self.pull_back(thorough=thorough)
        await self.keep_floor()

    async def pull_back(self, *, thorough: bool = False) -> None:
        member = self._member
        found = await self._link.call(scripts.pull_back(member.keys, member.group, thorough=thorough))
        points.reached("janitor.pulled")
        if found.kind == "pulled":
            self._recorder.count("group_pulled_back_total", 1, **member.labels)
            log.error(
                "group.pulled_back stream=%s group=%s from %s to %s: the stream was set back below it; messages after "
                "that are handed out, some of them again",
                *(*member.labels.values(), found.before, found.after),
            )
        elif found.kind in ("ahead", "refused") and found != self._said:
            log.error(
                "group.ahead stream=%s group=%s: what is added at or below %s is never handed out; if that is not "
                "meant: XGROUP SETID %s %s %s",
                *(*member.labels.values(), found.before, member.stream, member.group, found.after),
            )
        self._said = found

    async def keep_floor(self) -> None:
        await self._link.call(scripts.keep_floor(self._member.keys, self._member.group))
        points.reached("janitor.kept")

    async def remove_owners(self) -> None:
        member = self._member
        retention_ms = member.settings.owner_retention_ms
        for owner in await self._gone(retention_ms):
            answer = await self._link.call(scripts.remove_owner(member.keys, member.group, owner, retention_ms))
            if answer.kind == "removed":
                self._recorder.count("owner_removed_total", 1, **member.labels)
                log.info("owner.removed stream=%s group=%s owner=%s", member.stream, member.group, owner)

    async def _gone(self, retention_ms: int) -> list[str]:
        """Who seems to be gone: remove_owner looks again, at both what the server knows and what was entered."""
        member = self._member
        consumers = await self._link.call(commands.consumers(member.keys, member.group))
        gone = [each.name for each in consumers if not each.pending and each.idle_ms >= retention_ms]
        readers = {each.name for each in consumers}
        entries = await self._link.call(commands.owner_entries(member.keys, member.group))
        unread = [entry for entry in entries if isinstance(entry.get("owner"), str) and entry["owner"] not in readers]
        if unread:
            before_ms = await self._link.call(commands.server_ms()) - retention_ms
            gone += [entry["owner"] for entry in unread if entry["seen_ms"] <= before_ms]
        return [name for name in gone if name != member.owner]

    async def record_levels(self) -> None:
        member = self._member
        levels = await self._link.call(scripts.levels(member.keys, member.group))
        self._recorder.gauge("lag", levels.lag, **member.labels)
        self._recorder.gauge("pel_depth", levels.pending, **member.labels)
        self._recorder.gauge("waiting", levels.waiting, **member.labels)
        self._recorder.gauge("in_flight", self._in_flight(), **member.labels)
        self._recorder.gauge("oldest_idle_seconds", levels.oldest_idle_ms / 1000, **member.labels)
