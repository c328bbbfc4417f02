"""What the supervising parent does for the deliveries of its children (DESIGN 9, 11).

While a child lives, renew what it holds and cannot renew itself, by its owner's name: nothing is registered, the server
knows what a child holds. Only entries idle for half a lease are touched, so a healthy child, whose own lifeline renews
at a third, costs one look. A child lives if its lifeline's thread has stamped the board lately, or if its CPU time
advances (a handler that computes and holds the GIL), and its loop has turned within ``stall_after``. A paused or hung
process shows neither and is taken over after its lease.

When a child has died, hand back what it held, as soon as the server has closed its connections: whatever it had sent
has been heard by then, so finished work is not run again. Started deliveries keep their attempt, the others give it
back.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace import points
from headrace.board import Board
from headrace.errors import HeadraceError, MissingRight, Verdict, classify
from headrace.names import Keys, keys_of
from headrace.policy import crash_delay_ms
from headrace.redis import commands, ownership, scripts
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink

log = logging.getLogger("headrace")

CHUNK = 200
CLOSED_S = 0.1  # how long a dead child's connections may take to be closed by the server
DELAYS = 16  # crash delays told to the script; the last one repeats


@dataclass(frozen=True, slots=True)
class Held:
    """One lane of a child, as its hello told."""

    keys: Keys
    group: str
    lease_ms: int
    stall_after_ms: int
    max_attempts: int
    copies: str = ""  # prefix of the fields that requeued copies have, "" where recovery makes none


@dataclass(slots=True)
class Ward:
    """A child as the guardian sees it."""

    pid: int
    owner: str
    lanes: list[Held]
    board: Board
    owned: list[Held] = field(default_factory=list)  # assignments: one lease for all of a group
    cpu: int = -1
    cpu_at: float = 0.0
    renew_at: dict[int, float] = field(default_factory=dict)


def read_hello(hello: dict[str, object], board: Board) -> Ward:
    """From the hello of a child to what is needed to look after it."""
    lanes = [
        Held(
            keys_of(lane["stream"]),
            lane["group"],
            lane["lease_ms"],
            lane["stall_after_ms"],
            lane["max_attempts"],
            lane["copies"],
        )
        for lane in hello["lanes"]  # type: ignore[attr-defined]
    ]
    owned = [
        Held(keys_of(each["stream"]), each["group"], each["lease_ms"], each["stall_after_ms"], 0)
        for each in hello["owned"]  # type: ignore[attr-defined]
    ]
    return Ward(int(str(hello["pid"])), str(hello["owner"]), lanes, board, owned)


class Guardian:
    """A thread of the parent: it renews for the children, whatever the parent is waiting for."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wards: dict[int, Ward] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-guardian", daemon=True)
        self._link: SyncLink | None = None
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def watch(self, ward: Ward) -> None:
        with self._lock:
            self._wards[ward.pid] = ward

    def forget(self, pid: int) -> Ward | None:
        with self._lock:
            return self._wards.pop(pid, None)

    def _run(self) -> None:
        while not self._stop.wait(self._look_s()):
            with self._lock:
                wards = list(self._wards.values())
            failed = False
            for look in [look for ward in wards for look in self._looks(ward)]:
                try:
                    look(time.monotonic())
                except HeadraceError as error:  # another lane's server may well be there
                    if not (self._failing or failed):
                        log.warning("guardian.waits: %s", error)
                    failed = True
            self._failing = failed

    def _look_s(self) -> float:
        with self._lock:
            leases = [held.lease_ms for ward in self._wards.values() for held in (*ward.lanes, *ward.owned)]
        return min(leases, default=1_000) / 1000 / 12

    def _looks(self, ward: Ward) -> list[Callable[[float], None]]:
        lanes = [functools.partial(self._look, ward, index, lane) for index, lane in enumerate(ward.lanes)]
        return [*lanes, *(functools.partial(self._look_at_owned, ward, held) for held in ward.owned)]

    def _look(self, ward: Ward, index: int, lane: Held, now: float) -> None:
        if now < ward.renew_at.get(index, 0.0) or not is_alive(ward, lane, now):
            return
        ward.renew_at[index] = now + lane.lease_ms / 15_000  # at each look, unless another lane's lease sets the pace
        self._renew(ward, lane)

    def _look_at_owned(self, ward: Ward, held: Held, now: float) -> None:
        # Its own heartbeat stamps the board a dozen times a lease: silent for a third, it cannot run just now.
        if now - ward.board.thread_stamp > held.lease_ms / 3000 and is_alive(ward, held, now):
            self._dialled(ward).call(ownership.renew_lease(held.keys, held.group, ward.owner, held.lease_ms))

    def _dialled(self, ward: Ward) -> SyncLink:
        if self._link is None:
            lease_ms = min(held.lease_ms for held in (*ward.lanes, *ward.owned))
            self._link = self._server.sync_link("headrace:guardian", timeout_ms=max(50, lease_ms // 4))
        return self._link

    def _renew(self, ward: Ward, lane: Held) -> None:
        link, start = self._dialled(ward), "-"
        while start:
            page = link.call(scripts.renew_owner(lane.keys, lane.group, ward.owner, lane.lease_ms // 2, start, CHUNK))
            start = page.start
            _tell_trimmed(lane, page.trimmed)


def is_alive(ward: Ward, lane: Held, now: float) -> bool:
    """Whether a child shows a sign of life, within what its lane allows."""
    cpu = cpu_ticks(ward.pid)
    if cpu != ward.cpu:
        ward.cpu, ward.cpu_at = cpu, now
    if now - ward.board.loop_stamp > lane.stall_after_ms / 1000:
        return False
    fresh_s = lane.lease_ms / 3000
    return now - ward.board.thread_stamp < fresh_s or now - ward.cpu_at < fresh_s


def cpu_ticks(pid: int) -> int:
    """CPU time of a process in clock ticks, -1 where it cannot be told (then only the stamps count)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return -1
    fields = stat.rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


# ── after a death ──


def adopt(link: SyncLink, ward: Ward) -> int:
    """Hand back what a dead child held. Answers how many deliveries; raises what the caller may retry."""
    handed, failed = 0, None
    for index, lane in enumerate(ward.lanes):
        try:
            handed += _adopt_lane(link, ward, index, lane)
        except HeadraceError as error:  # another lane's server may well be there
            failed = failed or error
    for held in ward.owned:
        try:
            link.call(ownership.end_lease(held.keys, held.group, ward.owner))  # heirs look five times a second
        except HeadraceError as error:
            failed = failed or error
    log.warning("owner.died owner=%s pid=%d: %d deliveries handed back", ward.owner, ward.pid, handed)
    if failed is not None:
        raise failed
    return handed


def _adopt_lane(link: SyncLink, ward: Ward, index: int, lane: Held) -> int:
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
        _tell_trimmed(lane, adopted.trimmed)
        if adopted.seen < CHUNK:
            break
    points.reached("guardian.adopted")
    link.call(scripts.remove_owner(lane.keys, lane.group, ward.owner, 0))
    return handed


def _tell_trimmed(lane: Held, ids: list[str]) -> None:
    for id_ in ids:
        log.error("message.trimmed stream=%s group=%s id=%s", lane.keys.stream, lane.group, id_)


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


def worth_retrying(error: HeadraceError) -> bool:
    return classify(error) is Verdict.RETRY
