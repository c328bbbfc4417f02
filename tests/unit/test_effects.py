"""Effects: what could fail on the server is refused before it is sent (SPEC 33)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.effects import ARGS_LIMIT, Effect
from headrace.errors import EffectRefused

KEY = "{orders}:totals"


def test_every_command_becomes_bytes() -> None:
    """SPEC 33."""
    mixed: dict[Any, Any] = {"a": "é", b"b": b"\xff", "n": 1}
    assert Effect.xadd(KEY, mixed).args == (b"a", "é".encode(), b"b", b"\xff", b"n", b"1")
    assert Effect.set(KEY, 1.5) == Effect("SET", KEY, (b"1.5",))
    assert Effect.hset(KEY, {"f": ""}) == Effect("HSET", KEY, (b"f", b""))
    assert Effect.hincrby(KEY, "f", -3) == Effect("HINCRBY", KEY, (b"f", b"-3"))
    assert Effect.hincrby(KEY, "f").args == (b"f", b"1")
    assert Effect.zadd(KEY, {"m": 2, "n": 0.5}) == Effect("ZADD", KEY, (b"2", b"m", b"0.5", b"n"))


def test_an_effect_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Effect.set(KEY, "x").key = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Effect.set("", "x"), "non-empty str"),
        (lambda: Effect.set(b"k", "x"), "non-empty str"),  # type: ignore[arg-type]
        (lambda: Effect.set("\ud800", "x"), "surrogate"),
        (lambda: Effect.set("k" * 5_000, "x"), "5000 bytes"),
        (lambda: Effect.set("{orders}:hr:due:billing", "x"), "Headrace itself"),
        (lambda: Effect.set(KEY, None), "NoneType"),  # type: ignore[arg-type]
        (lambda: Effect.set(KEY, True), "bool"),
        (lambda: Effect.set(KEY, {}), "dict"),  # type: ignore[arg-type]
        (lambda: Effect.set(KEY, "\ud800"), "surrogate"),
        (lambda: Effect.set(KEY, b"x" * (64 * 2**20 + 1)), "bytes of arguments"),
        (lambda: Effect.xadd(KEY, {}), "at least one"),
        (lambda: Effect.xadd(KEY, ["a", "b"]), "give a dict"),  # type: ignore[arg-type]
        (lambda: Effect.xadd(KEY, {1: "x"}), "field name"),  # type: ignore[arg-type]
        (lambda: Effect.hset(KEY, {"f": float("nan")}), "finite"),
        (lambda: Effect.hset(KEY, {str(i): "" for i in range(ARGS_LIMIT // 2 + 1)}), "7002 arguments"),
        (lambda: Effect.hincrby(KEY, "f", 1.0), "give an int"),  # type: ignore[arg-type]
        (lambda: Effect.hincrby(KEY, "f", True), "give an int"),
        (lambda: Effect.hincrby(KEY, "f", "1"), "give an int"),  # type: ignore[arg-type]
        (lambda: Effect.hincrby(KEY, "f", 10**15), "10^15"),
        (lambda: Effect.hincrby(KEY, "f", -(10**15)), "10^15"),
        (lambda: Effect.hincrby(KEY, "f", 10**5_000), "10^15"),
        (lambda: Effect.zadd(KEY, {"m": float("nan")}), "finite"),
        (lambda: Effect.zadd(KEY, {"m": float("inf")}), "finite"),
        (lambda: Effect.zadd(KEY, {"m": "1"}), "give a number"),  # type: ignore[arg-type]
        (lambda: Effect.zadd(KEY, {"m": 10**15}), "10^15"),
        (lambda: Effect.zadd(KEY, {}), "at least one"),
    ],
)
def test_what_could_fail_half_way_is_refused(make: Any, why: str) -> None:
    """SPEC 33: type, range, score and arity are checked before anything is written."""
    with pytest.raises(EffectRefused) as caught:
        make()
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_largest_effect_goes_through() -> None:
    assert len(Effect.hset(KEY, {str(i): "" for i in range(ARGS_LIMIT // 2)}).args) == ARGS_LIMIT


@settings(max_examples=50)
@given(st.dictionaries(st.text("abé"), st.one_of(st.integers(-(10**15) + 1, 10**15 - 1), st.floats(-1e300, 1e300))))
def test_a_score_is_written_so_that_a_server_reads_the_same_number(scores: dict[str, float]) -> None:
    if not scores:
        return
    args = Effect.zadd(KEY, scores).args
    assert {args[at + 1].decode(): float(args[at]) for at in range(0, len(args), 2)} == scores
    # the script refuses what Lua would read as hexadecimal, inf or nan
    assert not any(set(args[at]) & set(b"xXnN") for at in range(0, len(args), 2))
