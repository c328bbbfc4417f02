"""The parts of a lane that depend on how its handler recovers: one contract, two engines (SPEC 8 to 22, 46).

    InPlaceEngine    leases are idle clocks, what is overdue changes hands where it is           (ADR 1, 3)
    RequeueEngine    leases are lock keys, what is unlocked is appended again and acknowledged   (ADR 13)

The services do not know which one they work with: they get a delivery maker, endings, a rescue and a renewal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.job import Job
from headrace.locks import Locks
from headrace.member import Member
from headrace.message import Delivery, Ways
from headrace.names import waiting_group
from headrace.reader import Rescue
from headrace.recorder import Recorder
from headrace.recovery import Requeue
from headrace.redis import commands, requeue, scripts
from headrace.redis.calls import Call, Entry, Rescued, Word
from headrace.redis.capabilities import Capabilities
from headrace.redis.endings import Endings
from headrace.redis.letters import open_requeued
from headrace.redis.link import Link
from headrace.redis.requeue_endings import RequeueEndings
from headrace.requeuer import Requeuer
from headrace.rescuer import Rescuer
from headrace.slots import Slots

log = logging.getLogger("headrace")

Pairs = Sequence[tuple[bytes, int]]
Lost = Callable[[Delivery[Any], Word], None]
NEVER = float("inf")


class Step(Protocol):
    """Something to ask the server before a handler starts (locks.Locks, completion.Completion)."""

    def ask(self, delivery: Delivery[Any]) -> None: ...
    def forget(self) -> list[Delivery[Any]]: ...
    async def run(self) -> None: ...


class Engine(Protocol):
    """What a lane asks of its recovery strategy."""

    @property
    def endings(self) -> Endings:
        """From outcomes to calls."""

    @property
    def rescue(self) -> Rescue:
        """What the reader takes over between two reads."""

    @property
    def native(self) -> bool:
        """Whether the read itself takes over what is overdue (XREADGROUP CLAIM)."""

    @property
    def reads_ahead(self) -> bool:
        """Whether handing back what was read ahead is cheap enough to try."""

    @property
    def delivery(self) -> Callable[[Ways, bytes, list[bytes], int, int, float], Delivery[Any]]:
        """Makes a delivery of an entry."""

    def steps(self, passed: Callable[[Delivery[Any]], None]) -> list[Step]:
        """What has to be asked before a handler starts."""

    def renew(self, pairs: Pairs) -> Call[list[Word]]:
        """Keeps deliveries given as (id, count) alive. Called from the lifeline's thread."""

    def heard_lease(self, lease_ms: int) -> None:
        """The group's longest lease (SPEC 7b)."""

    def learn(self, capabilities: Capabilities) -> None:
        """Another server answers now, which may be older or newer."""

    def hint(self, key: str) -> None:
        """A key ran out, says the server."""

    @property
    def wants_hints(self) -> bool:
        """Whether hint() is of use."""

    @property
    def dead_letters(self) -> str:
        """The stream that takes what is buried."""

    async def check(self, link: Link) -> None:
        """At the start: say what this strategy cannot do well here."""

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the lane's own services."""

    async def close(self) -> None:
        """The last thing before the links are closed."""


def engine_for(
    job: Job,
    member: Member,
    link: Link,
    capabilities: Capabilities,
    recorder: Recorder,
    *,
    slots: Slots,
    lost: Lost,
) -> Engine:
    """The engine that the handler's settings ask for."""
    if isinstance(job.settings.recovery, Requeue):
        return RequeueEngine(job.settings.recovery, member, link, recorder, capabilities, slots=slots, lost=lost)
    return InPlaceEngine(member, recorder, capabilities)


class InPlaceEngine:
    reads_ahead = True
    wants_hints = False
    delivery = Delivery

    def __init__(self, member: Member, recorder: Recorder, capabilities: Capabilities) -> None:
        self._member = member
        self.native = capabilities.claim
        self.dead_letters = member.keys.dead_letters
        self.endings = Endings(member, delete=_delete_mode(member, capabilities))
        self.rescue = Rescuer(member, recorder, native=self.native)

    def learn(self, capabilities: Capabilities) -> None:
        self.native = capabilities.claim
        self.rescue.learn(native=self.native)
        self.endings.delete = _delete_mode(self._member, capabilities)

    def steps(self, passed: Callable[[Delivery[Any]], None]) -> list[Step]:
        return []

    def renew(self, pairs: Pairs) -> Call[list[Word]]:
        return scripts.renew(self._member.keys, self._member.group, self._member.owner, pairs)

    def heard_lease(self, lease_ms: int) -> None:
        self.rescue.lease_ms = lease_ms

    def hint(self, key: str) -> None:
        self.rescue.hint()

    async def check(self, link: Link) -> None:
        await _warn_of_others(link, self._member, "in place")

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return []

    async def close(self) -> None:
        """Nothing is left to be said."""


class NoRescue:
    """The reader takes nothing over: what was requeued arrives as a new message."""

    next_at = NEVER
    allowed = False
    more = False

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms

    def seen(self, link: Link, late_s: float) -> None:
        """Nothing follows from it."""

    async def take(self, link: Link, limit: int) -> list[Rescued]:
        return []

    async def take_over(self, link: Link, limit: int) -> list[Entry]:
        return []


class RequeueEngine:
    native = False
    reads_ahead = False  # what is handed back is a copy at the end of the stream: not to be done lightly

    def __init__(
        self,
        recovery: Requeue,
        member: Member,
        link: Link,
        recorder: Recorder,
        capabilities: Capabilities,
        *,
        slots: Slots,
        lost: Lost,
    ) -> None:
        settings = member.settings
        maxlen = settings.dead_letters_maxlen if settings.dead_letters else None
        delete = _delete_mode(member, capabilities)
        rules = requeue.Rules(recovery.max_retries, recovery.dead_letters(member.keys), maxlen, settings.prefix, delete)
        self._member = member
        self._link = link
        self._lost = lost
        self.dead_letters = rules.dead_letters
        self._locks: Locks | None = None
        self.wants_hints = recovery.hints
        self.rescue = NoRescue(settings.lease_ms)
        self._requeuer = Requeuer(member, link, recorder, recovery, rules, is_mine=slots.held.__contains__)
        self.endings = RequeueEndings(member, rules, unlock=self._unlock, expect=self._requeuer.expect)

    def learn(self, capabilities: Capabilities) -> None:
        delete = self.endings.delete = _delete_mode(self._member, capabilities)
        self.endings.rules = self._requeuer.rules = self.endings.rules._replace(delete=delete)

    def delivery(
        self, ways: Ways, raw_id: bytes, fields: list[bytes], count: int, idle_ms: int, now: float
    ) -> Delivery[Any]:
        made: Delivery[Any] = Delivery(ways, raw_id, fields, count, idle_ms, now)
        copy = open_requeued(fields, self._member.prefix)
        if copy is not None:
            made.restore_requeued(copy.fields, copy.retries, copy.original_id)
        return made

    def steps(self, passed: Callable[[Delivery[Any]], None]) -> list[Step]:
        self._locks = Locks(self._member, self._link, passed=passed, lost=self._lost)
        return [self._locks]

    def _unlock(self, ids: Sequence[bytes]) -> None:
        if self._locks is not None:
            self._locks.unlock(ids)

    def renew(self, pairs: Pairs) -> Call[list[Word]]:
        member = self._member
        return requeue.hold(member.keys, member.group, member.owner, member.settings.lease_ms, pairs)

    def heard_lease(self, lease_ms: int) -> None:
        self._requeuer.lock_ms = lease_ms

    def hint(self, key: str) -> None:
        self._requeuer.hint(key)

    async def check(self, link: Link) -> None:
        member = self._member
        await _warn_of_others(link, member, "requeue")
        own = (member.group, waiting_group(member.group))
        others = [group.name for group in await link.call(commands.groups(member.keys)) if group.name not in own]
        if others:
            log.warning(
                "requeue.shared stream=%s group=%s: every copy is a new message to %s too; use the default recovery",
                *(member.stream, member.group, ", ".join(others)),
            )

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return [self._requeuer.run()]

    async def close(self) -> None:
        if self._locks is not None and self._link.is_open:
            try:
                await self._locks.flush()
            except HeadraceError as error:
                log.debug("locks.left stream=%s: %s; they run out by themselves", self._member.stream, error)


async def _warn_of_others(link: Link, member: Member, mine: str) -> None:
    """Workers of one group must recover in one way: to each other's eyes a live owner is dead."""
    now_ms = await link.call(commands.server_ms())
    for entry in await link.call(commands.owner_entries(member.keys, member.group)):
        theirs = entry.get("recovery", "in place")
        if theirs != mine and now_ms - entry["seen_ms"] < 3 * entry["lease_ms"]:
            log.warning(
                "recovery.differs stream=%s group=%s: I recover by %s, pid %s on %s by %s; they take live owners for "
                "dead: stop one kind before you start the other",
                *(member.stream, member.group, mine, entry.get("pid"), entry.get("host"), theirs),
            )
            return


def _delete_mode(member: Member, capabilities: Capabilities) -> scripts.Delete:
    if not member.settings.delete_on_ack:
        return "no"
    return "acked" if capabilities.ackdel else "sole"
