"""The lifeline: the thread that renews what this process holds, whatever the event loop is doing (DESIGN 9).

It has its own connection and looks a dozen times a lease: what was last renewed more than a third of a lease ago is
renewed by id, in chunks that keep the script short, and what the server says was taken over is told to the loop. It
tries to reconnect at every look, so that after an outage the renewals come before anybody may rescue (SPEC 20).

It stops renewing when the loop has not turned for ``stall_after``: a process that hangs for good must not keep its
work. What it cannot do is run while native code holds the GIL; under ``headrace run`` the parent renews then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from headrace import points
from headrace.errors import HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.message import Delivery
from headrace.pulse import Pulse, Vigil
from headrace.recorder import Recorder
from headrace.redis import replies, scripts
from headrace.redis.calls import Call, Word
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink
from headrace.slots import Slots

log = logging.getLogger("headrace")

TRIMMED = Word("trimmed")
CHUNK = 200  # ids a renew script takes: about 2 ms of the server (FACTS)
LOOKS = 12  # looks a lease


@dataclass(slots=True)
class Strand:
    """What the lifeline needs of one lane. The callbacks run on the event loop."""

    member: Member
    slots: Slots
    code: CodeType | None  # the handler's code object, to name it when it blocks the loop
    name: str
    lost: Callable[[Delivery[Any], Word], None]
    lease: Callable[[int], None]  # told the group's longest lease
    failed: Callable[[BaseException], None]
    join: Call[replies.Joined]  # enters the owner again when its entry vanished
    renew: Callable[[Sequence[tuple[bytes, int]]], Call[list[Word]]]  # keeps deliveries given as (id, count) alive
    stay_at: float = 0.0


class Lifeline:
    def __init__(
        self,
        server: Server,
        owner: str,
        strands: Sequence[Strand],
        pulse: Pulse,
        recorder: Recorder,
        *,
        tell: Callable[[float], None] | None = None,
    ) -> None:
        self._strands = list(strands)
        self.streams = tuple(strand.member.stream for strand in strands)
        self._pulse = pulse
        self._recorder = recorder
        self._tell = tell
        lease_ms = min(strand.member.settings.lease_ms for strand in strands)
        self._look_s = lease_ms / 1000 / LOOKS
        self._blocked_s = lease_ms / 2000
        self._vigil = Vigil(
            pulse,
            lease_s=lease_ms / 1000,
            stall_s=min(strand.member.settings.stall_after_ms for strand in strands) / 1000,
            names={strand.code: strand.name for strand in strands if strand.code is not None},
            stalled=lambda: recorder.count("stalled_total", 1, **strands[0].member.labels),
        )
        self._link: SyncLink = server.sync_link(f"headrace:{owner}:lifeline", timeout_ms=max(50, lease_ms // 4))
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-lifeline", daemon=True)
        self._failing = False

    @property
    def client_ids(self) -> list[int]:
        return self._link.client_ids

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. Stopping twice, or before starting, is fine."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 5.0)
        self._link.close()

    def cut(self) -> None:
        """Stop renewing at once and without a word, as a crash would (headrace.testing)."""
        self._stop.set()

    # ── the thread ──

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:  # noqa: BLE001 - nothing would be renewed any more, and nobody would know
            self._on_loop(self._strands[0].failed, error)

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._look_at_all(time.monotonic())  # before the first wait: it may have to go on for another one
            self._stop.wait(self._look_s)

    def _look_at_all(self, now: float) -> None:
        if self._tell is not None:
            self._tell(now)
        if self._vigil.is_stalled(now):
            return
        failed: HeadraceError | None = None
        for strand in self._strands:
            if self._stop.is_set():
                return
            try:
                self._look(strand, now)
            except HeadraceError as error:  # another strand's server may well be there
                failed = error
                self._report(error)
        self._failing = failed is not None

    def _look(self, strand: Strand, now: float) -> None:
        settings = strand.member.settings
        due = strand.slots.renewable(now - settings.renew_ms / 1000)
        for at in range(0, len(due), CHUNK):
            self._renew(strand, due[at : at + CHUNK])
        if now - self._pulse.at > self._blocked_s / 2:
            self._renew_unseen(strand)
        if now >= strand.stay_at:
            strand.stay_at = now + settings.renew_ms / 1000  # also if it fails: renewals must not wait for it each time
            self._stay(strand)

    def _renew_unseen(self, strand: Strand) -> None:
        """The loop stands still: what the server has sent and nobody has read yet is renewed by the owner's name."""
        member, start = strand.member, "-"
        while start:
            page = self._link.call(
                scripts.renew_owner(member.keys, member.group, member.owner, member.settings.renew_ms, start, CHUNK)
            )
            start = page.start
            for id_ in page.trimmed:
                self._tell_trimmed(strand, id_)

    def _tell_trimmed(self, strand: Strand, id_: str) -> None:
        """Its entry was deleted, and with the renewal it left the pending list: nobody else can tell of it any more."""
        held = strand.slots.held.get(id_.encode())
        if held is not None:
            self._on_loop(strand.lost, held, TRIMMED)
            return
        labels = strand.member.labels
        self._recorder.count("trimmed_total", 1, **labels)
        log.error("message.trimmed stream=%s group=%s id=%s", labels["stream"], labels["group"], id_)

    def _renew(self, strand: Strand, chunk: list[Delivery[Any]]) -> None:
        member = strand.member
        pairs = [(held.raw_id, held.count) for held in chunk]
        begun = time.monotonic()
        words = self._link.call(strand.renew(pairs))
        points.reached("lifeline.renewed")
        renewed = 0
        for held, word in zip(chunk, words, strict=True):
            if word.kind == "ok":
                held.renewed_at = begun
                renewed += 1
            else:
                self._on_loop(strand.lost, held, word)
        self._recorder.count("renewed_total", renewed, **member.labels)

    def _stay(self, strand: Strand) -> None:
        """Say that this owner lives, and hear the longest lease of the group (SPEC 2, 7b)."""
        member = strand.member
        stay = self._link.call(scripts.stay(member.keys, member.group, member.owner, member.token))
        if stay.missing:
            self._link.call(strand.join)
        elif not stay.mine:
            self._on_loop(strand.failed, stay.taken(member.owner))
        self._on_loop(strand.lease, stay.lease_ms)

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stop.set()  # the loop is closed: nobody is left to be told

    def _report(self, error: HeadraceError) -> None:
        self._recorder.count("renew_failed_total", 1, **self._strands[0].member.labels)
        if classify(error) is Verdict.FATAL:
            self._stop.set()
            for strand in self._strands:
                self._on_loop(strand.failed, error)
        elif not self._failing:
            self._failing = True
            log.warning("lifeline.waits: %s", error)
