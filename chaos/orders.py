"""What a message of the fault programme says: a number, what its handler is to do, and for how long.

    ok          ack
    slow        wait, then ack
    sink        ack together with an effect in the sink's stream
    slow-sink   wait, then the same
    flaky       raise at the first attempt, then ack
    again       ask for a retry at the first attempt, then ack
    handback    release at the first attempt, then ack
    block       block the event loop, then ack
    gil         compute in native code that holds the GIL, then ack
    grave       wait, then bury at the first attempt; a later attempt acks
    raise       raise at every attempt           ┐
    bury        bury at once                     │ poison: ends in the dead letters,
    kill        SIGKILL the own process          │ until it is healed
    hang        wait for ever (handlers have a timeout) ┘

Which message does what follows from the seed and its number alone, so a run can be told again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

POISON = frozenset({"raise", "bury", "kill", "hang"})
MORTAL = POISON | {"grave"}
"""What may end in the dead letters. Of the poison everything must."""

SLOW = frozenset({"slow", "slow-sink", "again", "grave"})
"""What waits before it does anything."""
LONG = SLOW | {"block", "gil"}


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message."""

    n: int
    do: str = "ok"
    s: float = 0.0  # how long what waits, blocks or computes takes
    pad: str = ""


Mix = Mapping[str, float]
"""How often each thing to do comes, as a share of all."""


class Orders:
    """The orders of one run, by number."""

    def __init__(self, seed: int, mix: Mix, slow_s: tuple[float, float] = (0.05, 0.2), pad: int = 0) -> None:
        self._seed = seed
        self._words = list(mix)
        self._weights = list(mix.values())
        self._slow_s = slow_s
        self._pad = "x" * pad

    def order(self, n: int) -> Order:
        if len(self._words) == 1 and self._words[0] in ("ok", "sink"):
            return Order(n, self._words[0], pad=self._pad)
        rng = random.Random(self._seed * 1_000_003 + n)
        do = rng.choices(self._words, self._weights)[0]
        return Order(n, do, round(rng.uniform(*self._slow_s), 4) if do in LONG else 0.0, self._pad)

    def payload(self, n: int) -> bytes:
        """The bytes that a dead letter must hold."""
        return msgspec.json.encode(self.order(n))
