"""How an owner comes by assignments: what is new, what was handed back, what the dead have left, by fair share.

A fair share is what each of the live owners would have if all had the same. Whoever has no more than that takes what is
free, a chunk at a time; whoever has more leaves it to the others. What nobody has taken for a while is taken by
anybody who has room: others may be full, and a share is no reason to leave a stream without an owner.

Nobody inherits while the leases cannot be trusted: within half a lease after a connect, or after a command that took a
quarter of a lease too long; and an inheritance carries the server time after which it does nothing (SPEC 20). Only
what an owner, or its supervising parent, has given up by a word is taken even then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headrace import points
from headrace.assignment import Assignment, level_of
from headrace.errors import HeadraceError
from headrace.member import Member
from headrace.recorder import Recorder
from headrace.redis import commands, ownership, scripts
from headrace.redis.calls import Call
from headrace.redis.link import Link

log = logging.getLogger("headrace")

CHUNK = 100  # assignments taken at once: siblings that start together all get some
PATIENCE_S = 1.0  # how long those with less than their share have to take what is free
LOOK_MS = 200  # how often it looks at what was handed back or left behind


class Acquirer:
    def __init__(
        self,
        member: Member,
        link: Link,
        recorder: Recorder,
        *,
        limit: Callable[[], int],
        held: Callable[[], int],
        inherits: bool,
        rebalance: bool,
    ) -> None:
        self._member = member
        self._link = link
        self._recorder = recorder
        self._limit = limit
        self._held = held
        self._inherits = inherits
        self._rebalance = rebalance
        self._lease_s = member.settings.lease_ms / 1000
        self._patience_s = min(PATIENCE_S, self._lease_s)
        self._look_ms = min(LOOK_MS, member.settings.lease_ms // 4)
        self.share, self._owners = 1, 1
        self._server_ms, self._server_at = 0, 0.0
        self._epoch = -1
        self._quiet_until = 0.0
        self._patient_until = 0.0
        self._extra = 1  # how many beyond the share the next time nobody else has taken any
        self.regrouped: Callable[[], None] = lambda: None  # told when the group was made again

    def heard(self, beat: ownership.Beat) -> None:
        self.share, self._owners = beat.share, beat.owners

    def excess(self) -> int:
        """How many more than its fair share this owner has."""
        return max(0, self._held() - self.share)

    def _look(self) -> Call[ownership.Beat]:
        """How things are, without renewing: only the heartbeat may hear that the lease had ended."""
        return ownership.beat(self._member.keys, self._member.group, self._member.owner, 0)

    # ── one turn ──

    async def turn(self) -> list[Assignment]:
        """Take what there is and may be taken; waits a moment where there is nothing."""
        await self._connected()
        if self._is_full():
            # A share changes with every owner that comes or goes, and a long lease is too long to wait for the news.
            begun = time.monotonic()
            self.heard(await self._link.call(self._look()))
            self._seen(begun)  # a look that hung is as good a warning as a read
        wanted = self._wanted()
        if wanted <= 0:
            await asyncio.sleep(self._look_ms / 1000)
            return []
        beyond = self._is_full()
        taken = await self._left_over(wanted)
        taken += await self._fresh(wanted - len(taken), wait=not taken)
        if beyond:
            self._extra = min(CHUNK, 2 * self._extra) if taken else 1
        return taken

    def _is_full(self) -> bool:
        """Whether others come first. With its exact share an owner takes what is new, lest it wait for the next beat;
        but where owners hand on what they have too many of, that would be taking back what was just handed on."""
        held = self._held()
        return held > self.share or (held == self.share and self._rebalance and self._owners > 1)

    def _wanted(self) -> int:
        """How many to ask for now."""
        held, now = self._held(), time.monotonic()
        room = min(CHUNK, self._limit() - held)
        if not self._is_full():
            self._patient_until, self._extra = now + self._patience_s, 1
            return min(room, max(1, self.share - held))
        if now < self._patient_until:
            return 0
        self._patient_until = now + self._patience_s
        return min(room, self._extra)

    async def _left_over(self, wanted: int) -> list[Assignment]:
        """What was handed back and is due, and what owners without a lease have left."""
        member, begun = self._member, time.monotonic()
        due = scripts.due(member.keys, member.group, member.owner, wanted)
        found = await self._link.call(due)
        self._seen(begun)
        self._lost_to_trimming(found.trimmed)
        taken = [Assignment(id_, fields, count, level=level_of(mark)) for id_, fields, count, _, mark in found.taken]
        if taken:
            points.reached("acquirer.due")
        self._recorder.count("due_total", len(taken), **member.labels)
        if self._inherits and len(taken) < wanted:
            taken += await self._inherit(wanted - len(taken), certain=begun < self._quiet_until)
        return taken

    async def _inherit(self, wanted: int, *, certain: bool) -> list[Assignment]:
        member, begun = self._member, time.monotonic()
        if self._server_ms == 0:
            self._server_ms, self._server_at = await self._link.call(commands.server_ms()), time.monotonic()
        deadline_ms = self._server_ms + int((begun - self._server_at + self._lease_s / 4) * 1000)
        lease_ms = member.settings.lease_ms
        found = await self._link.call(
            ownership.inherit(
                *(member.keys, member.group, member.owner, wanted, lease_ms, deadline_ms), certain=certain
            )
        )
        self._server_ms, self._server_at = found.server_ms, time.monotonic()
        if found.late:
            self.quiet()
            return []
        self._seen(begun)
        self._lost_to_trimming(found.trimmed)
        if found.taken:
            points.reached("acquirer.inherited")
            self._recorder.count("rescued_total", len(found.taken), **member.labels)
            formers = sorted({former for _, _, _, former in found.taken})
            log.warning(
                "assignments.inherited stream=%s group=%s: %d of %s",
                *(*member.labels.values(), len(found.taken), ", ".join(formers)),
            )
        return [Assignment(id_, fields, count, former) for id_, fields, count, former in found.taken]

    async def _fresh(self, wanted: int, *, wait: bool) -> list[Assignment]:
        """What nobody has read yet."""
        if wanted <= 0:
            return []
        member, begun = self._member, time.monotonic()
        block_ms = self._look_ms if wait else 0
        read = commands.read(member.keys, member.group, member.owner, wanted, block_ms)
        entries = await self._link.call(read, wait_ms=block_ms)
        if entries:
            points.reached("acquirer.read")
        self._seen(begun + block_ms / 1000)
        self._recorder.count("read_total", len(entries), **member.labels)
        return [Assignment(id_, fields, count) for id_, fields, count, _ in entries]

    # ── after a doubt ──

    async def unknown(self, known: list[bytes]) -> list[Assignment]:
        """What the server says I hold and I do not know: an answer did not arrive whole."""
        member, begun = self._member, time.monotonic()
        found = await self._link.call(scripts.mine(member.keys, member.group, member.owner, CHUNK, known))
        self._seen(begun)
        self._lost_to_trimming(found.trimmed)
        self._recorder.count("found_total", len(found.taken), **member.labels)
        # An earlier process of this name may have taken the streams with these counts, and may only be paused: the next
        # count makes a new epoch, and nothing it says counts any more.
        lifts = [
            ownership.lift(member.keys, member.group, member.owner, id_, count, count + 1)
            for id_, _, count, _ in found.taken
        ]
        words = await self._link.pipe(lifts) if lifts else []
        if lifts:
            points.reached("acquirer.found")
        return [
            Assignment(id_, fields, count + 1)
            for (id_, fields, count, _), word in zip(found.taken, words, strict=True)
            if not isinstance(word, HeadraceError) and word.kind == "ok"
        ]

    async def make_group(self) -> None:
        """The group has vanished: at 0, because what is finished is deleted and what is not has to be owned again."""
        member = self._member
        if await self._link.call(scripts.ensure_group(member.keys, member.group, "0")):
            self._recorder.count("group_recreated_total", 1, **member.labels)
            log.error("group.recreated stream=%s group=%s: assignments are given anew", *member.labels.values())
            self.regrouped()

    async def _connected(self) -> None:
        if not self._link.is_open:
            await self._link.open()
        if self._link.epoch != self._epoch:
            self._epoch, self._server_ms = self._link.epoch, 0
            self.quiet()

    def _seen(self, expected: float) -> None:
        """A slow answer makes inheriting wait: the beats of live owners may be as late."""
        if self._link.epoch != self._epoch or time.monotonic() - expected > self._lease_s / 4:
            self.quiet()

    def quiet(self) -> None:
        self._quiet_until = time.monotonic() + self._lease_s / 2

    def _lost_to_trimming(self, ids: list[str]) -> None:
        if ids:
            self._recorder.count("trimmed_total", len(ids), **self._member.labels)
            log.error("message.trimmed stream=%s group=%s ids=%s", *self._member.labels.values(), ids)
