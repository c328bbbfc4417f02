"""Settings: words in, milliseconds out; what cannot work is refused when it is written."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ConnectSettings, HandlerSettings, duration_ms, size_bytes
from headrace.errors import ConfigError
from headrace.policy import Backoff


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        (0, 0),
        (1, 1_000),
        (1.5, 1_500),
        (0.035, 35),
        (0.0001, 1),
        ("30s", 30_000),
        ("500ms", 500),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        (" 10 s ", 10_000),
        ("10", 10_000),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
    ],
)
def test_durations_are_read_as_people_write_them(written: Any, ms: int) -> None:
    assert duration_ms(written, name="lease") == ms


@pytest.mark.parametrize(
    "written",
    [
        *("", "soon", "10 parsecs", "s", "-1s", "1e3s", "10sec", "30S", "١s", "1s\x00", "1s" * 200, "9" * 400, "1s;2"),
        *(-1, -0.5, float("nan"), float("inf"), True, None, b"1s", [], 10**400, 1e300, timedelta(days=-1)),
    ],
)
def test_other_durations_are_refused_and_the_option_is_named(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"^lease ") as caught:
        duration_ms(written, name="lease")
    assert len(str(caught.value)) < 250


@given(st.integers(0, 10**10))
def test_a_duration_means_the_same_in_every_writing(ms: int) -> None:
    ways: list[float | str | timedelta] = [
        ms / 1000,
        f"{ms}ms",
        timedelta(milliseconds=ms),
        f"{ms // 1000}s{ms % 1000}ms",
    ]
    assert {duration_ms(way, name="x") for way in ways} == {ms}


@given(st.floats(0, 10**8), st.floats(0, 10**8))
def test_a_longer_duration_is_never_read_as_a_shorter_one(one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert duration_ms(low, name="x") <= duration_ms(high, name="x")
    assert (duration_ms(low, name="x") == 0) == (low == 0)


@pytest.mark.parametrize(
    ("written", "size"),
    [(1, 1), ("100", 100), ("64KiB", 65_536), ("64 mib", 64 * 2**20), ("1.5MB", 1_500_000), ("1B", 1)],
)
def test_sizes_are_read_as_people_write_them(written: Any, size: int) -> None:
    assert size_bytes(written) == size


@pytest.mark.parametrize("written", [0, -1, "", "big", "1TB", "-1KB", 1.5, True, None, 2**40, "9" * 300])
def test_other_sizes_are_refused(written: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes"):
        size_bytes(written, name="max_bytes")


def test_the_defaults_are_those_of_the_design() -> None:
    settings = HandlerSettings()
    assert settings == HandlerSettings.of()
    assert (settings.lease_ms, settings.max_attempts, settings.dead_letters) == (10_000, 5, True)
    assert (settings.start, settings.prefix, settings.stall_after_ms) == ("0", "_", 60_000)
    assert (settings.slots(is_async=True), settings.slots(is_async=False)) == (100, 8)


def test_every_word_sets_its_field() -> None:
    settings = HandlerSettings.of(
        concurrency=7,
        lease="2s",
        max_attempts=3,
        backoff="5s",
        timeout=1.5,
        dead_letters=True,
        dead_letters_maxlen=1_000,
        delete_on_ack=True,
        start="$",
        batch=50,
        batch_wait="100ms",
        once="24h",
        stall_after="30s",
        prefix="x-",
        owner_retention="2h",
    )
    assert settings == HandlerSettings(
        concurrency=7,
        lease_ms=2_000,
        max_attempts=3,
        backoff=Backoff(5_000, 1.0, 5_000, 0.0),
        timeout_ms=1_500,
        dead_letters_maxlen=1_000,
        delete_on_ack=True,
        start="$",
        batch=50,
        batch_wait_ms=100,
        once_ms=86_400_000,
        stall_after_ms=30_000,
        prefix="x-",
        owner_retention_ms=7_200_000,
    )
    assert settings.slots(is_async=True) == 7


def test_none_stands_for_the_default() -> None:
    assert HandlerSettings.of(lease=None, timeout=None, batch=None) == HandlerSettings()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"leese": "10s"}, "did you mean 'lease'?"),
        ({"max_attempt": 3}, "did you mean 'max_attempts'?"),
        ({"Concurrency": 3}, "did you mean 'concurrency'?"),
        ({"xyzzy": 3}, "there are backoff, batch,"),
        ({"lease": "100ms"}, "lease_ms"),
        ({"lease": "2d"}, "lease_ms"),
        ({"lease": "soon"}, "lease 'soon'"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"max_attempts": 10**30}, "max_attempts is a huge number"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": "10"}, "concurrency is '10'"),
        ({"timeout": 0}, "timeout_ms is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"batch_wait": "1s"}, "without batch"),
        ({"batch": 10, "batch_wait": "9s"}, "lower batch_wait"),
        ({"dead_letters": "no"}, "give True or False"),
        ({"dead_letters": False, "dead_letters_maxlen": 5}, "remove one"),
        ({"delete_on_ack": 1}, "give True or False"),
        ({"start": "end"}, "start is 'end'"),
        ({"start": 0}, "start is 0"),
        ({"start": "1-2-3"}, "start is"),
        ({"start": "18446744073709551616"}, "start is"),
        ({"once": "1s"}, "raise once"),
        ({"stall_after": "1s"}, "raise stall_after"),
        ({"prefix": ""}, "prefix is ''"),
        ({"prefix": "pay"}, "hide the field 'payload'"),
        ({"prefix": "\x00"}, "prefix is"),
        ({"prefix": "_" * 17}, "prefix is"),
        ({"prefix": b"_"}, "prefix is b'_'"),
        ({"backoff": {"capp": 1}}, "did you mean 'cap'?"),
        ({"owner_retention": 0}, "owner_retention_ms is 0"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HandlerSettings.of(**options)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_checks_hold_without_the_words_too() -> None:
    with pytest.raises(ConfigError, match="stall_after"):
        HandlerSettings(lease_ms=80_000, stall_after_ms=70_000)
    with pytest.raises(ConfigError, match="no Backoff"):
        HandlerSettings(backoff="5s")  # type: ignore[arg-type]


def test_a_long_lease_moves_the_stall_limit_that_nobody_gave() -> None:
    assert HandlerSettings.of(lease="5m").stall_after_ms == 300_000


@pytest.mark.parametrize(
    "start", ["0", "$", "5", "0-0", "1700000000000-12", "18446744073709551615-18446744073709551615"]
)
def test_a_group_may_start_anywhere(start: str) -> None:
    """SPEC 3."""
    assert HandlerSettings.of(start=start).start == start


@given(st.integers(300, 86_400_000))
def test_two_renewals_may_fail_and_a_read_never_blocks_too_long(lease_ms: int) -> None:
    """SPEC 5 (a read blocks at most min(5 s, L/4)) and SPEC 12 (one failed renewal keeps the lease)."""
    settings = HandlerSettings(lease_ms=lease_ms, stall_after_ms=max(60_000, lease_ms))
    assert 2 * settings.renew_ms < settings.lease_ms
    assert 0 < settings.block_ms <= min(5_000, lease_ms // 4)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HandlerSettings().lease_ms = 1  # type: ignore[misc]


def test_connection_settings_are_read_and_checked() -> None:
    settings = ConnectSettings.of(connect_timeout="1s", command_timeout=0.5, tls_insecure=True)
    assert settings == ConnectSettings(connect_timeout_ms=1_000, command_timeout_ms=500, tls_insecure=True)
    assert ConnectSettings.of() == ConnectSettings()
    with pytest.raises(ConfigError, match="did you mean 'connect_timeout'"):
        ConnectSettings.of(conect_timeout=1)
    with pytest.raises(ConfigError, match="command_timeout_ms is 0"):
        ConnectSettings.of(command_timeout=0)
    with pytest.raises(ConfigError, match="tls_insecure"):
        ConnectSettings.of(tls_insecure="yes")
