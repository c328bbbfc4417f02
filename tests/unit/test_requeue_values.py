"""Names, fields and settings of the requeue strategy (SPEC 46, 52b)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError, NameRefused, Requeue
from headrace.config import HandlerSettings
from headrace.names import check_owner, keys_of, tag_of
from headrace.redis.letters import open_copy, open_requeued, retry_count


@pytest.mark.parametrize(
    ("stream", "lock"), [("orders", "lock:{orders}:5-1"), ("shop:{eu}:orders", "lock:shop:{eu}:orders:5-1")]
)
def test_a_lock_is_in_the_slot_of_its_stream_and_gives_its_id_back(stream: str, lock: str) -> None:
    keys = keys_of(stream)
    assert keys.lock("5-1") == lock
    assert tag_of(lock) == tag_of(stream)
    assert keys.locked_id(lock) == "5-1"


def test_a_key_that_is_no_lock_of_this_stream_is_none() -> None:
    keys = keys_of("orders")
    for key in ("lock:{others}:5-1", "lock:{orders}:x", "lock:{orders}:5", "{orders}:5-1", "lock:{orders}:a:5-1", ""):
        assert keys.locked_id(key) is None


def test_a_copy_is_opened_wherever_its_fields_stand() -> None:
    """A Go map has no order: its clients write the count anywhere."""
    assert open_requeued([b"a", b"1"]) is None
    for fields in ([b"_retry_count", b"2", b"a", b"1"], [b"a", b"1", b"_retry_count", b"2"]):
        assert open_requeued(fields) == (2, "", [b"a", b"1"])


def test_a_value_that_looks_like_the_name_is_a_value() -> None:
    assert open_requeued([b"a", b"_retry_count"]) is None


def test_a_requeued_copy_of_a_replayed_copy_still_says_whom_it_is_for() -> None:
    """SPEC 28: only the group that buried it gets it, also after a crash."""
    replayed = [b"_original_id", b"1-1", b"_only", b"billing", b"f", b"v"]
    opened = open_requeued([*replayed, b"_retry_count", b"1", b"_original_id", b"1-1"])
    assert opened is not None
    assert opened.fields == replayed
    copy = open_copy(opened.fields)
    assert copy is not None
    assert (copy.only, copy.fields) == ("billing", [b"f", b"v"])


@given(st.binary(max_size=30))
def test_any_bytes_are_a_retry_count_of_at_most_nine_digits(value: bytes) -> None:
    assert 0 <= retry_count(value) < 10**9


def test_max_retries_are_copies_and_the_first_start_comes_on_top() -> None:
    settings = HandlerSettings.of(recovery=Requeue(max_retries=3, prefix="x_"))
    assert (settings.max_attempts, settings.prefix) == (4, "x_")
    assert HandlerSettings.of(recovery=Requeue(max_retries=0)).max_attempts == 1


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"min_idle": "x"}, {"batch": 0}, {"batch": 201}, {"max_retries": -1}, {"hints": "no"}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Requeue(**wrong)  # type: ignore[arg-type]


def test_the_names_of_what_waits_are_no_owners() -> None:
    for name in ("~retry", "~release"):
        with pytest.raises(NameRefused):
            check_owner(name)
