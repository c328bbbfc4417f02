"""When an ended lease means that its owner is gone (SPEC 20)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import trust
from headrace.redis.trust import Trust


class FakeLink:
    epoch = 1
    is_open = True


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trust, "time", clock)
    return clock


class Watched:
    """A lease of 4 s and 2 s of quiet, over a link that hears from a server whose clock began at 0."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.link: Any = FakeLink()
        self.trust = Trust(self.link, 4_000, quiet_ms=2_000)

    @property
    def server_ms(self) -> int:
        return round((self.clock.now - 1_000) * 1000)

    def hears(self, seconds: float) -> None:
        """An answer every half second, for so long."""
        for _ in range(round(seconds / 0.5)):
            self.clock.now += 0.5
            self.trust.heard(self.server_ms)


@pytest.fixture
def watched(clock: Clock) -> Watched:
    watched = Watched(clock)
    watched.trust.heard(0)
    return watched


def test_nothing_is_trusted_before_the_server_was_heard(clock: Clock) -> None:
    assert Watched(clock).trust.until_ms == 0


def test_after_a_connect_it_is_quiet_and_then_each_word_has_a_quarter_of_a_lease(watched: Watched) -> None:
    watched.hears(1.5)
    assert watched.trust.until_ms == 0
    watched.hears(0.5)
    assert watched.trust.until_ms == watched.server_ms + 1_000
    watched.clock.now += 0.25
    assert watched.trust.until_ms == watched.server_ms + 1_000


@pytest.mark.parametrize("doubt", ["reconnected", "silent"])
def test_a_new_connection_or_a_silence_of_half_a_lease_makes_it_quiet_again(watched: Watched, doubt: str) -> None:
    watched.hears(3)
    if doubt == "reconnected":
        watched.link.epoch += 1
    else:
        watched.clock.now += 2.1
    assert watched.trust.until_ms == 0  # also before anything is heard
    watched.trust.heard(watched.server_ms)
    assert watched.trust.until_ms == 0
    watched.hears(1.5)
    assert watched.trust.until_ms == 0
    watched.hears(0.5)
    assert watched.trust.until_ms > 0


def test_a_silence_that_costs_no_live_owner_its_lease_costs_no_trust(watched: Watched) -> None:
    watched.hears(3)
    watched.clock.now += 1.9
    assert watched.trust.until_ms > 0
    watched.trust.heard(watched.server_ms)
    assert watched.trust.until_ms > 0


def test_a_connection_that_is_closed_is_not_trusted(watched: Watched) -> None:
    watched.hears(3)
    watched.link.is_open = False
    assert watched.trust.until_ms == 0
