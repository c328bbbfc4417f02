"""What is done to the workers and what follows from it: one is killed, one is paused beyond its lease and wakes up.

The story goes by the share of payments that are settled, and is told as it happens. It watches from outside: the
journal of the worker processes, the supervisor's news, and the server.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.deadletters import DeadLetter
from headrace.demo.crew import Crew
from headrace.demo.journal import Journal, Note
from headrace.demo.ledger import Rescue
from headrace.demo.screen import Screen, Staff
from headrace.demo.view import View
from headrace.demo.worker import LEASE_S, MAX_ATTEMPTS

KILL_AT: Final = 0.15  # of all payments
PAUSE_AT: Final = 0.35
PAUSE_S: Final = 2 * LEASE_S
TICK_S: Final = 0.03
STUCK_S: Final = 60.0
LAST_WORDS_S: Final = 3.0  # how long a zombie is given to be refused


class Stuck(Exception):
    """Nothing has happened for a minute, or the supervisor is gone."""


@dataclass(slots=True)
class Blow:
    """A signal that took payments out of a worker's hands."""

    rescue: Rescue
    at: float
    open: set[str]  # held by the worker then, and not started elsewhere yet
    told: bool = False


@dataclass(slots=True)
class Story:
    crew: Crew
    journal: Journal
    view: View
    screen: Screen
    added: Mapping[str, str]  # message id -> key
    killed: Blow | None = None
    paused: Blow | None = None
    woken_at: float = 0.0
    refused: int = 0
    _told_refused: bool = False
    _held: dict[int, set[str]] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)
    _kinds_seen: set[str] = field(default_factory=set)

    @property
    def rescues(self) -> list[Rescue]:
        return [blow.rescue for blow in (self.killed, self.paused) if blow is not None]

    def run(self) -> None:
        """Until every payment is settled or buried and the zombie has been heard. Raises Stuck."""
        moved_at, before = time.monotonic(), -1
        while True:
            self._hear()
            done = self.view.finished()
            self.screen.progress(done, len(self.added))
            self.screen.staff(self._staff())
            self._strike(done / len(self.added))
            self._follow()
            self._hear_zombie()
            if done >= len(self.added) and self._is_over():
                return
            if done != before:
                moved_at, before = time.monotonic(), done
            if time.monotonic() - moved_at > STUCK_S or not self.crew.alive:
                raise Stuck(f"{done:,} of {len(self.added):,} payments are finished, and nothing moves any more")
            time.sleep(TICK_S)

    # ── blows ──

    def _strike(self, share: float) -> None:
        now = time.monotonic()
        if self.killed is None and share >= KILL_AT:
            self.killed = self._blow(signal.SIGKILL)
        elif self.paused is None and share >= PAUSE_AT and self.killed is not None and self.killed.told:
            self.paused = self._blow(signal.SIGSTOP)
        elif self.paused is not None and self.paused.told and not self.woken_at and now - self.paused.at >= PAUSE_S:
            self.woken_at = self.crew.signal(self.paused.rescue.pid, signal.SIGCONT)
            self.screen.say("woken", f"worker {self.paused.rescue.pid} by SIGCONT: it believes it still owns them")

    def _blow(self, number: signal.Signals) -> Blow | None:
        """Strike the worker with the most in its hands; None while they are all idle or starting."""
        busy = [pid for pid in self.crew.pids if self._held.get(pid)]
        if not busy:
            return None
        pid = max(busy, key=lambda one: len(self._held[one]))
        at = self.crew.signal(pid, number)
        self._hear()  # what it had finished by then
        held = set(self._held[pid])
        word, doing = ("killed", "SIGKILL") if number is signal.SIGKILL else ("paused", "SIGSTOP")
        self.screen.say(word, f"worker {pid} by {doing}; it held {_payments(len(held))}")
        return Blow(Rescue(number.name, pid, len(held)), at, held)

    def _follow(self) -> None:
        """Tell when the last payment of a struck worker is in other hands."""
        for blow in (self.killed, self.paused):
            if blow is None or blow.told:
                continue
            if blow.open:
                # what was acknowledged in the very moment of the blow is nobody's to rescue
                blow.open -= self.view.settled_among(blow.open, self.added)
            if not blow.open and not blow.rescue.late_ms:
                self._miss(blow)
            elif not blow.open:
                blow.told = True
                late, lease = max(blow.rescue.late_ms, default=0.0), f", lease {LEASE_S:g} s"
                when = f"{late:.0f} ms later" if blow is self.killed else f"{late / 1000:.1f} s later{lease}"
                self.screen.say(
                    "rescued", f"{_payments(len(blow.rescue.late_ms))} of {blow.rescue.pid}, the last {when}"
                )

    def _miss(self, blow: Blow) -> None:
        """All it held was acknowledged in the very moment of the blow, so there is nothing to tell: strike again."""
        self.screen.say("missed", f"worker {blow.rescue.pid} had finished them in that moment")
        if blow is self.killed:
            self.killed = None
        else:
            self.crew.signal(blow.rescue.pid, signal.SIGCONT)
            self.paused = None

    def _hear_zombie(self) -> None:
        """Tell when whatever the paused worker said after it woke up has been refused."""
        if self.paused is None or not self.woken_at or self._told_refused:
            return
        pid, taken = self.paused.rescue.pid, len(self.paused.rescue.late_ms)
        if self.refused >= taken or time.monotonic() - self.woken_at > LAST_WORDS_S:
            self._told_refused = True
            self.screen.say("refused", f"{self.refused} late outcomes of the zombie {pid}; none took effect")

    def _is_over(self) -> bool:
        """Whether nothing is left to do, and nothing left to be told."""
        struck = self.killed is not None and self.paused is not None  # with very few payments there may be no time
        return (not struck or self._told_refused) and self.view.backlog() == 0

    # ── news ──

    def _hear(self) -> None:
        news = self.crew.news()
        for note in self.journal.news():  # what a worker did comes before its end
            self._heard(note)
        for told in news:
            if told["event"] == "child.started":
                self.screen.say("started", f"worker {told['pid']}")
            elif told["event"] == "child.ended":
                self._held.pop(told["pid"], None)
        for letter in self.view.new_letters():
            self._buried(letter)

    def _heard(self, note: Note) -> None:
        held = self._held.setdefault(note.pid, set())
        if note.what == "start":
            held.add(note.id)
            for blow in (self.killed, self.paused):
                if blow is not None and note.id in blow.open and note.pid != blow.rescue.pid:
                    blow.open.remove(note.id)
                    blow.rescue.late_ms.append((note.at - blow.at) * 1000)
            return
        held.discard(note.id)
        if note.what == "done":
            self._done[note.pid] = self._done.get(note.pid, 0) + 1
        elif note.what == "refused":
            self.refused += 1
        elif note.what == "lethal":
            attempt = f"attempt {note.attempt} of {MAX_ATTEMPTS}"
            self.screen.say("died", f"worker {note.pid} of payment {self.added.get(note.id, note.id)}, {attempt}")

    def _buried(self, letter: DeadLetter) -> None:
        """Tell the first burial of each kind."""
        kind = letter.error or letter.reason
        if kind not in self._kinds_seen:
            self._kinds_seen.add(kind)
            attempts = f"{letter.attempts} attempt{'s' if letter.attempts > 1 else ''}"
            self.screen.say("buried", f"{self.added.get(letter.original_id)} after {attempts}: {letter.reason}")

    def _staff(self) -> list[Staff]:
        paused = self.paused.rescue.pid if self.paused is not None and not self.woken_at else 0
        return [
            Staff(pid, self._done.get(pid, 0), len(self._held.get(pid, ())), paused=pid == paused)
            for pid in self.crew.pids
        ]


def _payments(count: int) -> str:
    return f"{count} payment{'' if count == 1 else 's'}"
