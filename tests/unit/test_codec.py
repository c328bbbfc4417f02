"""Codecs: what goes in comes out, what cannot is refused with one bounded line, and nothing else is ever raised."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.codec import FieldsCodec, codec_for, decode_fields, encode_fields
from headrace.errors import CodecError, ConfigError, DecodeError, EncodeError, PayloadTooLarge


@dataclass
class Item:
    sku: str
    n: int = 1


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list)
    price: float | None = None


class Colour(enum.Enum):
    RED = "red"


class Painted(msgspec.Struct):
    colour: Colour


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: str
    right: int


class Row(TypedDict):
    id: int
    name: str


class Account(pydantic.BaseModel):
    id: int
    name: str = ""


MODELS = [Order, Point, Pair, Row, Account, list[Order], list[Account], list[Row], dict[str, int]]
EVERY = [None, dict, Any, bytes, str, *MODELS]

TEXT = st.text(alphabet='aZ0 "\\\x00\n\x7fé☃\U0001f600', max_size=20)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
ITEMS = st.builds(Item, TEXT, st.integers(0, 2**63 - 1))
ORDERS = st.builds(Order, st.integers(-(2**63), 2**63), st.lists(ITEMS, max_size=3), st.none() | st.floats(-1e9, 1e9))


# ── round trips ──────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50)
@given(JSON)
def test_any_json_comes_back_as_it_was(payload: Any) -> None:
    codec = codec_for(None)
    assert codec.decode(codec.encode(payload)) == payload


@settings(max_examples=50)
@given(st.dictionaries(TEXT, JSON, max_size=3))
def test_a_dict_comes_back_and_any_json_reader_understands_it(payload: dict[str, Any]) -> None:
    data = codec_for(dict).encode(payload)
    assert codec_for(dict).decode(data) == payload
    assert json.loads(data) == payload


@settings(max_examples=50)
@given(ORDERS)
def test_a_dataclass_comes_back_with_its_inner_ones(order: Order) -> None:
    codec = codec_for(Order)
    assert codec.decode(codec.encode(order)) == order


@settings(max_examples=50)
@given(st.lists(ORDERS, max_size=3))
def test_a_list_of_models_comes_back(orders: list[Order]) -> None:
    codec = codec_for(list[Order])
    assert codec.decode(codec.encode(orders)) == orders


@given(st.binary(max_size=100))
def test_bytes_come_back_whatever_they_are(data: bytes) -> None:
    codec = codec_for(bytes)
    assert codec.decode(codec.encode(data)) == data


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    codec = codec_for(str)
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize(
    ("model", "payload"),
    [
        (Point, Point(1, 2)),
        (Pair, Pair("a", 1)),
        (Row, {"id": 1, "name": "x"}),
        (Account, Account(id=1, name="é")),
        (list[Account], [Account(id=1), Account(id=2, name='"],[')]),
        (list[Account], []),
        (list[Point], [Point(1)]),
        (dict[str, int], {"a": 1}),
        (Any, [1, None]),
    ],
)
def test_every_kind_of_model_comes_back(model: Any, payload: Any) -> None:
    codec = codec_for(model)
    again = codec.decode(codec.encode(payload))
    assert again == payload
    assert type(again) is type(payload)


def test_mutable_bytes_are_copied() -> None:
    data = bytearray(b"abc")
    encoded = codec_for(bytes).encode(data)
    data[0] = 0
    assert encoded == b"abc"
    assert codec_for(bytes).encode(memoryview(b"xy")) == b"xy"


# ── hostile bytes ────────────────────────────────────────────────────────────────────────────────────

HOSTILE = [
    b"",
    b"\x00",
    b"{",
    b"[1,",
    b"\xff\xfe",
    b'"\xed\xa0\x80"',  # a surrogate in UTF-8
    b'"\\ud800"',
    b"nan",
    b"NaN",
    b'{"id": 1e999}',
    b'{"id": ' + b"9" * 5_000 + b"}",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b'{"id": "x"}',
    b'{"id": null, "name": 5}',
    b"{} trailing",
    b"\x80\x04\x95\x00.",  # a pickle
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_what_does_not_fit_the_model_is_a_decode_error(model: Any) -> None:
    """SPEC 17: a delivery that cannot be decoded is buried, with a reason somebody can read."""
    codec = codec_for(model)
    for data in HOSTILE:
        with pytest.raises(DecodeError) as caught:
            codec.decode(data)
        _check_text(str(caught.value))


def _check_text(text: str) -> None:
    assert text.startswith("expected ")
    assert len(text) < 280
    assert "\n" not in text
    text.encode()


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_decode_error(data: bytes) -> None:
    for model in EVERY:
        try:
            codec_for(model).decode(data)
        except DecodeError as error:
            _check_text(str(error))


def test_the_text_says_what_was_expected_what_was_found_and_why() -> None:
    with pytest.raises(DecodeError) as caught:
        codec_for(Order).decode(b'{"id": "x"}')
    assert str(caught.value) == 'expected Order, found b\'{"id": "x"}\': Expected `int`, got `str` - at `$.id`'
    with pytest.raises(DecodeError, match=r"expected Account, found .*valid integer.* - at `id`"):
        codec_for(Account).decode(b'{"id": "x"}')
    with pytest.raises(DecodeError, match="found nothing"):
        codec_for(dict).decode(b"")
    with pytest.raises(DecodeError, match="nested too deeply"):
        codec_for(dict).decode(b'{"a":' * 50_000)
    with pytest.raises(DecodeError, match="expected text, found"):
        codec_for(str).decode(b"\xff")


@pytest.mark.parametrize("model", [Painted, Order, Account, list[Account], Row], ids=str)
def test_an_error_shows_little_of_the_payload(model: Any) -> None:
    """SPEC 53: errors travel to logs and dead letters; a decoder's own words may quote the payload."""
    data = json.dumps({"colour": "s" * 10_000, "id": "s" * 10_000, "name": 1}).encode()
    with pytest.raises(DecodeError) as caught:
        codec_for(model).decode(data)
    assert str(caught.value).count("s" * 81) == 0
    _check_text(str(caught.value))


# ── hostile payloads ─────────────────────────────────────────────────────────────────────────────────


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("model", "payload"),
    [
        (None, float("nan")),
        (dict, {"a": [1.0, float("inf")]}),
        (dict, {"a": "\ud800"}),
        (dict, {"a": object()}),
        (dict, {"a": 10**5_000}),
        (dict, {("a", "b"): 1}),
        (dict, [1]),
        (dict, None),
        (None, _nested(50_000)),
        (None, _endless()),
        (bytes, "text"),
        (str, b"bytes"),
        (str, "\udfff"),
        (Order, {"id": 1}),
        (Order, Order("one")),  # type: ignore[arg-type]
        (Order, Order(1, [Item(5)])),  # type: ignore[arg-type]
        (Order, Order(1, price=float("nan"))),
        (Order, None),
        (Point, Pair("a", 1)),
        (Point, Point("x")),  # type: ignore[arg-type]
        (Pair, ("a", 1)),
        (Row, {"id": 1}),
        (Row, {"id": "1", "name": ""}),
        (Account, {"id": 1}),
        (Account, Account(id=1, name="").model_copy(update={"name": "\ud800"})),
        (list[Order], Order(1)),
        (list[Order], [Order(1), Item("x")]),
        (list[Account], [Account(id=1), None]),
        (list[Account], Account(id=1)),
        (dict[str, int], {"a": "b"}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # pydantic's, about the field we broke
def test_what_could_not_be_read_back_is_refused_when_it_is_written(model: Any, payload: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        codec_for(model).encode(payload)
    assert len(str(caught.value)) < 250
    str(caught.value).encode()


@settings(max_examples=50)
@given(st.sampled_from([Order, Point, Row, Pair]), JSON, SCALARS)
def test_what_a_typed_codec_wrote_it_can_read(model: Any, one: Any, two: Any) -> None:
    codec = codec_for(model)
    payload = {"id": one, "name": two} if model is Row else model(one, two)
    try:
        data = codec.encode(payload)
    except EncodeError:
        return
    codec.decode(data)


def test_a_null_is_no_nan() -> None:
    assert codec_for(dict).encode({"a": None, "null": "null"}) == b'{"a":null,"null":"null"}'
    assert codec_for(Order).encode(Order(1)).endswith(b'"price":null}')


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "small", "large"),
    [
        (None, "x" * 8, "x" * 9),
        (dict, {"a": "12"}, {"a": "123"}),
        (bytes, b"x" * 10, b"x" * 11),
        (str, "é" * 5, "é" * 5 + "x"),
        (dict[str, int], {"a": 1234}, {"a": 12345}),
        (list[int], [1] * 4, [1] * 5),
    ],
    ids=str,
)
def test_both_directions_refuse_more_than_the_limit(model: Any, small: Any, large: Any) -> None:
    tight, wide = codec_for(model, max_bytes=10), codec_for(model)
    assert tight.decode(tight.encode(small)) == small
    with pytest.raises(PayloadTooLarge, match="limit is 10: raise max_bytes"):
        tight.encode(large)
    with pytest.raises(DecodeError, match="limit is 10: raise max_bytes"):
        tight.decode(wide.encode(large))


def test_pydantic_models_and_foreign_codecs_have_the_limit_too() -> None:
    for model, payload in ((Account, Account(id=1)), (list[Account], [Account(id=1)]), (Backwards(), b"x" * 30)):
        with pytest.raises(PayloadTooLarge):
            codec_for(model, max_bytes=10).encode(payload)
        with pytest.raises(DecodeError, match="limit is 10"):
            codec_for(model, max_bytes=10).decode(codec_for(model).encode(payload))


@pytest.mark.parametrize("max_bytes", [0, -1, "huge", 2**40, True])
def test_a_bad_limit_is_refused(max_bytes: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes"):
        codec_for(dict, max_bytes=max_bytes)


def test_a_limit_may_be_written_in_words() -> None:
    with pytest.raises(PayloadTooLarge, match="1,024"):
        codec_for(bytes, max_bytes="1KiB").encode(b"x" * 1_025)


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────────


class Backwards:
    """A user's codec."""

    def encode(self, payload: bytes) -> bytes:
        return payload[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


class Broken:
    name = "broken"

    def encode(self, payload: Any) -> Any:
        return "text" if payload == "str" else 1 / 0

    def decode(self, data: bytes) -> Any:
        raise KeyError("s" * 5_000)


def test_a_codec_of_the_user_is_taken() -> None:
    codec = codec_for(Backwards())
    assert codec.encode(b"abc") == b"cba"
    assert codec.decode(b"cba") == b"abc"
    assert codec.name == "Backwards"


def test_whatever_a_codec_of_the_user_raises_becomes_an_error_of_ours() -> None:
    codec = codec_for(Broken())
    with pytest.raises(EncodeError, match="broken: division by zero"):
        codec.encode(1)
    with pytest.raises(EncodeError, match="make it return bytes"):
        codec.encode("str")
    with pytest.raises(DecodeError) as caught:
        codec.decode(b"x")
    _check_text(str(caught.value))


@pytest.mark.parametrize(
    "model", [int, object, list, set[int], 5, "dict", print, tuple[int, int], int | str, [dict]], ids=str
)
def test_anything_else_is_refused_with_a_list_of_what_is_accepted(model: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"accepted are None, dict or Any \(JSON\), bytes, str, a dataclass"
    ) as caught:
        codec_for(model)
    assert "pydantic" in str(caught.value)


def test_a_class_of_codecs_is_not_an_instance() -> None:
    with pytest.raises(ConfigError, match=r"pass an instance of it, Backwards\(\)"):
        codec_for(Backwards)
    with pytest.raises(ConfigError, match=r"pass an instance of it, FieldsCodec\(\)"):
        codec_for(FieldsCodec)


def test_a_model_whose_types_cannot_be_found_is_refused() -> None:
    @dataclass
    class Lost:
        inner: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="no codec for Lost"):
        codec_for(Lost)


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    code = "import sys, headrace.codec as c; c.codec_for(dict); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── entries ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_payload_is_found_wherever_its_field_stands() -> None:
    read = decode_fields(codec_for(dict))
    assert read([b"payload", b'{"a":1}']) == {"a": 1}
    assert read([b"x", b"payload", b"payload", b"{}", b"payload", b"[]"]) == {}
    with pytest.raises(DecodeError, match=r"expected a field 'payload', found b'x', b'y'.*FieldsCodec\(\)"):
        read([b"x", b"1", b"y", b"2"])
    with pytest.raises(DecodeError, match="found none"):
        read([])
    with pytest.raises(DecodeError) as caught:
        read([b"s" * 1_000, b"v" * 1_000] * 50)
    assert len(str(caught.value)) < 350


def test_entries_of_other_producers_are_read_whole() -> None:
    codec = codec_for(FieldsCodec())
    read = decode_fields(codec)
    assert read([b"a", b"1", b"_key", b"k", b"b", "é".encode(), b"a", b"2"]) == {"a": "1", "b": "é"}
    assert decode_fields(codec, "x-")([b"_a", b"1", b"x-key", b"k"]) == {"_a": "1"}
    assert read([]) == {}
    with pytest.raises(DecodeError, match="not UTF-8"):
        read([b"a", b"\xff"])
    with pytest.raises(DecodeError, match="not UTF-8"):
        read([b"\xff", b""])


def test_entries_for_other_consumers_are_written_whole() -> None:
    codec = codec_for(FieldsCodec())
    assert encode_fields(codec, {"a": "1", "n": 2, "f": 0.5, "b": b"\xff"}) == [
        "a",
        "1",
        "n",
        "2",
        "f",
        "0.5",
        "b",
        b"\xff",
    ]
    assert encode_fields(codec_for(bytes), b"x") == ["payload", b"x"]
    for bad in (
        {},
        None,
        "text",
        {"a": None},
        {"a": True},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": 10**5_000},
        {None: 1},
    ):
        with pytest.raises(EncodeError):
            encode_fields(codec, bad)


@settings(max_examples=50)
@given(st.dictionaries(st.text("ab☃", min_size=1), TEXT, min_size=1, max_size=5))
def test_fields_come_back(fields: dict[str, str]) -> None:
    codec = codec_for(FieldsCodec())
    flat = [part if isinstance(part, bytes) else part.encode() for part in encode_fields(codec, fields)]
    assert decode_fields(codec)(flat) == fields


def test_one_value_of_a_whole_entry_is_refused() -> None:
    codec = codec_for(FieldsCodec())
    with pytest.raises(CodecError, match="encode_fields"):
        codec.encode({})
    with pytest.raises(CodecError, match="decode_fields"):
        codec.decode(b"")
