"""What the supervising parent does for the deliveries of children that live (DESIGN 9, 11).

It renews what a child holds and cannot renew itself, by its owner's name: nothing is registered, the server knows what
a child holds. Only entries idle for half a lease are touched, so a healthy child, whose own lifeline renews at a third,
costs one look. A child lives if its lifeline's thread has stamped the board lately, or if its CPU time advances (a
handler that computes and holds the GIL), and its loop has turned within ``stall_after``. A paused or hung process shows
neither and is taken over after its lease.

In a cluster there is a thread for each shard: one that is away holds up the renewals at no other.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.redis import ownership, scripts
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink
from headrace.redis.topology import Node
from headrace.ward import Held, Ward, is_alive, tell_trimmed

log = logging.getLogger("headrace")

CHUNK = 200

Look = Callable[[SyncLink, float], None]


class Guardian:
    """Threads of the parent: they renew for the children, whatever the parent is waiting for."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wards: dict[int, Ward] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: dict[Node | None, threading.Thread] = {}
        self._first = threading.Thread(target=self._run, name="headrace-guardian", daemon=True)

    def start(self) -> None:
        self._first.start()

    def stop(self) -> None:
        self._stop.set()
        if self._first.is_alive():
            self._first.join(5.0)
        for thread in self._threads.values():
            thread.join(5.0)

    def watch(self, ward: Ward) -> None:
        with self._lock:
            self._wards[ward.pid] = ward

    def forget(self, pid: int) -> Ward | None:
        with self._lock:
            return self._wards.pop(pid, None)

    def _run(self) -> None:
        """See to it that every master with something to look after has a thread: slots move."""
        while not self._stop.wait(self._look_s()):
            places = {
                self._server.place(held.keys.stream) for ward in self._all() for held in (*ward.lanes, *ward.owned)
            }
            for place in places - self._threads.keys():
                name = "headrace-guardian" if place is None else f"headrace-guardian {place}"
                self._threads[place] = threading.Thread(target=self._guard, args=(place,), name=name, daemon=True)
                self._threads[place].start()

    def _guard(self, place: Node | None) -> None:
        """Look after what is at one master now, again and again."""
        link: SyncLink | None = None
        failing = False
        while not self._stop.wait(self._look_s()):
            failed = False
            for look in [look for ward in self._all() for look in self._looks(ward, place)]:
                link = link or self._dialled()
                try:
                    look(link, time.monotonic())
                except HeadraceError as error:
                    if not (failing or failed):
                        log.warning("guardian.waits: %s", error)
                    failed = True
            failing = failed

    def _all(self) -> list[Ward]:
        with self._lock:
            return list(self._wards.values())

    def _lease_ms(self) -> int:
        """The shortest one."""
        return min((held.lease_ms for ward in self._all() for held in (*ward.lanes, *ward.owned)), default=1_000)

    def _look_s(self) -> float:
        return self._lease_ms() / 1000 / 12

    def _dialled(self) -> SyncLink:
        return self._server.sync_link("headrace:guardian", timeout_ms=max(50, self._lease_ms() // 4))

    def _looks(self, ward: Ward, place: Node | None) -> list[Look]:
        lanes: list[Look] = [
            functools.partial(self._look, ward, index, lane)
            for index, lane in enumerate(ward.lanes)
            if self._server.place(lane.keys.stream) == place
        ]
        owned = (held for held in ward.owned if self._server.place(held.keys.stream) == place)
        return [*lanes, *(functools.partial(self._look_at_owned, ward, held) for held in owned)]

    def _look(self, ward: Ward, index: int, lane: Held, link: SyncLink, now: float) -> None:
        if now < ward.renew_at.get(index, 0.0) or not is_alive(ward, lane, now):
            return
        ward.renew_at[index] = now + lane.lease_ms / 15_000  # at each look, unless another lane's lease sets the pace
        self._renew(ward, lane, link)

    def _look_at_owned(self, ward: Ward, held: Held, link: SyncLink, now: float) -> None:
        # Its own heartbeat stamps the board a dozen times a lease: silent for a third, it cannot run just now.
        if now - ward.board.thread_stamp > held.lease_ms / 3000 and is_alive(ward, held, now):
            link.call(ownership.renew_lease(held.keys, held.group, ward.owner, held.lease_ms))

    def _renew(self, ward: Ward, lane: Held, link: SyncLink) -> None:
        start = "-"
        while start:
            page = link.call(scripts.renew_owner(lane.keys, lane.group, ward.owner, lane.lease_ms // 2, start, CHUNK))
            start = page.start
            tell_trimmed(lane, page.trimmed)
