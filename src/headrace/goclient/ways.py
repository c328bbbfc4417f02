"""What the protocol asks for, over one link: in one step, or in as few as the slots of a cluster allow.

The entry, its lock and the dead letters of the protocol have names of their own: in a cluster they are in three slots,
unless one {tag} is in all of them, and nothing about two slots can be one step. What is done instead:

    hold      the entry's slot first: pending for me, idle clock reset, a lock beside the entry; then the other lock
    done      acked and deleted before the protocol's lock goes
    requeue   the protocol's lock is looked at first; idle clock and the lock beside the entry in the step that appends
              and acks. An owner of ours that is alive has renewed both, so it is not robbed in between. One of a Go pod
              renews neither: between the two looks there is the moment that its own scan has, too. A server that was
              silent for longer in between makes it "unsure" (SPEC 20)
    bury      to {<service>-input}:dlq in that step, and from there to the protocol's dead letters: append, then delete.
              A crash between the two leaves it in both, never in none
"""

from __future__ import annotations

from typing import Any

from headrace.goclient import calls
from headrace.goclient.calls import Said, Seat, Way
from headrace.redis.link import Link
from headrace.redis.replies import Move
from headrace.redis.trust import Trust


class Ways:
    def __init__(self, seat: Seat, link: Link, trust: Trust, *, maxlen: int) -> None:
        self._seat = seat
        self._link = link
        self._trust = trust
        self._maxlen = maxlen

    async def hold(self, stream: str, id_: str) -> Said:
        said = await self._link.call(calls.hold(self._seat, stream, id_))
        if said.kind == "ok" and calls.is_apart(self._seat, stream, id_):
            said = await self._link.call(calls.lock(self._seat, stream, id_))
        return said

    async def done(self, stream: str, id_: str) -> Said:
        apart = calls.is_apart(self._seat, stream, id_)
        if apart and (holder := await self._holder(stream, id_)) not in ("", self._seat.value):
            return Said("locked", holder)
        said = await self._link.call(calls.done(self._seat, stream, id_))
        if apart and said.kind in ("ok", "gone"):
            await self._link.call(calls.unlock(self._seat, stream, id_))
        return said

    async def requeue(self, stream: str, id_: str, way: Way, **limits: Any) -> Move:
        """Append it again, or bury it. ``stream`` "": the entry names none, so there is no lock either."""
        apart, until_ms = stream != "" and calls.is_apart(self._seat, stream, id_), self._trust.until_ms
        if apart:
            holder = await self._holder(stream, id_)
            if way == "retry" and holder:
                return Move("alive")
            if way == "release" and holder not in ("", self._seat.value):
                return Move("taken", holder=holder)
            until_ms = min(until_ms, self._trust.until_ms)
        limits = {"maxlen": self._maxlen, "until_ms": until_ms, **limits}
        move = await self._link.call(calls.requeue(self._seat, stream, id_, way, **limits))
        if apart and way == "release" and move.kind in ("requeued", "buried"):
            await self._link.call(calls.unlock(self._seat, stream, id_))
        if move.kind == "buried":
            await self.deliver_letters()
        return move

    async def deliver_letters(self) -> None:
        """Bring what was buried in the entry's slot to where the protocol has its dead letters."""
        while calls.buries_apart(self._seat):
            letters = await self._link.call(calls.letters(self._seat))
            for id_, fields in letters:
                await self._link.call(calls.append_letter(self._seat, fields, self._maxlen))
                await self._link.call(calls.drop_letter(self._seat, id_))
            if not letters:
                return

    async def _holder(self, stream: str, id_: str) -> str:
        return await self._link.call(calls.holder(self._seat, stream, id_))
