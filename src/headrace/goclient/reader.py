"""The reader of a GoClient: entries of the load balancer stream in, locked ones out.

What was read is pending for this consumer, and is its own only once it is locked. So nothing more is read while
something is left to be locked: without a lock it is an orphan to everybody who scans, and costs a retry.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable

from headrace.errors import DecodeError, HeadraceError, NoGroup, Verdict, classify
from headrace.goclient import calls
from headrace.goclient.calls import Seat
from headrace.goclient.holder import Holding
from headrace.goclient.protocol import Announcement
from headrace.goclient.ways import Ways
from headrace.policy import reconnect_delay_ms
from headrace.redis.link import Link

log = logging.getLogger("headrace")

READ_LIMIT = 100  # entries read at once: the Go client takes all there are
BLOCK_MS = 1_000


class Reader:
    def __init__(
        self,
        seat: Seat,
        link: Link,
        ways: Ways,
        held: dict[str, Holding],
        *,
        limit: int,
        added: Callable[[Holding], None],
        bury: Callable[[str], Awaitable[object]],
        regroup: Callable[[], Awaitable[None]],
    ) -> None:
        self._seat = seat
        self._link = link
        self._ways = ways
        self._held = held
        self._limit = limit
        self._added = added
        self._bury = bury
        self._regroup = regroup
        self._freed = asyncio.Event()
        self._groupless = False  # the server said NOGROUP
        self._unsure_until = 0.0  # a read's answer did not arrive: until then it may have brought something
        self.unheld: deque[tuple[str, list[bytes]]] = deque()  # read and not yet locked: (id, fields)
        self.blocked = False
        self.stopping = False

    def freed(self) -> None:
        """There is room for one more."""
        self._freed.set()

    def stop(self) -> None:
        """Read nothing more. A read under way ends by itself or by CLIENT UNBLOCK, and its answer is still taken."""
        self.stopping = True
        self._freed.set()

    async def run(self) -> None:
        """Read until stopped. Raises only what nobody can help."""
        tries = 0
        while not self.stopping:
            try:
                await self._turn()
                tries = 0
            except NoGroup:
                self._groupless = True
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                if tries in (0, 5) or tries % 20 == 0:
                    log.warning(
                        "goclient.reader_waits stream=%s tries=%d: %s", self._seat.names.stream, tries + 1, error
                    )
                await asyncio.sleep(self._delay_ms(tries) / 1000)
                tries += 1

    def _delay_ms(self, tries: int) -> int:
        delay_ms = reconnect_delay_ms(tries, random.random(), may_move=self._link.may_move)
        # Once the server is back, others leave it alone for a lock's life (SPEC 20): lock it before that is over.
        return min(delay_ms, self._seat.lock_ms // 8) if self.unheld else delay_ms

    async def _turn(self) -> None:
        if self._groupless:
            await self._regroup()
            self._groupless = False
        await self._take_all()
        free = self._limit - len(self._held)
        if free <= 0:
            self._freed.clear()
            if not self.stopping:
                await self._freed.wait()
            return
        if self._unsure_until:
            await self._find()
        self.blocked = True
        try:
            read = calls.read(self._seat, min(free, READ_LIMIT), BLOCK_MS)
            entries = await self._link.call(read, wait_ms=BLOCK_MS)
        except HeadraceError:
            self._unsure_until = time.monotonic() + BLOCK_MS / 1000
            raise
        finally:
            self.blocked = False
        self.unheld.extend((raw_id.decode(), fields) for raw_id, fields, *_ in entries)
        await self._take_all()

    async def _find(self) -> None:
        """What a read brought whose answer did not arrive: pending for me, and not known to me.

        The read may still be blocked over there and bring something to nobody: asked until that is over, too.
        """
        after, is_over = "-", time.monotonic() > self._unsure_until
        while rows := await self._link.call(calls.mine(self._seat, after)):
            for row in rows:
                if row.id not in self._held:
                    entries = await self._link.call(calls.entry(self._seat, row.id))
                    self.unheld.extend((raw_id.decode(), fields) for raw_id, fields in entries)
            await self._take_all()
            after = f"({rows[-1].id}"
        if is_over:
            self._unsure_until = 0.0

    async def _take_all(self) -> None:
        """Lock what was read. One that fails goes behind the others, and is tried again."""
        while self.unheld:
            id_, fields = self.unheld.popleft()
            try:
                await self._take(id_, fields)
            except BaseException:
                self.unheld.append((id_, fields))
                raise

    async def _take(self, id_: str, fields: list[bytes]) -> None:
        try:
            announcement = Announcement.read(fields)
        except DecodeError as error:
            log.warning("goclient.unparseable stream=%s id=%s: %s", self._seat.names.stream, id_, error)
            await self._bury(id_)
            return
        said = await self._ways.hold(announcement.stream, id_)
        if said.kind != "ok":
            log.warning("goclient.not_mine stream=%s id=%s: %s", announcement.stream, id_, said)
            return
        self._held[id_] = holding = Holding(id_, announcement)
        self._added(holding)
