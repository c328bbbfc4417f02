"""The fields of an entry: payload first, our own behind it, nothing lost when names repeat (SPEC 41)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.codec import find_field, headers_of, key_of, own_fields, pack_fields
from headrace.errors import EncodeError, NameRefused


def _wire(flat: list[bytes | str]) -> list[bytes]:
    return [part if isinstance(part, bytes) else part.encode() for part in flat]


def test_the_payload_comes_first_and_holds_nothing_of_ours() -> None:
    """SPEC 41."""
    flat = pack_fields(b"{}", key="k", headers={"tenant": "a", "empty": ""}, traceparent="00-1-2-01")
    assert flat == [
        "payload", b"{}", "_key", "k", "_traceparent", "00-1-2-01", "_h:tenant", "a", "_h:empty", ""
    ]  # fmt: skip
    assert pack_fields(b"") == ["payload", b""]
    assert own_fields(key="k", prefix="x-") == ["x-key", "k"]


HEADERS = st.dictionaries(st.text("ab:_hé", min_size=1), st.text("ab\x00☃"), max_size=5)


@settings(max_examples=50)
@given(st.binary(max_size=20), HEADERS, st.none() | st.text("k:_", min_size=1), st.sampled_from(["_", "x-", "__"]))
def test_what_was_packed_is_found(data: bytes, headers: dict[str, str], key: str | None, prefix: str) -> None:
    flat = _wire(pack_fields(data, headers=headers, key=key, prefix=prefix))
    assert find_field(flat, b"payload") == data
    assert headers_of(flat, prefix) == headers
    assert key_of(flat, prefix) == key


def test_the_first_of_repeated_names_counts_and_values_are_no_names() -> None:
    flat = [b"a", b"b", b"b", b"1", b"b", b"2", b"_h:x", b"1", b"_h:x", b"2"]
    assert find_field(flat, b"b") == b"1"
    assert find_field(flat, b"a") == b"b"
    assert find_field(flat, b"1") is None
    assert headers_of(flat) == {"x": "1"}


@pytest.mark.parametrize("flat", [[], [b"b"], [b"a", b"1", b"b"]])
def test_half_an_entry_is_no_entry(flat: list[bytes]) -> None:
    assert find_field(flat, b"b") is None
    assert headers_of(flat) == {}


def test_bytes_of_strangers_do_no_harm() -> None:
    flat = [b"_h:\xff", b"\xfe", b"_key", b"\xff"]
    assert headers_of(flat) == {"�": "�"}
    assert key_of(flat) is None
    assert key_of([b"_key", b""]) is None
    assert key_of([b"_key", b"k" * 600]) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"headers": {"": "x"}}, "header name is empty"),
        ({"headers": {"a": 1}}, "header 'a' is a int"),
        ({"headers": {1: "a"}}, "header name is a int"),
        ({"headers": {"a": "\ud800"}}, "surrogate"),
        ({"headers": {"a": "x" * 20_000}}, "20000 bytes"),
        ({"headers": {"n" * 300: "x"}}, "300 bytes"),
        ({"headers": {str(i): "" for i in range(101)}}, "101 headers"),
        ({"traceparent": ""}, "traceparent is empty"),
        ({"traceparent": b"00"}, "traceparent is a bytes"),
    ],
)
def test_bad_headers_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(EncodeError) as caught:
        pack_fields(b"", **options)
    assert why in str(caught.value)


def test_a_bad_key_is_refused() -> None:
    with pytest.raises(NameRefused):
        pack_fields(b"", key="")
