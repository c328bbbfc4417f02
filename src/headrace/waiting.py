"""What waits, taken when its time has come: retries, releases and what dead owners left (DESIGN 2, third idea).

Every worker looks at the due set at least every 100 ms, because a claimable entry wakes no blocked reader. A look that
finds nothing due is one ZRANGE. Nothing is ever taken early: the server's clock decides, in the script.

Messages whose last attempt has to run alone wait in a set of their own; :meth:`Waiting.alone_due` says when one is due,
and the lane takes it with nothing else in its hands (SPEC 25).
"""

from __future__ import annotations

import logging
import time

from headrace.member import Member
from headrace.recorder import Recorder
from headrace.redis import replies, scripts
from headrace.redis.calls import Waited
from headrace.redis.link import Link

log = logging.getLogger("headrace")

LOOK_S = 0.1  # how often the due set is looked at
TURN_MS = 5_000  # how long others leave an alone message to the worker that is emptying its hands for it


class Waiting:
    def __init__(self, member: Member, recorder: Recorder) -> None:
        self._member = member
        self._recorder = recorder
        self._next_at = 0.0
        self._alone_due = False

    @property
    def next_at(self) -> float:
        """When to look again (monotonic seconds)."""
        return self._next_at

    @property
    def alone_due(self) -> bool:
        return self._alone_due

    async def take(self, link: Link, limit: int) -> list[Waited]:
        """At most ``limit`` deliveries that are due, with their attempt and why they waited."""
        member = self._member
        self._next_at = time.monotonic() + LOOK_S
        look = await link.call(scripts.look(member.keys, member.group))
        self._alone_due = look.alone_ms == 0
        if look.next_ms is None:
            return []
        if look.next_ms > 0:
            self._next_at = time.monotonic() + min(LOOK_S, look.next_ms / 1000)
            return []
        found = await link.call(scripts.due(member.keys, member.group, member.owner, limit))
        self._report(found)
        if found.next_ms is not None:
            self._next_at = time.monotonic() + min(LOOK_S, found.next_ms / 1000)
        return found.taken

    async def take_alone(self, link: Link) -> list[Waited]:
        """One message that must run alone. Called with empty hands."""
        member = self._member
        found = await link.call(scripts.due(member.keys, member.group, member.owner, 1, alone=True, early_ms=TURN_MS))
        self._report(found)
        self._alone_due = False
        return found.taken

    async def ask_turn(self, link: Link) -> bool:
        """Ask for the right to run the next alone message: one worker empties its hands for it, the others go on."""
        self._alone_due = False
        return await link.call(scripts.turn(self._member.keys, self._member.group, TURN_MS))

    def _report(self, found: replies.Due) -> None:
        labels = self._member.labels
        if found.trimmed:
            self._recorder.count("trimmed_total", len(found.trimmed), **labels)
            log.error("message.trimmed stream=%s group=%s ids=%s", *labels.values(), found.trimmed)
        if found.dropped:
            log.warning(
                "waiting.dropped stream=%s group=%s: %d ids waited nowhere any more",
                *labels.values(),
                found.dropped,
            )
        if found.regrouped:
            log.error("waiting.recreated stream=%s group=%s: its attempts start again at 1", *labels.values())
