"""Whether what a server says about leases can be trusted just now (SPEC 20).

A lease that has ended says that its owner is gone, unless it was the server that was away: then it ended under a live
owner, whose next renewal is on its way. So nobody goes by an ended lease

    for a while after a connect: renewals come first then
    for a while after two answers that were half a lease apart: the server stood still between them, or this process did
    and cannot tell
    while no answer has come for half a lease

and what is sent in trust carries the server time after which it does nothing, because it may lie in the socket of a
server that stands still. A live owner renews often enough to have half a lease left at any time, so an outage that is
shorter than that costs nobody a lease.

Whoever uses it has to hear from the server several times in half a lease.
"""

from __future__ import annotations

import asyncio
import math
import time

from headrace.redis.link import Link

LOOKS = 4  # a lease: how often whoever has nothing else to ask looks at the server's clock


class Trust:
    """What is heard over one link. ``quiet_ms`` is how long live owners need to renew once the server is back."""

    def __init__(self, link: Link, lease_ms: int, *, quiet_ms: int) -> None:
        self._link = link
        self._lease_s = lease_ms / 1000
        self._quiet_s = quiet_ms / 1000
        self._epoch = -1
        self._server_ms = 0
        self._heard_at = -math.inf
        self._quiet_until = -math.inf

    def heard(self, server_ms: int) -> None:
        """An answer came just now, with the server's clock in it."""
        now = time.monotonic()
        if self._link.epoch != self._epoch or now - self._heard_at > self._lease_s / 2:
            self._epoch = self._link.epoch
            self._quiet_until = now + self._quiet_s
        self._server_ms, self._heard_at = server_ms, now

    @property
    def until_ms(self) -> int:
        """The server time until which a lease that has ended means that its owner is gone. 0: it means nothing now."""
        now = time.monotonic()
        if now < self._quiet_until or now - self._heard_at > self._lease_s / 2:
            return 0
        if self._link.epoch != self._epoch or not self._link.is_open:
            return 0
        return self._server_ms + int((now - self._heard_at + self._lease_s / 4) * 1000)

    async def pause(self) -> None:
        """Let the time pass after which it is worth asking again."""
        await asyncio.sleep(max(self._lease_s / 8, self._quiet_until - time.monotonic()))
