"""The requeue strategy's recovery: what nobody has a lock on is appended again and acked, in one step (SPEC 46).

Three things say where to look, and one script decides (requeue.lua):

    a scan       every ``interval``, spread, and once after the start: everything pending for ``min_idle``, page by page
    a hint       a lock ran out, says the server; at once, and never needed
    a wait       what a handler of ours failed with, when the lock that was left as its backoff has run out

Every worker does this, and none minds the others: whoever comes first moves a message, to the others it is gone. A
check that fails says nothing about an owner: the message stays where it is and is looked at again. Nobody recovers
while locks may be missing for the server's own reasons: within half a lock's life after a connect, or behind a slow
answer (SPEC 20). A message that this very process works on is never requeued by it, lock or no lock.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from headrace import points
from headrace.errors import HeadraceError, NoGroup, Verdict, classify
from headrace.member import Member
from headrace.policy import reconnect_delay_ms, spread
from headrace.recorder import Recorder
from headrace.recovery import BATCH_LIMIT, Requeue
from headrace.redis import commands, replies, requeue
from headrace.redis.link import Link

log = logging.getLogger("headrace")

HINT_SPREAD_S = 0.05  # every worker hears the same hint: the first to come does it
EARLY_S = 0.02  # a lock was still there when its time had come: look again
WAIT_LIMIT_S = 5.0  # after so long a wait of ours is left to the scan


class Requeuer:
    def __init__(
        self,
        member: Member,
        link: Link,
        recorder: Recorder,
        recovery: Requeue,
        rules: requeue.Rules,
        *,
        is_mine: Callable[[bytes], bool],
    ) -> None:
        self._member = member
        self._link = link
        self._recorder = recorder
        self._recovery = recovery
        self.rules = rules
        self._is_mine = is_mine
        self._why = requeue.Why("Exhausted", f"its owner died or hung during attempt {recovery.max_attempts}, the last")
        self.lock_ms = member.settings.lease_ms  # the longest of the group, kept right by the lifeline
        self._cursor = "-"
        self._scan_began = 0.0
        self._scan_at = time.monotonic() + spread(self.lock_ms // 2, random.random()) / 1000
        self._hinted: dict[bytes, float] = {}  # id -> when to look
        self._waits: dict[bytes, tuple[float, float]] = {}  # id -> when to look, when to give up
        self._changed = asyncio.Event()
        self._epoch = -1
        self._quiet_until = 0.0
        self._server_ms = 0
        self._server_at = 0.0

    # ── what says where to look ──

    def hint(self, key: str) -> None:
        """A key ran out. If it was a lock of ours, its message may be an orphan."""
        id_ = self._member.keys.locked_id(key)
        if id_ is not None and len(self._hinted) < BATCH_LIMIT * 100:
            self._hinted.setdefault(id_.encode(), time.monotonic() + HINT_SPREAD_S * random.random())
            self._changed.set()

    def expect(self, raw_id: bytes, wait_ms: int) -> None:
        """What I left pending: its lock runs out in so many ms."""
        at = time.monotonic() + wait_ms / 1000
        self._waits[raw_id] = (at, at + WAIT_LIMIT_S)
        self._changed.set()

    # ── the loop ──

    async def run(self) -> None:
        """Recover until cancelled. Raises only what nobody can help."""
        tries = 0
        while True:
            await self._sleep()
            try:
                await self._turn()
                tries = 0
            except NoGroup:
                self._scan_over()  # the reader makes it again
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                if tries == 0:
                    log.warning("requeue.waits stream=%s group=%s: %s", *self._member.labels.values(), error)
                await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=self._link.may_move) / 1000)
                tries += 1

    async def _sleep(self) -> None:
        until = min(
            max(self._scan_at, self._quiet_until),
            max(min(self._hinted.values(), default=self._scan_at), self._quiet_until),
            min((at for at, _ in self._waits.values()), default=self._scan_at),
        )
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    async def _turn(self) -> None:
        if not self._link.is_open:
            await self._link.open()
        if self._link.epoch != self._epoch:
            self._epoch = self._link.epoch
            self._quiet()
        now = time.monotonic()
        await self._look_at_waits(now)
        if now < self._quiet_until:
            return
        await self._look_at_hints(now)
        if now >= self._scan_at:
            await self._scan()

    async def _look_at_waits(self, now: float) -> None:
        due = [id_ for id_, (at, _) in self._waits.items() if at <= now][:BATCH_LIMIT]
        for id_, move in await self._move(due, self.lock_ms):
            _, until = self._waits.pop(id_)
            self._report(id_, move, "")
            if move.kind in ("alive", "fresh") and now < until:
                self._waits[id_] = (now + EARLY_S, until)

    async def _look_at_hints(self, now: float) -> None:
        due = [id_ for id_, at in self._hinted.items() if at <= now][:BATCH_LIMIT]
        # A lock that ran out was taken after its delivery: what is idle for less was renewed by other means.
        for id_, move in await self._move([id_ for id_ in due if not self._is_mine(id_)], self.lock_ms):
            self._report(id_, move, "recovery_keyspace_requeued_total")
        for id_ in due:
            self._hinted.pop(id_, None)

    async def _scan(self) -> None:
        """One page of the pending list."""
        member, recovery = self._member, self._recovery
        # Nobody can have lost a lock that is younger than a lock lives; and what the supervising parent keeps alive for
        # a child that holds the GIL (it cannot lock, but resets the idle clock) is younger than that.
        min_idle_ms = max(recovery.min_idle_ms, self.lock_ms)
        if self._cursor == "-":
            self._scan_began = time.monotonic()
        begun = time.monotonic()
        rows = await self._link.call(
            commands.pending_rows(
                member.keys, member.group, start=self._cursor, count=recovery.batch, min_idle_ms=min_idle_ms
            )
        )
        if self._is_late(begun):
            return  # the same page again, after the quiet
        ids = [row.id.encode() for row in rows]
        mine = [id_ for id_ in ids if self._is_mine(id_)]
        self._count("recovery_scan_skipped_alive_total", len(mine))
        for id_, move in await self._move([id_ for id_ in ids if id_ not in mine], min_idle_ms):
            self._report(id_, move, "recovery_scan_requeued_total")
            self._count("recovery_scan_skipped_alive_total", move.kind == "alive")
        if len(rows) < recovery.batch:
            self._scan_over()
        else:
            self._cursor = f"({rows[-1].id}"

    def _scan_over(self) -> None:
        if self._scan_began:
            took = time.monotonic() - self._scan_began
            self._recorder.observe("recovery_scan_duration_seconds", took, **self._member.labels)
        self._cursor, self._scan_began = "-", 0.0
        self._scan_at = time.monotonic() + spread(self._recovery.interval_ms, random.random()) / 1000

    def _is_late(self, begun: float) -> bool:
        """A slow answer makes recovery wait: live owners' locks may have run out meanwhile, and come first then."""
        late = time.monotonic() - begun > self.lock_ms / 4000
        if late:
            self._quiet()
        return late

    def _quiet(self) -> None:
        self._quiet_until, self._server_ms = time.monotonic() + self.lock_ms / 2000, 0

    # ── the script ──

    async def _move(self, ids: Sequence[bytes], min_idle_ms: int) -> list[tuple[bytes, replies.Move]]:
        if not ids:
            return []
        # The deadline counts from before the question: it may be the answer to that which hangs.
        member, begun = self._member, time.monotonic()
        if self._server_ms == 0:
            self._server_ms, self._server_at = await self._link.call(commands.server_ms()), time.monotonic()
        deadline_ms = self._server_ms + int((begun - self._server_at) * 1000) + self.lock_ms // 4
        call = requeue.requeue(
            member.keys,
            member.group,
            ids,
            self.rules,
            min_idle_ms=min_idle_ms,
            deadline_ms=deadline_ms,
            why=self._why,
        )
        points.reached("requeuer.moving")
        found = await self._link.call(call)
        points.reached("requeuer.moved")
        if found.late:
            self._quiet()
            return []
        self._is_late(begun)
        self._server_ms, self._server_at = found.server_ms, time.monotonic()
        return list(zip(ids, found.moves, strict=True))

    def _report(self, id_: bytes, move: replies.Move, requeued: str) -> None:
        labels, text = self._member.labels, id_.decode()
        if move.kind == "requeued":
            self._count(requeued)
            log.info("message.requeued stream=%s group=%s id=%s copy=%s", *labels.values(), text, move.id)
        elif move.kind == "buried":
            self._count("recovery_dlq_total")
            self._count("buried_total")
            log.warning("message.buried stream=%s group=%s id=%s: its owner died", *labels.values(), text)
        elif move.kind == "trimmed":
            self._count("trimmed_total")
            log.error("message.trimmed stream=%s group=%s id=%s", *labels.values(), text)
        elif move.kind == "kept":
            log.error(
                "message.exhausted stream=%s group=%s id=%s: stays pending, dead letters are off",
                *labels.values(),
                text,
            )

    def _count(self, name: str, n: int = 1) -> None:
        if name and n:
            self._recorder.count(name, n, **self._member.labels)
