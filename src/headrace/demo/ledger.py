"""The ledger: what was added against what became of it. It adds up, or the demo fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from headrace.deadletters import DeadLetter
from headrace.demo.payments import Kind, Sending

TROUBLE: tuple[Kind, ...] = ("undecodable", "poison", "lethal")


@dataclass(slots=True)
class Rescue:
    """Payments of one worker that were started elsewhere, and how long after the blow, in ms."""

    blow: str  # SIGKILL or SIGSTOP
    pid: int
    held: int
    late_ms: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "blow": self.blow,
            "held": self.held,
            "rescued": len(self.late_ms),
            "p50_ms": round(median(self.late_ms), 1) if self.late_ms else None,
            "max_ms": round(max(self.late_ms), 1) if self.late_ms else None,
        }


@dataclass(slots=True)
class Ledger:
    """Made from what the producer sent, and from what the server holds at the end."""

    sent: Sequence[Sending]
    added: Mapping[str, str]  # message id -> key, of the adds that the server took
    settled: Mapping[str, int]  # payment -> how often
    totals: Mapping[str, int]  # currency -> cents
    letters: Sequence[DeadLetter]
    backlog: int  # unread, pending or waiting at the end
    refused: int  # outcomes of zombies
    taken_over: int  # payments of the paused worker that others have started
    rescues: Sequence[Rescue]
    seconds: float

    @property
    def duplicates_refused(self) -> int:
        return len(self.sent) - len(self.added)

    @property
    def handled_once(self) -> int:
        return sum(count == 1 for count in self.settled.values())

    @property
    def handled_twice(self) -> int:
        return sum(count > 1 for count in self.settled.values())

    def buried(self, kind: Kind) -> int:
        """Dead letters of one kind of trouble."""
        wanted = {sending.key for sending in self.sent if sending.kind == kind}
        return sum(self.added.get(letter.original_id) in wanted for letter in self.letters)

    def problems(self) -> list[str]:
        """Everything that does not add up, a sentence each."""
        accounted = self.handled_once + len(self.letters)
        checks = {
            f"{len(self.added):,} were added, but {accounted:,} are accounted for": len(self.added) == accounted,
            f"{self.handled_twice:,} were settled twice": self.handled_twice == 0,
            f"{self.backlog:,} are still unread, pending or waiting": self.backlog == 0,
            "duplicates were added, or originals refused": sorted(self.added.values()) == self._keys_wanted(),
            "the settled payments are not the good ones": set(self.settled) == self._keys_of("good"),
            "the dead letters are not the troubled payments": self._keys_buried() == self._keys_of(*TROUBLE),
            "the amounts settled are not those of the good payments": dict(self.totals) == self._totals_wanted(),
            "a zombie was taken over, but nothing of it was refused": self.refused > 0 or not self.taken_over,
        }
        return [sentence for sentence, holds in checks.items() if not holds]

    def as_dict(self) -> dict[str, Any]:
        return {
            "sent": len(self.sent),
            "duplicates_refused": self.duplicates_refused,
            "added": len(self.added),
            "handled_once": self.handled_once,
            "handled_twice": self.handled_twice,
            "dead_letters": len(self.letters),
            **{kind: self.buried(kind) for kind in TROUBLE},
            "zombie_outcomes_refused": self.refused,
            "rescues": [rescue.as_dict() for rescue in self.rescues],
            "seconds": round(self.seconds, 1),
            "problems": self.problems(),
        }

    # ── what should be ──

    def _keys_of(self, *kinds: Kind) -> set[str]:
        return {sending.key for sending in self.sent if sending.kind in kinds}

    def _keys_wanted(self) -> list[str]:
        return sorted({sending.key for sending in self.sent})

    def _keys_buried(self) -> set[str]:
        return {self.added.get(letter.original_id, "?") for letter in self.letters}

    def _totals_wanted(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for sending in self.sent:
            if sending.kind == "good" and sending.payment is not None:
                currency = sending.payment.currency
                totals[currency] = totals.get(currency, 0) + sending.payment.cents
        return totals
