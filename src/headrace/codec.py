"""Payload <-> bytes: JSON, text or bytes, and models on top of JSON. Never pickle: no code in payloads.

codec_for() chooses by model; the codecs themselves stand in codecs.py. All keep three promises, so that
services need to know nothing about them:
  1. encode() raises EncodeError, and decode() DecodeError, and neither anything else;
  2. both refuse more than `max_bytes`;
  3. what a typed codec encodes it can decode: a dataclass whose field holds the wrong type is refused when it
     is added, not buried by the worker that reads it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.codecs import (
    BytesCodec,
    ForeignCodec,
    JsonCodec,
    PydanticCodec,
    PydanticListCodec,
    TextCodec,
)
from headrace.errors import ConfigError, DecodeError
from headrace.fields import (
    FIELD,
    FIELD_BYTES,
    PREFIX,
    FieldsCodec,
    find_field,
    headers_of,
    key_of,
    own_fields,
    pack_fields,
    shown_fields,
)
from headrace.options import shown, size_bytes

__all__ = [
    "FIELD",
    "MAX_BYTES",
    "Codec",
    "FieldsCodec",
    "codec_for",
    "decode_fields",
    "encode_fields",
    "find_field",
    "headers_of",
    "key_of",
    "own_fields",
    "pack_fields",
]

T = TypeVar("T")

MAX_BYTES = 64 * 1024 * 1024  # of one encoded payload

_ACCEPTED = (
    "None, dict or Any (JSON), bytes, str, a dataclass, TypedDict, NamedTuple, msgspec.Struct or pydantic "
    "model, list[...] of one, or an object with encode() and decode()"
)


class Codec(Protocol[T]):
    """Turns payloads into bytes and back."""

    @property
    def name(self) -> str:
        """What it is called in errors."""

    def encode(self, payload: T) -> bytes:
        """Return the payload as bytes, or raise EncodeError."""

    def decode(self, data: bytes) -> T:
        """Return the payload, or raise DecodeError."""


def codec_for(model: Any = None, *, max_bytes: int | str = MAX_BYTES) -> Codec[Any]:
    """Return the codec for what a user gave as model. Raises ConfigError, which lists what is accepted.

    >>> codec_for(dict).decode(b'{"id": 1}')
    {'id': 1}
    """
    limit = size_bytes(max_bytes, name="max_bytes")
    if model is None or model is Any:
        return JsonCodec(Any, "JSON", limit)
    if model is dict:
        return JsonCodec(dict[str, Any], "a JSON object", limit, instance=dict)
    if model is bytes:
        return BytesCodec(limit)
    if model is str:
        return TextCodec(limit)
    if typing.get_origin(model) is not None:
        return _codec_for_container(model, limit)
    if isinstance(model, type):
        return _codec_for_class(model, limit)
    if callable(getattr(model, "encode", None)) and callable(getattr(model, "decode", None)):
        return model if isinstance(model, FieldsCodec) else ForeignCodec(model, limit)
    raise _refused(model)


def _codec_for_container(model: Any, limit: int) -> Codec[Any]:
    """Choose for list[...] and dict[...]."""
    origin, inner = typing.get_origin(model), typing.get_args(model)
    if origin is dict:
        return JsonCodec(model, "a JSON object", limit, instance=dict, check=True)
    if origin is not list:
        raise _refused(model)
    if _is_pydantic(inner[0]):
        return PydanticListCodec(inner[0], limit)
    return JsonCodec(model, f"a list of {_name_of(inner[0])}", limit, instance=list, check=True)


def _codec_for_class(model: type, limit: int) -> Codec[Any]:
    if _is_pydantic(model):
        return PydanticCodec(model, limit)
    if typing.is_typeddict(model):
        return JsonCodec(model, model.__name__, limit, instance=dict, check=True)
    named_tuple = issubclass(model, tuple) and hasattr(model, "_fields")
    if dataclasses.is_dataclass(model) or issubclass(model, msgspec.Struct) or named_tuple:
        return JsonCodec(model, model.__name__, limit, instance=model, check=True)
    if callable(getattr(model, "encode", None)) and callable(getattr(model, "decode", None)):
        raise ConfigError(f"{model.__name__} is a class: pass an instance of it, {model.__name__}()")
    raise _refused(model)


def _is_pydantic(model: Any) -> bool:
    """Known by its methods, so that pydantic is never imported for those who do not use it."""
    methods = ("model_validate_json", "model_dump_json")
    return isinstance(model, type) and all(hasattr(model, method) for method in methods)


def _name_of(model: Any) -> str:
    return str(getattr(model, "__name__", "")) or shown(model)


def _refused(model: Any) -> ConfigError:
    return ConfigError(f"no codec for {_name_of(model)}: accepted are {_ACCEPTED}")


# ── whole entries ────────────────────────────────────────────────────────────────────────────────────


def decode_fields(codec: Codec[Any], prefix: str = PREFIX) -> Callable[[Sequence[bytes]], Any]:
    """Return the function from an entry's flat fields to its payload; all it raises is DecodeError."""
    if isinstance(codec, FieldsCodec):
        whole, own = codec.decode_entry, prefix.encode()
        return lambda flat: whole(flat, own)
    decode = codec.decode

    def payload_of(flat: Sequence[bytes]) -> Any:
        if len(flat) > 1 and flat[0] == FIELD_BYTES:  # where pack_fields puts it
            return decode(flat[1])
        data = find_field(flat, FIELD_BYTES)
        if data is None:
            raise DecodeError(
                f"expected a field {FIELD!r}, found {shown_fields(flat)}: if another producer wrote it, "
                "give the stream FieldsCodec() as its model"
            )
        return decode(data)

    return payload_of


def encode_fields(codec: Codec[Any], payload: Any) -> list[bytes | str]:
    """Return the flat fields that hold a payload; own_fields() go behind them. Raises EncodeError."""
    if isinstance(codec, FieldsCodec):
        return codec.encode_entry(payload)
    return [FIELD, codec.encode(payload)]
