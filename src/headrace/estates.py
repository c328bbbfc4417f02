"""The estates of dead children: what the supervising parent hands back of what they held (DESIGN 11).

Deliveries are handed back as soon as the server has closed the child's connections: whatever it had sent has been heard
by then, so finished work is not run again. Started ones keep their attempt, the others give it back. The lease on owned
streams ends at once: an ack still on its way is refused. It is done in a thread: while a server does not answer,
the parent still starts children and passes signals on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace import points
from headrace.errors import HeadraceError, MissingRight, Unavailable, Verdict, classify
from headrace.policy import crash_delay_ms
from headrace.redis import commands, ownership, scripts
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink
from headrace.ward import Held, Ward, tell_trimmed

log = logging.getLogger("headrace")

CHUNK = 200
CLOSED_S = 0.1  # how long a dead child's connections may take to be closed by the server
DELAYS = 16  # crash delays told to the script; the last one repeats
TRIED_S = 60.0  # how long it is tried; the lease ends the need for it
AGAIN_S = 0.1  # before the next try
ANSWER_MS = 1_000  # a server that takes longer is asked again later: others wait behind it
LAST_S = 5.0  # how long the end waits for the last tries


@dataclass(slots=True, eq=False)
class Estate:
    """What is still to be handed back of one child."""

    ward: Ward
    until: float
    lanes: dict[int, Held] = field(default_factory=dict)
    owned: list[Held] = field(default_factory=list)
    handed: int = 0


class Estates:
    def __init__(self, server: Server, told: Callable[[str, dict[str, Any]], None]) -> None:
        self._server = server
        self._told = told
        self._link = server.sync_link(
            "headrace:supervisor", timeout_ms=min(ANSWER_MS, server.settings.command_timeout_ms)
        )
        self._left: list[Estate] = []
        self._stop = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-estates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Try once more what is left, and end."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LAST_S)

    def take(self, ward: Ward) -> None:
        estate = Estate(ward, time.monotonic() + TRIED_S, dict(enumerate(ward.lanes)), list(ward.owned))
        self._left.append(estate)
        self._wake.set()

    @property
    def of_a_name_in_use(self) -> bool:
        """Whether there is one of a name that the next child will have, too: nobody could tell what is whose."""
        return any(estate.ward.fixed for estate in list(self._left))

    # ── the thread ──

    def _run(self) -> None:
        last = False
        while not last:
            self._wake.wait(AGAIN_S if self._left else None)
            self._wake.clear()
            last = self._stop
            for estate in list(self._left):
                if self._is_over(estate, last=last):
                    self._left.remove(estate)
        self._link.close()

    def _is_over(self, estate: Estate, *, last: bool) -> bool:
        """One try. Whether nothing more is to be tried."""
        ward = estate.ward
        error = self._tried(estate)
        if error is None:
            log.warning("owner.died owner=%s pid=%d: %d deliveries handed back", ward.owner, ward.pid, estate.handed)
            self._told("owner.adopted", {"owner": ward.owner, "deliveries": estate.handed})
            return True
        if classify(error) is Verdict.RETRY and time.monotonic() < estate.until and not last:
            return False
        log.warning("owner.not_adopted owner=%s: %s; a sibling takes over after one lease", ward.owner, error)
        return True

    def _tried(self, estate: Estate) -> HeadraceError | None:
        """Hand back what can be. A server that gave no answer is not asked for the next lane, others are."""
        failed: HeadraceError | None = None
        away: set[object] = set()
        for index, lane in list(estate.lanes.items()):
            place = self._server.place(lane.keys.stream)
            if place in away:
                continue
            try:
                estate.handed += _adopt(self._link, estate.ward, index, lane)
                del estate.lanes[index]
            except HeadraceError as error:
                failed = failed or error
                away.update([place] if isinstance(error, Unavailable) else [])
        for held in list(estate.owned):
            place = self._server.place(held.keys.stream)
            if place in away:
                continue
            try:
                # heirs look five times a second
                self._link.call(ownership.end_lease(held.keys, held.group, estate.ward.owner))
                estate.owned.remove(held)
            except HeadraceError as error:
                failed = failed or error
                away.update([place] if isinstance(error, Unavailable) else [])
        return failed


def _adopt(link: SyncLink, ward: Ward, index: int, lane: Held) -> int:
    _wait_until_closed(link, ward, lane.keys.stream)
    points.reached("guardian.adopting")
    handed = 0
    started = ward.board.started(index)
    delays = [crash_delay_ms(attempt, lane.max_attempts) for attempt in range(1, DELAYS + 1)]
    while True:
        adopted = link.call(
            scripts.adopt(
                lane.keys,
                lane.group,
                ward.owner,
                started,
                delays,
                alone_at=lane.max_attempts - 1,
                prefix=lane.copies,
                chunk=CHUNK,
            )
        )
        handed += adopted.seen
        tell_trimmed(lane, adopted.trimmed)
        if adopted.seen < CHUNK:
            break
    points.reached("guardian.adopted")
    link.call(scripts.remove_owner(lane.keys, lane.group, ward.owner, 0))
    return handed


def _wait_until_closed(link: SyncLink, ward: Ward, stream: str) -> None:
    """Until then an ack that the child sent may still be on its way, to the server that holds the stream."""
    deadline, clients = time.monotonic() + CLOSED_S, ward.board.clients()
    look = commands.still_connected(clients, ward.owner).aimed(stream)
    while clients and time.monotonic() < deadline:
        try:
            if not link.call(look):
                return
        except MissingRight:
            time.sleep(CLOSED_S)
            return
        time.sleep(0.002)
