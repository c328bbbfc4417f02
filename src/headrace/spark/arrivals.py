"""Waits for new entries in many streams, without taking any.

One server is asked once, and waits itself (XREAD BLOCK). In a cluster such a call may name streams of one slot only: up
to 16 slots have a connection each, on which their master waits; streams of more slots are asked for again and again,
each server in one write, after pauses that grow while nothing comes.

A call that waits is answered with one entry. One that finds many streams with news at once brings an entry of each, and
entries may be large: so many streams are asked first without waiting, so few at a time that the answers stay small.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping
from socket import socket
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.redis.calls import Call, as_is, text
from headrace.redis.synclink import SyncLink
from headrace.redis.topology import slot_of
from headrace.spark.offsets import parse_id
from headrace.spark.options import Address
from headrace.spark.pace import Pace, weight
from headrace.spark.state import ANSWER_BYTES
from headrace.spark.wire import Wire

POLL_S: Final = 0.02  # the first pause, which a message may wait where nobody can wait for it
LONGER: Final = 2  # times the pause before
CONNECTIONS: Final = 16
FEW: Final = 250  # streams that may all answer at once

Ids = Mapping[str, str]


class Arrivals:
    """What one driver waits with: its link, and in a cluster connections beside it."""

    def __init__(self, address: Address, link: SyncLink) -> None:
        self._address = address
        self._link = link
        self._server = address.server()
        self._pace = Pace(ANSWER_BYTES)
        self._pause_s = POLL_S
        self._lookouts: dict[int, Lookout] = {}

    def wait(self, last_ids: Ids, wait_ms: int) -> set[str]:
        """The streams that have entries behind these ids, as soon as there are some, at the latest after ``wait_ms``.

        Where it was asked to wait it may name fewer than there are.
        """
        slots: dict[int, dict[str, str]] = {}
        for key, id_ in last_ids.items():
            slots.setdefault(self._slot(key), {})[key] = id_
        if len(slots) > CONNECTIONS:
            return self._poll(last_ids, wait_ms)
        if len(last_ids) > FEW or not wait_ms:
            found = self._now(last_ids)
            if found or not wait_ms:
                return found
        if len(slots) > 1:
            try:
                return self._watch(slots, wait_ms)
            except HeadraceError:
                self.close()  # what cut one off may have cut them all, and finding out one by one takes a try each
                raise
        return _found(self._link.call(Call(_read(last_ids, wait_ms), as_is))) if last_ids else set()

    def close(self) -> None:
        for lookout in self._lookouts.values():
            lookout.close()
        self._lookouts.clear()

    def _slot(self, key: str) -> int:
        return slot_of(key) if self._link.spreads else 0

    def _now(self, last_ids: Ids) -> set[str]:
        """Ask every stream once."""
        found: set[str] = set()
        for some in self._pace.parts(last_ids):
            slots: dict[int, dict[str, str]] = {}
            for key in some:
                slots.setdefault(self._slot(key), {})[key] = last_ids[key]
            answers = self._link.pipe([Call(_read(ids, 0), as_is) for ids in slots.values()])
            for answer in answers:
                if isinstance(answer, HeadraceError):
                    raise answer
                found |= _found(answer)
            self._pace.learn(len(some), weight(answers))
        return found

    def _poll(self, last_ids: Ids, wait_ms: int) -> set[str]:
        """Ask again and again. At rest that comes to one question each ``wait_ms``: the pause outlives this call."""
        until = time.monotonic() + wait_ms / 1000
        while True:
            found = self._now(last_ids)
            if found:
                self._pause_s = POLL_S
                return found
            left_s = until - time.monotonic()
            time.sleep(max(0.0, min(self._pause_s, left_s)))
            if self._pause_s >= left_s:
                self._pause_s = min(self._pause_s, max(POLL_S, wait_ms / 1000)) * LONGER
                return set()
            self._pause_s *= LONGER

    def _watch(self, slots: Mapping[int, Ids], wait_ms: int) -> set[str]:
        """Have the master of each slot wait. A question that is still open is not asked again."""
        for slot in self._lookouts.keys() - slots.keys():
            self._lookouts.pop(slot).close()
        until = time.monotonic() + wait_ms / 1000
        while True:
            left_s = until - time.monotonic()
            with selectors.DefaultSelector() as waiting:
                for slot, last_ids in slots.items():
                    lookout = self._lookouts.get(slot)
                    if lookout is None:
                        lookout = self._lookouts[slot] = Lookout(self._wire())
                    waiting.register(lookout.ask(last_ids, wait_ms), selectors.EVENT_READ, (lookout, last_ids))
                ready = [one.data for one, _ in waiting.select(max(0.0, left_s))]
            found = {key for lookout, last_ids in ready for key in lookout.answer(last_ids)}
            if found or left_s <= 0:
                return found

    def _wire(self) -> Wire:
        return Wire(self._address, "headrace-spark-lookout", server=self._server)


class Lookout:
    """One connection on which a server waits for entries in the streams of one slot."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asked: Ids = {}
        self._until = 0.0  # when the open question must have been answered

    def ask(self, last_ids: Ids, wait_ms: int) -> socket:
        """Ask, unless a question is open that will do; answers the socket to wait at.

        One from an earlier id does: had there been something behind it, it would be answered. One from a later id does
        not, nor one that has been open for too long: whoever was to answer has gone.
        """
        if self._wire.waiting and not self._will_do(last_ids):
            self._wire.close()
        if not self._wire.waiting:
            self._wire.send([_read(last_ids, wait_ms)])
            self._asked, self._until = last_ids, time.monotonic() + wait_ms / 1000 + self._wire.timeout_s
        return self._wire.socket

    def _will_do(self, last_ids: Ids) -> bool:
        if time.monotonic() > self._until or self._asked.keys() != last_ids.keys():
            return False
        return all(parse_id(self._asked[key]) <= parse_id(id_) for key, id_ in last_ids.items())

    def answer(self, last_ids: Ids) -> set[str]:
        """Take the answer: the streams with entries behind the ids of now."""
        (reply,) = self._wire.receive().values()
        if isinstance(reply, Exception):  # asked again over the link, which knows what it means, as a slot that moved
            reply = self._wire.link.call(Call(_read(last_ids, 0), as_is))
        return {
            text(key)
            for key, entries in reply or ()
            if any(parse_id(text(id_)) > parse_id(last_ids[text(key)]) for id_, _ in entries)
        }

    def close(self) -> None:
        self._wire.close()


def _read(last_ids: Ids, wait_ms: int) -> tuple[str | int, ...]:
    block = ("BLOCK", wait_ms) if wait_ms else ()
    return ("XREAD", "COUNT", 1, *block, "STREAMS", *last_ids, *last_ids.values())


def _found(reply: Any) -> set[str]:
    return {text(key) for key, _ in reply or ()}
