"""The error tree: verdicts, texts, and attributes that survive the trip between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from headrace import errors
from headrace.errors import (
    AddUnknown,
    AuthFailed,
    Bury,
    ConfigError,
    DeliveryLost,
    DurabilityUnmet,
    Ending,
    GroupLost,
    HeadraceError,
    MissingRight,
    OwnerTaken,
    Release,
    Retry,
    ServerError,
    ServerRefused,
    Unavailable,
    Verdict,
    classify,
)

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HeadraceError)]

SAMPLES: list[HeadraceError] = [
    Retry("later", after="30s"),
    Release(after=2),
    Bury("bad data"),
    DeliveryLost(stream="orders", group="billing", id="1-1", holder="pod-2"),
    OwnerTaken(owner="a", holder="pod-7 (pid 12)"),
    MissingRight("no", command="xadd", key="orders"),
    GroupLost("gone", stream="orders", group="billing"),
    AddUnknown(results=["1-1", None, None]),
    DurabilityUnmet(id="1-1", wanted="replicated"),
    ConfigError("lease is short"),
    Unavailable("away"),
]


def test_the_tree_in_the_docstring_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    missing = [cls.__name__ for cls in ALL if cls.__name__ not in drawn]
    assert missing == []


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_text_and_attributes_survive_copying_and_pickling(error: HeadraceError) -> None:
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_every_error_can_be_raised_and_has_a_verdict() -> None:
    for cls in ALL:
        assert classify(cls(*(["why"] if cls is not Release else []))) is cls.verdict


def test_errors_that_pass_are_retried_and_those_that_stay_are_fatal() -> None:
    """SPEC 54."""
    assert Unavailable.verdict is ServerRefused.verdict is Verdict.RETRY
    assert AuthFailed.verdict is MissingRight.verdict is ServerError.verdict is Verdict.FATAL
    assert DeliveryLost.verdict is Verdict.FENCED


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), TimeoutError(), EOFError(), BrokenPipeError(), OSError(28, "disk full")]
)
def test_errors_of_the_way_to_the_server_are_retried(error: BaseException) -> None:
    assert classify(error) is Verdict.RETRY


@pytest.mark.parametrize("error", [ValueError(), KeyError("x"), RuntimeError(), KeyboardInterrupt(), AssertionError()])
def test_errors_of_unknown_origin_are_fatal(error: BaseException) -> None:
    assert classify(error) is Verdict.FATAL


def test_a_config_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="lease"):
        raise ConfigError("lease is short")


def test_a_lost_delivery_says_which_and_who_has_it() -> None:
    """SPEC 11: the refused owner learns who took over."""
    text = str(DeliveryLost(stream="orders", group="billing", id="1-1", holder="pod-2"))
    assert all(word in text for word in ("orders", "billing", "1-1", "pod-2", "refused"))


def test_an_owner_taken_names_the_holder_and_the_way_out() -> None:
    """SPEC 2."""
    text = str(OwnerTaken(owner="worker", holder="host-3 (pid 7)"))
    assert "worker" in text
    assert "host-3 (pid 7)" in text
    assert "unique" in text


def test_unknown_adds_and_unmet_durability_say_unknown_and_not_failed() -> None:
    """SPEC 36, 37."""
    assert "2 of 3" in str(AddUnknown(results=["1-1", None, None]))
    for error in (AddUnknown(results=[None]), DurabilityUnmet(id="1-1", wanted="on disk")):
        assert "unknown, not failed" in str(error)


def test_handlers_choose_their_ending_by_raising() -> None:
    """SPEC 30."""
    assert Retry().after is None
    assert Retry("later", 5).after == 5
    assert Release("1s").after == "1s"
    assert Bury("bad").reason == "bad"
    assert all(issubclass(cls, Ending) for cls in (Retry, Release, Bury))
