"""Delays: monotone, capped, and as the specification numbers them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.policy import (
    CAP_MS,
    Backoff,
    crash_delay_ms,
    reconnect_delay_ms,
    release_delay_ms,
    spread,
)

RANDS = st.floats(0, 1)
BACKOFFS = st.builds(
    lambda first, more, factor, jitter: Backoff(first, factor, first + more, jitter),
    st.integers(0, 10**7),
    st.integers(0, 10**9),
    st.floats(1, 100),
    st.floats(0, 1),
)


@given(BACKOFFS, st.integers(1, 10**6), st.integers(0, 10**6), RANDS)
def test_backoff_grows_and_stays_within_its_cap(backoff: Backoff, attempt: int, more: int, rand: float) -> None:
    """SPEC 24."""
    early, late = backoff.delay_ms(attempt, rand), backoff.delay_ms(attempt + more, rand)
    assert 0 <= early <= late <= backoff.cap_ms


@given(BACKOFFS, st.integers(1, 1_000), RANDS)
def test_jitter_only_shortens_and_only_by_its_share(backoff: Backoff, attempt: int, rand: float) -> None:
    full = backoff.delay_ms(attempt, 1.0)
    assert full * (1 - backoff.jitter) - 1 <= backoff.delay_ms(attempt, rand) <= full


def test_the_default_backoff_doubles_from_a_second_to_five_minutes() -> None:
    delays = [Backoff().delay_ms(attempt, 1.0) for attempt in (1, 2, 3, 9, 10, 1_000_000)]
    assert delays == [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]


def test_a_duration_is_a_fixed_backoff() -> None:
    for written in ("200ms", 0.2, timedelta(milliseconds=200)):
        backoff = Backoff.of(written)
        assert {backoff.delay_ms(attempt, rand) for attempt in (1, 5, 99) for rand in (0.0, 1.0)} == {200}
    assert Backoff.of(0).delay_ms(7, 0.5) == 0


def test_backoff_is_read_from_words() -> None:
    assert Backoff.of(None) == Backoff()
    assert Backoff.of(Backoff(5)) == Backoff(5)
    read = Backoff.of({"first": "100ms", "factor": 3, "cap": "2s", "jitter": 0})
    assert [read.delay_ms(attempt, 0.0) for attempt in (1, 2, 3, 4)] == [100, 300, 900, 2_000]
    assert Backoff.of({"first": "1h"}).cap_ms == 3_600_000
    assert Backoff.of({"first": "1s"}).cap_ms == CAP_MS


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"frist": 1}, "did you mean 'first'"),
        ({"cap": "1s", "first": "2s"}, "raise cap"),
        ({"factor": 0.5}, "factor"),
        ({"factor": float("nan")}, "factor"),
        ({"factor": 10**5_000}, "factor"),
        ({"jitter": 2}, "jitter"),
        ({"jitter": True}, "jitter"),
        ({"first": -1}, "negative"),
        ("soon", "backoff 'soon' is not a duration"),
        ([1, 2], "give a Backoff"),
        (object(), "give a Backoff"),
        (True, "backoff"),
    ],
)
def test_a_bad_backoff_is_refused_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Backoff.of(value)
    assert why in str(caught.value)


def test_release_waits_a_tenth_of_a_second_doubling_to_ten() -> None:
    """SPEC 24."""
    assert [release_delay_ms(level) for level in (1, 2, 3, 7, 8, 99)] == [100, 200, 400, 6_400, 10_000, 10_000]


def test_the_first_crash_waits_for_nothing_and_later_ones_longer() -> None:
    """SPEC 8 (first crash at once), DESIGN 11b (then 1 s doubling to 60 s)."""
    assert [crash_delay_ms(attempt, 100) for attempt in (1, 2, 3, 7, 8, 50)] == [
        0,
        1_000,
        2_000,
        32_000,
        60_000,
        60_000,
    ]


def test_a_last_attempt_after_a_crash_waits_at_least_a_second() -> None:
    """DESIGN 11b."""
    assert crash_delay_ms(1, 2) == 1_000
    assert crash_delay_ms(1, 1) == 0  # nothing to wait for: it is buried
    assert crash_delay_ms(1, 3) == 0
    assert crash_delay_ms(4, 5) == 4_000


@given(st.integers(1, 10_000), RANDS)
def test_reconnects_wait_between_half_and_full_and_never_over_thirty_seconds(tries: int, rand: float) -> None:
    """SPEC 20: 100 ms doubling to 30 s, jitter."""
    full = min(30_000, 100 * 2 ** min(tries - 1, 20))
    assert full // 2 <= reconnect_delay_ms(tries, rand) <= full


@given(st.integers(1, 10**9), RANDS)
def test_timers_spread_by_a_tenth_and_never_stop(ms: int, rand: float) -> None:
    assert spread(ms, rand) >= 1
    assert abs(spread(ms, rand) - ms) <= ms * 0.1 + 1
