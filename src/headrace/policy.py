"""When to try again: pure functions from numbers to milliseconds.

Randomness comes in as a number from 0 to 1, so a test can say which delay it will get.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigError
from headrace.options import DURATION_LIMIT_MS, Duration, duration_ms, refuse_unknown, shown, whole_number

FIRST_MS = 1_000  # first retry of a failed handler
FACTOR = 2.0
CAP_MS = 300_000
JITTER = 0.5
FACTOR_LIMIT = 100.0

RELEASE_FIRST_MS = 100  # a handler that releases its delivery again and again must not spin (SPEC 24)
RELEASE_CAP_MS = 10_000
CRASH_FIRST_MS = 1_000  # a message that killed its process twice may kill a third (DESIGN 11b)
CRASH_CAP_MS = 60_000
RECONNECT_FIRST_MS = 100  # SPEC 20
RECONNECT_CAP_MS = 30_000
MOVING_CAP_MS = 1_000
RECONNECT_JITTER = 0.5
SPREAD = 0.1  # timers of many workers drift apart by this share


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed delivery waits: `first`, times `factor` for each attempt, at most `cap`.

    Jitter only shortens: with 0.5 a delay is drawn from the upper half. So the cap is a cap, and for one draw
    a later attempt never waits less than an earlier one.

    >>> Backoff(jitter=0).delay_ms(1, 0.0), Backoff(jitter=0).delay_ms(3, 0.0)
    (1000, 4000)
    """

    first_ms: int = FIRST_MS  # wait after the first failed attempt
    factor: float = FACTOR  # growth from one attempt to the next; 1 keeps it constant
    cap_ms: int = CAP_MS  # no wait is longer
    jitter: float = JITTER  # share of the wait that chance may take away, 0 to 1

    def __post_init__(self) -> None:
        whole_number(self.first_ms, name="backoff first_ms", least=0, most=DURATION_LIMIT_MS)
        whole_number(self.cap_ms, name="backoff cap_ms", least=0, most=DURATION_LIMIT_MS)
        _within(self.factor, "backoff factor", 1.0, FACTOR_LIMIT)
        _within(self.jitter, "backoff jitter", 0.0, 1.0)
        if self.cap_ms < self.first_ms:
            raise ConfigError(
                f"backoff cap ({self.cap_ms} ms) is below its first delay ({self.first_ms} ms): raise cap"
            )

    def delay_ms(self, attempt: int, rand: float) -> int:
        """Return the wait after attempt number `attempt` (1-based) failed; `rand` is drawn from 0 to 1."""
        full = _doubling(self.first_ms, attempt, self.cap_ms, self.factor)
        return round(full * (1.0 - self.jitter * (1.0 - rand)))

    @classmethod
    def of(cls, value: Backoff | Duration | Mapping[str, Any] | None) -> Backoff:
        """Read what a user wrote: a Backoff, a fixed wait ("5s"), a dict, or None for the default.

        >>> Backoff.of("5s")
        Backoff(first_ms=5000, factor=1.0, cap_ms=5000, jitter=0.0)
        """
        if value is None:
            return cls()
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Mapping):
            return cls._of_words(value)
        if isinstance(value, (int, float, str, timedelta)):
            fixed = duration_ms(value, name="backoff")
            return cls(first_ms=fixed, factor=1.0, cap_ms=fixed, jitter=0.0)
        raise ConfigError(
            f"backoff is {shown(value)}: give a Backoff, a duration such as '5s', "
            "or a dict with first, factor, cap and jitter"
        )

    @classmethod
    def _of_words(cls, words: Mapping[str, Any]) -> Backoff:
        refuse_unknown(words, ("first", "factor", "cap", "jitter"), what="backoff")
        first_ms = duration_ms(words.get("first", FIRST_MS / 1000), name="backoff first")
        # a first delay above the default cap, with no cap given, means: stay there
        cap_ms = duration_ms(words["cap"], name="backoff cap") if "cap" in words else max(CAP_MS, first_ms)
        return cls(first_ms, words.get("factor", FACTOR), cap_ms, words.get("jitter", JITTER))


def release_delay_ms(level: int) -> int:
    """Return how long a delivery waits that was released `level` times in a row: 100 ms doubling to 10 s."""
    return _doubling(RELEASE_FIRST_MS, level, RELEASE_CAP_MS)


def crash_delay_ms(attempt: int, max_attempts: int) -> int:
    """Return how long a delivery waits whose handler start number `attempt` died with its process.

    The first crash is most likely the process's own and waits for nothing. Later ones wait 1 s doubling to
    60 s, and before the last attempt it is at least 1 s, so that one poison message cannot burn through its
    attempts while it takes neighbours down (DESIGN 11b). After the last attempt there is nothing to wait for:
    whoever takes it buries it.
    """
    if attempt >= max_attempts:
        return 0
    delay_ms = 0 if attempt <= 1 else _doubling(CRASH_FIRST_MS, attempt - 1, CRASH_CAP_MS)
    return max(delay_ms, CRASH_FIRST_MS) if attempt + 1 == max_attempts else delay_ms


def reconnect_delay_ms(tries: int, rand: float, *, may_move: bool = False) -> int:
    """Return the wait before connection attempt number `tries` (1-based): 100 ms doubling to 30 s.

    Where another server may take over (Sentinel, Cluster) to 1 s only: it does so within seconds.
    """
    full = _doubling(RECONNECT_FIRST_MS, tries, MOVING_CAP_MS if may_move else RECONNECT_CAP_MS)
    return round(full * (1.0 - RECONNECT_JITTER * (1.0 - rand)))


def spread(ms: int, rand: float) -> int:
    """Return a timer's period moved by up to a tenth either way, so that many workers do not act as one."""
    return max(1, round(ms * (1.0 - SPREAD + 2.0 * SPREAD * rand)))


def _doubling(first_ms: int, step: int, cap_ms: int, factor: float = 2.0) -> int:
    """Return first × factor^(step-1), at most cap. Steps below one count as one."""
    if first_ms <= 0:
        return 0
    if factor <= 1.0:
        return min(first_ms, cap_ms)
    # compare exponents, because factor ** 2000 overflows
    exponent = max(0, step - 1)
    if exponent >= math.log(max(cap_ms / first_ms, 1.0), factor) + 1:
        return cap_ms
    return min(cap_ms, round(first_ms * factor**exponent))


def _within(value: object, name: str, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ConfigError(f"{name} is {shown(value)}: give a number from {least:g} to {most:g}")
