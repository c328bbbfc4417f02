"""The thread that keeps the locks of a GoClient alive, whatever its event loop is doing.

The Go client gives a stream up at the first extension that fails, a network blip too. Here only the server's word
counts: the entry is not pending for me any more, or somebody else's lock is on it. Until it is heard, the thread goes
on trying, and stops only when the loop has stood still for so long that nobody would hear it either.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, Verdict, classify
from headrace.goclient import calls
from headrace.goclient.calls import Said, Seat
from headrace.goclient.protocol import Announcement
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.topology import Node

log = logging.getLogger("headrace")

CHUNK = 200  # locks extended in one write
STALL_S = 60.0  # a loop that stands still for longer keeps nothing


@dataclass(slots=True, eq=False)
class Holding:
    """One entry of the load balancer stream that is mine."""

    id: str
    announcement: Announcement
    held_at: float = field(default_factory=time.monotonic)
    finishing: bool = False  # an outcome was sent: it may have happened, also where no answer arrived


class Holder:
    def __init__(
        self,
        server: Server,
        seat: Seat,
        held: dict[str, Holding],
        *,
        lost: Callable[[Holding], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._server = server
        self._seat = seat
        self._held = held
        self._lost = lost
        self._failed = failed
        self._link = server.sync_link(f"headrace:{seat.consumer}:hold", timeout_ms=max(50, seat.lock_ms // 4))
        self._loop = asyncio.get_running_loop()
        self._pulse_at = time.monotonic()
        self._pulse: asyncio.TimerHandle | None = None
        self._stop = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="headrace-go-hold", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. Stopping twice, or before starting, is fine."""
        self._stop.set()
        if self._pulse is not None:
            self._pulse.cancel()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 5.0)
        self._link.close()

    def _beat(self) -> None:
        self._pulse_at = time.monotonic()
        self._pulse = self._loop.call_later(1.0, self._beat)

    def _run(self) -> None:
        while not self._stop.wait(self._seat.lock_ms / 8000):
            now = time.monotonic()
            if now - self._pulse_at > STALL_S:
                continue
            due = [one for one in list(self._held.values()) if now - one.held_at > self._seat.lock_ms / 3000]
            away: dict[Node | None, HeadraceError] = {}
            try:
                for at in range(0, len(due), CHUNK):
                    self._extend(due[at : at + CHUNK], now, away)
                self._report(*away.values())
            except HeadraceError as error:
                self._report(error)
            except Exception as error:  # noqa: BLE001 - a bug: locks must not run out without a word
                self._stop.set()
                self._tell(self._failed, error)

    def _extend(self, chunk: list[Holding], now: float, away: dict[Node | None, HeadraceError]) -> None:
        """``away``: servers without an answer in this round: not asked again, so that no other lock waits for them."""
        held = self._heard(chunk, calls.hold, lambda one: self._seat.names.stream, away)
        # The entry first (ways.py): who scans looks at it in the step that would take it away.
        there = [one for one in held if not calls.is_apart(self._seat, one.announcement.stream, one.id)]
        apart = [one for one in held if one not in there]
        for one in [*there, *self._heard(apart, calls.lock, self._lock_of, away)]:
            one.held_at = now

    def _lock_of(self, one: Holding) -> str:
        return self._seat.names.lock(one.announcement.stream, one.id)

    def _heard(
        self,
        asked: list[Holding],
        make: Callable[[Seat, str, str], Call[Said]],
        key: Callable[[Holding], str],
        away: dict[Node | None, HeadraceError],
    ) -> list[Holding]:
        """Which of them are still mine by the word of the servers that answer; of what is lost it is told."""
        by_node: dict[Node | None, list[Holding]] = {}
        for one in asked:
            by_node.setdefault(self._server.place(key(one)), []).append(one)
        held: list[Holding] = []
        for node, chunk in by_node.items():
            if node in away:
                continue
            try:
                self._ask(chunk, make, held)
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                away[node] = error
        return held

    def _ask(self, chunk: list[Holding], make: Callable[[Seat, str, str], Call[Said]], held: list[Holding]) -> None:
        """One write to one server. Raises if some have no answer; the others have been heard."""
        failed: HeadraceError | None = None
        answers = self._link.pipe([make(self._seat, one.announcement.stream, one.id) for one in chunk])
        for one, said in zip(chunk, answers, strict=True):
            if isinstance(said, HeadraceError):
                failed = said
            elif said.kind == "ok":
                held.append(one)
            else:
                self._tell(self._lost, one)
        if failed is not None:
            raise failed

    def _report(self, *errors: HeadraceError) -> None:
        if any(classify(error) is Verdict.FATAL for error in errors):
            self._stop.set()
            self._tell(self._failed, errors[0])
        elif errors and not self._failing:
            log.warning("goclient.holding_waits consumer=%s: %s", self._seat.consumer, errors[0])
        self._failing = bool(errors)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stop.set()  # the loop is closed: nobody is left to be told
