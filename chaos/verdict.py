"""What the judge says: which invariants did not hold, and the figures of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Breach:
    """An invariant that did not hold: how often, and the first cases."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(example)


@dataclass(slots=True)
class Verdict:
    breaches: dict[str, Breach]
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        return not self.breaches
