"""How much to ask for at once, where nobody knows beforehand how large an entry is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

FIRST_COUNT: Final = 16
COUNT_AT_MOST: Final = 10_000  # rows in an Arrow batch: more is no quicker
GROWTH: Final = 16
ROOM: Final = 8  # an answer so many times as large as wanted is given up: what was learnt does not hold any more

T = TypeVar("T")


@dataclass(slots=True)
class Pace:
    """How many things to ask for, steered to a size of the answer by the answers so far.

    It knows what it has seen. Things of another kind, as the entries of another stream, are a pace of their own.
    """

    fetch_bytes: int
    count: int = FIRST_COUNT
    most: int = COUNT_AT_MOST

    def learn(self, asked: int, size: int) -> None:
        if asked:
            fitting = self.fetch_bytes * asked // max(size, 1)
            self.count = max(1, min(fitting, self.count * GROWTH, self.most))

    @property
    def most_bytes(self) -> int | None:
        """How large an answer may become. A single thing has to be taken as large as it is."""
        return None if self.count == 1 else self.fetch_bytes * ROOM

    def shrink(self) -> None:
        """An answer became too large."""
        self.count = max(1, self.count // GROWTH)

    def parts(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Portions of the size that is right by then: learn from one before the next is taken."""
        rest = list(items)
        at = 0
        while at < len(rest):
            some = rest[at : at + self.count]
            at += len(some)
            yield some


def weight(reply: Any) -> int:
    """How many bytes an answer carries."""
    if isinstance(reply, bytes):
        return len(reply)
    return sum(map(weight, reply)) if isinstance(reply, list) else 0
