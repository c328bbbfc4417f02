"""The reader of one lane: free slots in, deliveries out. One loop, and the only place where anything is taken.

A turn of the loop, with n free slots:

    1. after a read whose answer did not arrive whole: ask what I hold and do not know (SPEC 5)
    2. what waits and is due, then what other owners left (rescue), each at its own time; if no slot is free then, the
       gathered acks go ahead to make room
    3. the gathered acks and the read for what is still free, in one write: the server frees before it fills

Because everything is taken here, one after the other, no worker ever holds more than its slots (SPEC 4). While the
stream gives as much as was asked, reads do not block and carry the acks; once it is drained, a read blocks until
something arrives or the next look at what waits is due, and the outbox sends the acks itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from headrace import points
from headrace.errors import CommandRefused, HeadraceError, MissingRight, NoGroup, Verdict, classify
from headrace.gate import Gate
from headrace.member import Member
from headrace.message import Delivery
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import commands, scripts
from headrace.redis.calls import Call, Entry, Rescued, Waited, Word
from headrace.redis.link import Link
from headrace.slots import Slots

log = logging.getLogger("headrace")

T = TypeVar("T")

AHEAD_S = 0.1  # what was read ahead is handed back when no slot fell free for so long
LOOK_AGAIN_S = 5.0  # a blocked read may have delivered to a connection that died without a word: ask again then


class Origin(Enum):
    """Where an entry came from: what the lane needs to know to treat it right."""

    NEW = "read_total"
    RESCUED = "rescued_total"
    DUE = "due_total"
    ALONE = "alone_total"
    FOUND = "found_total"


class Acks(Protocol):
    """The outbox, as far as the reader carries its acks."""

    @property
    def has_acks(self) -> bool: ...
    def carried(self, by_reader: bool) -> None: ...
    def take_acks(self) -> tuple[list[Delivery[Any]], Call[list[Word]] | None]: ...
    def put_back(self, batch: Sequence[Delivery[Any]]) -> None: ...
    def settle_acks(self, batch: Sequence[Delivery[Any]], words: Sequence[Word]) -> None: ...


class Due(Protocol):
    """What waits (waiting.Waiting)."""

    @property
    def next_at(self) -> float: ...
    @property
    def alone_due(self) -> bool: ...
    async def take(self, link: Link, limit: int) -> list[Waited]: ...
    async def take_alone(self, link: Link) -> list[Waited]: ...
    async def ask_turn(self, link: Link) -> bool: ...


class Rescue(Protocol):
    """What dead owners left (rescuer.Rescuer)."""

    lease_ms: int

    @property
    def next_at(self) -> float: ...
    @property
    def allowed(self) -> bool: ...
    @property
    def more(self) -> bool: ...
    def seen(self, link: Link, late_s: float) -> None: ...
    async def take(self, link: Link, limit: int) -> list[Rescued]: ...
    async def take_over(self, link: Link, limit: int) -> list[Entry]: ...


Accept = Callable[[Sequence[Any], Origin], None]


class Reader:
    def __init__(
        self,
        member: Member,
        link: Link,
        slots: Slots,
        gate: Gate,
        recorder: Recorder,
        *,
        acks: Acks,
        due: Due,
        rescue: Rescue,
        accept: Accept,
        regroup: Callable[[], Awaitable[None]],
        stuck: Callable[[], None],
        learn: Callable[[], Awaitable[bool]],
        native: bool,
    ) -> None:
        self._member = member
        self._link = link
        self._slots = slots
        self._gate = gate
        self._recorder = recorder
        self._acks = acks
        self._due = due
        self._rescue = rescue
        self._accept = accept
        self._regroup = regroup
        self._stuck = stuck
        self._learn = learn
        self._native = native
        self._learnt = 1  # the connection that `native` speaks of, by its epoch
        self._changed = asyncio.Event()
        self._drained = False
        self._groupless = False  # the server said NOGROUP
        self._reconcile_at = math.inf  # an answer did not arrive whole: I may hold what I never saw
        self._old_client: tuple[object, int] = (None, 0)  # server and id of a connection that may still be read for
        self.blocked = False
        self.stopping = False

    def freed(self) -> None:
        """Slots or acks changed: a reader that waits for a free slot looks again."""
        self._changed.set()

    def stop(self) -> None:
        """Take nothing more. A read under way ends by itself or by CLIENT UNBLOCK, and its answer is still taken."""
        self.stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Read until stopped. Raises only what nobody can help."""
        tries = 0
        while not self.stopping:
            try:
                await self._turn()
                tries = 0
            except NoGroup:
                self._groupless = True
            except (CommandRefused, MissingRight):
                if self._learnt == self._link.epoch:
                    raise
                # Another server answered than the one that was asked what it can do: ask that one.
            except HeadraceError as error:
                self._acks.carried(by_reader=False)
                self._recorder.count("server_error_total", 1, role="reader", error=type(error).__name__)
                if classify(error) is Verdict.FATAL:
                    raise
                if tries in (0, 5) or tries % 20 == 0:
                    log.warning("reader.waits stream=%s tries=%d: %s", self._member.stream, tries + 1, error)
                await self._pause(reconnect_delay_ms(tries, random.random(), may_move=self._link.may_move) / 1000)
                # A server that refused the reads refused the renewals, too: they come first when it serves again.
                self._rescue.seen(self._link, math.inf)
                tries += 1
        self._acks.carried(by_reader=False)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not through a stop."""
        deadline = time.monotonic() + seconds
        while not self.stopping and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    # ── one turn ──

    async def _turn(self) -> None:
        if self._groupless:
            await self._regroup()
            self._groupless = False
        if self._due.alone_due and await self._asked_turn():
            points.reached("reader.turn")
            await self._take_alone()
        if self._gate.closed:
            self._acks.carried(by_reader=False)  # they must not wait here for what waits for them
        async with self._gate.taking():
            if not self.stopping:
                await self._take()
        if self._slots.free <= 0 and not self.stopping:
            await self._wait_for_slot()

    async def _asked_turn(self) -> bool:
        begun = time.monotonic()
        turn = await self._due.ask_turn(self._link)
        self._rescue.seen(self._link, time.monotonic() - begun)
        return turn

    async def _take(self) -> None:
        if not self._link.is_open:
            await self._link.open()
            if self._link.epoch > 1:
                self._recorder.count("reconnected_total", 1, role="reader")
        if self._link.epoch != self._learnt:
            epoch = self._link.epoch
            self._native = await self._learn()
            self._learnt = epoch
        self._rescue.seen(self._link, 0.0)
        now = time.monotonic()
        looks = self._due.next_at <= now
        if self._slots.free <= 0 and (looks or self._scanning() or self._reconcile_at <= now):
            await self._make_room()
        if self._reconcile_at <= now and self._slots.free > 0:
            await self._reconcile()
        if looks and self._slots.free > 0:
            due = await self._heard(self._due.take(self._link, self._slots.free))
            points.reached("reader.due")
            self._accept(due, Origin.DUE)
        self._rescue.seen(self._link, time.monotonic() - now)  # a look that hung is as good a warning as a read
        if self._rescue.next_at <= now and self._rescue.allowed and self._slots.free > 0:
            left = await self._heard(self._rescue.take(self._link, self._slots.free))
            points.reached("reader.rescued")
            self._accept(left, Origin.RESCUED)
        if self._native and (looks or self._rescue.more) and self._rescue.allowed and self._slots.free > 0:
            entries = await self._heard(self._rescue.take_over(self._link, self._slots.free))
            points.reached("reader.rescued")
            self._accept(entries, Origin.NEW)
        await self._read()

    async def _make_room(self) -> None:
        """Acks ride with the read, which fills their slots again at once: while there is a backlog none would ever be
        free for what is due or orphaned (SPEC 8, 24). So when it is time to look, they go ahead."""
        batch, ack = self._acks.take_acks()
        if ack is not None:
            await self._ack_only(batch, ack)

    async def _read(self) -> None:
        """The gathered acks and the read, in one write."""
        batch, ack = self._acks.take_acks()
        count = self._slots.free + len(batch)
        if count <= 0:  # more is held than there are slots: reading ahead has just ended
            if ack is not None:
                await self._ack_only(batch, ack)
            return
        block_ms = self._block_ms() if self._drained and not self._slots.queue and not self._scanning() else 0
        read = commands.read(self._member.keys, self._member.group, self._member.owner, count, block_ms)
        begun = time.monotonic()
        self.blocked = block_ms > 0
        self._acks.carried(by_reader=not self.blocked)
        try:
            answers = await self._link.pipe([read] if ack is None else [ack, read], wait_ms=block_ms)
        except BaseException:
            self._acks.put_back(batch)
            self._mistrust()
            raise
        finally:
            self.blocked = False
        self._rescue.seen(self._link, time.monotonic() - begun - block_ms / 1000)
        self._acks.carried(by_reader=True)
        points.reached("reader.answered")
        self._answered(batch, answers, count)

    async def _ack_only(self, batch: list[Delivery[Any]], ack: Call[list[Word]]) -> None:
        """The gathered acks alone."""
        try:
            words = await self._link.call(ack)
        except BaseException:
            self._acks.put_back(batch)
            raise
        self._acks.settle_acks(batch, words)

    def _answered(self, batch: list[Delivery[Any]], answers: list[Any], count: int) -> None:
        entries = answers[-1]
        if batch:
            words = answers[0]
            if isinstance(words, HeadraceError):
                self._acks.put_back(batch)
            else:
                self._acks.settle_acks(batch, words)
        if isinstance(entries, HeadraceError):
            raise entries
        if batch and isinstance(answers[0], HeadraceError):
            self._accept(entries, Origin.NEW)
            raise answers[0]
        self._drained = len(entries) < count
        self._accept(entries, Origin.NEW)

    def _scanning(self) -> bool:
        """A rescue is under way: the next step of it must not wait behind a blocked read."""
        return self._rescue.allowed and (self._rescue.more or self._rescue.next_at <= time.monotonic())

    def _block_ms(self) -> int:
        """Until the next look at what waits, at most a quarter of a lease (SPEC 5, 20)."""
        now = time.monotonic()
        until = self._due.next_at
        if self._rescue.next_at > now:
            until = min(until, self._rescue.next_at)
        limit = min(self._member.settings.block_ms, self._rescue.lease_ms // 4)
        return max(1, min(limit, int((until - now) * 1000)))

    async def _wait_for_slot(self) -> None:
        self._changed.clear()
        if self._slots.free > 0 or self._acks.has_acks or self.stopping:
            return
        if not self._slots.ahead:
            await self._changed.wait()
            return
        try:
            await asyncio.wait_for(self._changed.wait(), AHEAD_S)
        except TimeoutError:
            self._stuck()

    # ── a message that must run alone ──

    async def _take_alone(self) -> None:
        """Empty the hands of this process, take one message, see it through (DESIGN 11b)."""
        self._acks.carried(by_reader=False)
        async with self._gate.alone():
            if self.stopping:
                return
            alone = await self._heard(self._due.take_alone(self._link))
            points.reached("reader.alone")
            self._accept(alone, Origin.ALONE)
            while not self._slots.is_empty:
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        if not self._slots.is_empty:
            await self._changed.wait()

    # ── after an answer that did not arrive whole ──

    async def _heard(self, taking: Awaitable[list[T]]) -> list[T]:
        """What was taken; if its answer does not arrive whole, it may be mine all the same (SPEC 5)."""
        try:
            return await taking
        except BaseException:
            self._mistrust()
            raise

    def _mistrust(self) -> None:
        self._reconcile_at = 0.0
        self._old_client = (self._link.node, self._link.client_id)
        self._drained = False

    async def _reconcile(self) -> None:
        """Ask for what the server says I hold and I do not know: body and count unchanged, no attempt burnt."""
        member = self._member
        # The old connection may still be blocked on the server and be given something after we asked.
        sure = await self._killed(*self._old_client)
        self._old_client = (None, 0)
        known, limit = list(self._slots.held), self._slots.free
        found = await self._link.call(scripts.mine(member.keys, member.group, member.owner, limit, known))
        points.reached("reader.found")
        if len(found.taken) >= limit:
            self._reconcile_at = 0.0  # there may be more than fit now
        else:
            self._reconcile_at = math.inf if sure else time.monotonic() + LOOK_AGAIN_S
        if found.trimmed:
            self._recorder.count("trimmed_total", len(found.trimmed), **member.labels)
            log.error("message.trimmed stream=%s group=%s ids=%s", *member.labels.values(), found.trimmed)
        self._accept(found.taken, Origin.FOUND)

    async def _killed(self, node: object, client_id: int) -> bool:
        # On another server the number is somebody else's, and the old server serves the stream no more.
        if not client_id or node != self._link.node or client_id == self._link.client_id:
            return True
        try:
            old = await self._link.call(commands.connection(client_id))
            if old is None or old.name not in ("", self._link.name):
                return True  # it is closed; the server was started again, and the number is somebody else's now
            if not old.name:
                return False  # without names nobody can tell whose it is
            await self._link.call(commands.kill(client_id, old.address))
        except MissingRight:
            return False
        return True
