"""What a second run of `make test` must not mend (tests/support/remembered.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.remembered import Remembered


class Kept(dict[str, Any]):
    """pytest's cache, as far as it is used."""

    def set(self, key: str, value: object) -> None:
        self[key] = value


def test_what_the_first_run_found_fails_the_second_that_goes_well() -> None:
    cache = Kept()
    with pytest.raises(ValueError, match="lost"), Remembered(cache, "a", again=False).failures():
        raise ValueError("lost")
    with pytest.raises(AssertionError, match="ValueError: lost"), Remembered(cache, "a", again=True).failures():
        pass
    with Remembered(cache, "a", again=False).failures():
        pass
    with Remembered(cache, "a", again=True).failures():
        pass


def test_invariants_of_both_runs_are_remembered() -> None:
    cache = Kept()
    Remembered(cache, "a", again=False).note(["S1"])
    second = Remembered(cache, "a", again=True)
    second.note(["S4"])
    assert second.before == ["S1"]
    assert Remembered(cache, "a", again=True).before == ["S1", "S4"]
