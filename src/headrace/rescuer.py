"""Rescue: taking over deliveries whose lease ran out.

On servers with XREADGROUP CLAIM it goes with every look at what waits, ten times a second (:meth:`Rescuer.take_over`),
and the scan runs rarely, for what CLAIM leaves behind (trimmed entries stay in the pending list there). Elsewhere the
scan is the only road, every quarter of a lease, jittered, with the cursor kept, so that idle entries behind any number
of fresh ones are reached (SPEC 15).

Nobody rescues while the clock of the leases cannot be trusted: within half a lease after a connect, or after a command
that took a quarter of a lease too long (SPEC 20). The live owners' renewals come first then. And because a call may lie
in the socket of a server that stands still, both carry a server time after which they do nothing (ADR 15).
"""

from __future__ import annotations

import logging
import random
import time

from headrace.member import Member
from headrace.policy import spread
from headrace.recorder import Recorder
from headrace.redis import commands, replies, scripts
from headrace.redis.calls import Entry, Rescued
from headrace.redis.link import Link

log = logging.getLogger("headrace")

SCAN = 100  # entries a script looks at: keeps it short
RARE_S = 15.0  # how often the scan runs where CLAIM does the work


class Rescuer:
    def __init__(self, member: Member, recorder: Recorder, *, native: bool) -> None:
        self._member = member
        self._recorder = recorder
        self.native = native  # XREADGROUP CLAIM takes over, so the scan is rare
        self.lease_ms = member.settings.lease_ms  # the group's longest lease, kept right by the lifeline (SPEC 7b)
        self._cursor = "-"
        self._next_at = time.monotonic() + self._interval_s()
        self._quiet_until = 0.0
        self._epoch = -1
        self._server_ms = 0
        self._server_at = 0.0
        self.more = False  # what was left was more than there was room for
        self.quiet()

    @property
    def next_at(self) -> float:
        return max(self._next_at, self._quiet_until)

    def learn(self, *, native: bool) -> None:
        """Another server answers: take over in its way, and soon enough for it."""
        if native != self.native:
            self.native, self.more = native, False
            self._next_at = min(self._next_at, time.monotonic() + self._interval_s())

    def hint(self) -> None:
        """Somebody may have died: look now. Never needed, only earlier."""
        self._next_at = 0.0

    def seen(self, link: Link, late_s: float) -> None:
        """Told after every exchange of the reader: a new connection or a slow answer makes rescue wait."""
        if link.epoch != self._epoch:
            self._epoch = link.epoch
            self._server_ms = 0
            self.quiet()
        elif late_s * 1000 > self.lease_ms / 4:
            self.quiet()

    def quiet(self) -> None:
        self._quiet_until = time.monotonic() + self.lease_ms / 2000

    @property
    def allowed(self) -> bool:
        return time.monotonic() >= self._quiet_until

    async def take(self, link: Link, limit: int) -> list[Rescued]:
        """One step of the scan: at most ``limit`` deliveries of owners that no longer renew."""
        member = self._member
        deadline = await self._deadline_ms(link)
        begun = time.monotonic()
        found = await link.call(
            scripts.rescue(
                member.keys,
                member.group,
                member.owner,
                self.lease_ms,
                self._cursor,
                min(limit, SCAN),
                deadline,
            )
        )
        if self._is_late(found):
            return []
        self._recorder.observe("recovery_scan_duration_seconds", time.monotonic() - begun, **member.labels)
        self._cursor = found.cursor
        self._next_at = 0.0 if found.cursor != "-" else time.monotonic() + self._interval_s()
        self._report(found)
        return found.taken

    async def take_over(self, link: Link, limit: int) -> list[Entry]:
        """The same with XREADGROUP CLAIM: at most ``limit`` entries, new ones behind those of dead owners."""
        member, limit = self._member, min(limit, SCAN)
        deadline = await self._deadline_ms(link)
        call = scripts.take_over(member.keys, member.group, member.owner, self.lease_ms, limit, deadline)
        found = await link.call(call)
        late = self._is_late(found)
        self.more = not late and len(found.entries) >= limit and found.entries[-1][2] > 1
        return found.entries

    async def _deadline_ms(self, link: Link) -> int:
        """The server time until which a call that is sent now may take over. It counts from before the question: a
        server that stood still over that has given nobody else's renewal an answer, either."""
        now = time.monotonic()
        if self._server_ms == 0:
            self._server_ms, self._server_at = await link.call(commands.server_ms()), time.monotonic()
        return self._server_ms + int((now - self._server_at) * 1000) + self.lease_ms // 4

    def _is_late(self, found: replies.Rescue | replies.TakenOver) -> bool:
        self._server_ms, self._server_at = found.server_ms, time.monotonic()
        if found.late:
            self.quiet()
        return found.late

    def _report(self, found: replies.Rescue) -> None:
        if found.trimmed:
            self._recorder.count("trimmed_total", len(found.trimmed), **self._member.labels)
            log.error("message.trimmed stream=%s group=%s ids=%s", *self._member.labels.values(), found.trimmed)

    def _interval_s(self) -> float:
        lease_ms = self._member.settings.lease_ms
        ms = max(int(RARE_S * 1000), 3 * lease_ms) if self.native else lease_ms // 4
        return spread(ms, random.random()) / 1000
