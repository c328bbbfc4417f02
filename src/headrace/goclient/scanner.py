"""The Go client's reconciliation scan: entries that nobody has a lock on go back into the pool.

The same settings and the same decision, with two differences: looking at the lock, appending, acking and deleting are
one step, so nothing falls out between two of them; and the scan follows its cursor, so that a first page of live owners
does not hide the orphans behind it.

Nobody goes by a missing lock within a lock's life after a connect, or after the server stood still: live owners lock
first then (SPEC 20). So the server's clock is looked at four times in a lock's life, whether there is a scan or not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Container
from dataclasses import dataclass

from headrace.errors import DecodeError, HeadraceError, NoGroup, Verdict, classify
from headrace.goclient import calls, protocol
from headrace.goclient.calls import Seat
from headrace.goclient.protocol import Announcement
from headrace.goclient.ways import Ways
from headrace.recorder import Recorder
from headrace.redis.link import Link
from headrace.redis.replies import Move
from headrace.redis.trust import LOOKS, Trust

log = logging.getLogger("headrace")

JITTER = 0.1  # of the interval, on top


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The Go client's RecoveryConfig."""

    interval_ms: int = protocol.INTERVAL_MS
    min_idle_ms: int = protocol.MIN_IDLE_MS
    batch: int = protocol.BATCH
    max_retries: int = protocol.MAX_RETRIES
    dead_letters_maxlen: int = protocol.DEAD_LETTERS_MAXLEN


class Scanner:
    def __init__(
        self,
        seat: Seat,
        link: Link,
        ways: Ways,
        trust: Trust,
        rules: Rules,
        recorder: Recorder,
        mine: Container[str],
    ) -> None:
        self._seat = seat
        self._link = link
        self._ways = ways
        self._trust = trust
        self._rules = rules
        self._recorder = recorder
        self._mine = mine
        self._labels = {"stream": seat.names.stream, "group": seat.names.group}

    async def watch(self) -> None:
        """Hear from the server often enough to know when it was away. Raises what nobody can help."""
        while True:
            try:
                self._trust.heard(await self._link.call(calls.server_ms(self._seat)))
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
            await asyncio.sleep(self._seat.lock_ms / 1000 / LOOKS)

    async def run(self) -> None:
        """Scan once, then at every interval. A scan that fails says nothing about any owner."""
        while True:
            try:
                while not await self.scan():
                    await self._trust.pause()
            except NoGroup:
                log.debug("goclient.scan: no group yet")
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                log.warning("goclient.scan_waits stream=%s: %s", self._seat.names.stream, error)
            await asyncio.sleep(self._rules.interval_ms / 1000 * (1 + JITTER * random.random()))

    async def scan(self) -> bool:
        """Look at everything once. False: locks cannot be trusted just now, and some was left as it is."""
        if not self._trust.until_ms:
            return False
        begun, cursor = time.monotonic(), "-"
        await self._ways.deliver_letters()  # of whoever died before it could
        while cursor:
            rows = await self._link.call(
                calls.pending(self._seat, cursor, self._rules.batch, min_idle_ms=self._rules.min_idle_ms)
            )
            for row in rows:
                if row.id not in self._mine:
                    move = await self.recover(row.id, self._rules.min_idle_ms)
                    if move.kind == "unsure":
                        return False
                    self._report(row.id, move)
            cursor = f"({rows[-1].id}" if len(rows) == self._rules.batch else ""
        self._recorder.observe("recovery_scan_duration_seconds", time.monotonic() - begun, **self._labels)
        return True

    async def recover(self, id_: str, min_idle_ms: int) -> Move:
        """Requeue one entry if nobody is on it. What cannot be read goes to the dead letters, for everybody.

        "unsure": nobody has a lock on it, which says nothing just now.
        """
        rules = self._rules
        found = await self._link.call(calls.entry(self._seat, id_))
        try:
            stream = Announcement.read(found[0][1]).stream if found else ""
        except DecodeError:
            return await self.bury(id_)
        return await self._ways.requeue(stream, id_, "retry", min_idle_ms=min_idle_ms, max_retries=rules.max_retries)

    async def bury(self, id_: str) -> Move:
        """An entry that nobody can read."""
        return await self._ways.requeue("", id_, "unparseable")

    def _report(self, id_: str, move: Move) -> None:
        counters = {
            "requeued": "recovery_scan_requeued_total",
            "alive": "recovery_scan_skipped_alive_total",
            "buried": "recovery_dlq_total",
            "trimmed": "trimmed_total",
        }
        if move.kind in counters:
            self._recorder.count(counters[move.kind], 1, **self._labels)
            log.info("goclient.%s stream=%s id=%s to=%s", move.kind, self._seat.names.stream, id_, move.id or "-")
