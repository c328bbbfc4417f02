"""The codecs behind codec_for(): what each accepts, and how each says no.

Errors are one bounded line: what was expected, what was found, why. They quote at most the beginning of a
payload, because errors travel to logs and dead letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import CodecError, ConfigError, DecodeError, EncodeError, PayloadTooLarge
from headrace.options import shown

T = TypeVar("T")

SNIPPET_BYTES = 60  # of a payload shown in an error
REASON_HEAD, REASON_TAIL = 50, 40  # characters of what a decoder said: it may quote the payload too

_FAILURES = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)

_TOO_LARGE = ValueError("too large")


class _Limited(Generic[T]):
    """What our codecs share: a name, a limit and the errors."""

    __slots__ = ("max_bytes", "name")

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"<codec {self.name}>"

    def encode(self, payload: T) -> bytes:
        """Return the payload as bytes, or raise EncodeError."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the payload, or raise DecodeError."""
        raise NotImplementedError

    def _within_limit(self, data: bytes) -> bytes:
        if len(data) > self.max_bytes:
            raise PayloadTooLarge(
                f"payload has {len(data):,} bytes and the limit is {self.max_bytes:,}: "
                "raise max_bytes of the stream, or store the data elsewhere and send where it is"
            )
        return data

    def _refuse_type(self, payload: object) -> EncodeError:
        return EncodeError(f"expected {self.name}, found a {type(payload).__name__}: add what the model says")

    def _not_encoded(self, error: BaseException) -> EncodeError:
        return EncodeError(f"payload cannot be written as {self.name}: {_reason(error)}")

    def _not_decoded(self, data: bytes, error: BaseException) -> DecodeError:
        if len(data) > self.max_bytes:
            return DecodeError(f"payload has {len(data):,} bytes and the limit is {self.max_bytes:,}: raise max_bytes")
        return DecodeError(f"expected {self.name}, found {_snippet(data)}: {_reason(error)}")


class JsonCodec(_Limited[Any]):
    """JSON through msgspec. The one on the hot path: decode() is a length check and one call."""

    __slots__ = ("_check", "_decode", "_encode", "_instance")

    def __init__(self, model: Any, name: str, max_bytes: int, *, instance: type = object, check: bool = False) -> None:
        super().__init__(name, max_bytes)
        try:
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(model).decode
        except (TypeError, NameError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"no codec for {name}: {_reason(error)}; use field types that JSON has, defined where "
                "the module can see them"
            ) from error
        self._encode = msgspec.json.Encoder().encode
        self._instance = instance  # what a payload must be an instance of
        self._check = check  # whether to prove on encode that it decodes

    def encode(self, payload: Any) -> bytes:
        """Return the payload as JSON. Refused: what JSON or the model cannot hold, NaN included."""
        if not isinstance(payload, self._instance):
            raise self._refuse_type(payload)
        try:
            data = self._encode(payload)
            if self._check:
                self._decode(data)
            if b"null" in data:
                _refuse_nan(msgspec.to_builtins(payload))
        except _FAILURES as error:
            raise self._not_encoded(error) from error
        return self._within_limit(data)

    def decode(self, data: bytes) -> Any:
        """Return the payload, or raise DecodeError."""
        try:
            if len(data) <= self.max_bytes:
                return self._decode(data)
            error: Exception = _TOO_LARGE
        except _FAILURES as failure:
            error = failure
        raise self._not_decoded(data, error) from error


class BytesCodec(_Limited[bytes]):
    """Bytes as they are."""

    __slots__ = ()

    def __init__(self, max_bytes: int) -> None:
        super().__init__("bytes", max_bytes)

    def encode(self, payload: bytes) -> bytes:
        """Return the bytes, copied if they were mutable."""
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise self._refuse_type(payload)
        return self._within_limit(bytes(payload))

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        if len(data) > self.max_bytes:
            raise self._not_decoded(data, _TOO_LARGE)
        return data


class TextCodec(_Limited[str]):
    """Text as UTF-8."""

    __slots__ = ()

    def __init__(self, max_bytes: int) -> None:
        super().__init__("text", max_bytes)

    def encode(self, payload: str) -> bytes:
        """Return the text as UTF-8. A lone surrogate is refused."""
        if not isinstance(payload, str):
            raise self._refuse_type(payload)
        try:
            return self._within_limit(payload.encode())
        except UnicodeEncodeError as error:
            raise self._not_encoded(error) from error

    def decode(self, data: bytes) -> str:
        """Return the text, or raise DecodeError if it is not UTF-8."""
        try:
            if len(data) <= self.max_bytes:
                return data.decode()
            error: Exception = _TOO_LARGE
        except UnicodeDecodeError as failure:
            error = failure
        raise self._not_decoded(data, error) from error


class PydanticCodec(_Limited[Any]):
    """A pydantic model, by its own methods."""

    __slots__ = ("_model", "_validate")

    def __init__(self, model: Any, max_bytes: int) -> None:
        super().__init__(model.__name__, max_bytes)
        self._model = model
        self._validate: Callable[[bytes], Any] = model.model_validate_json

    def encode(self, payload: Any) -> bytes:
        """Return the model as JSON."""
        if not isinstance(payload, self._model):
            raise self._refuse_type(payload)
        try:
            data: bytes = payload.model_dump_json().encode()
        except _FAILURES as error:
            raise self._not_encoded(error) from error
        return self._within_limit(data)

    def decode(self, data: bytes) -> Any:
        """Return the model, validated, or raise DecodeError."""
        try:
            if len(data) <= self.max_bytes:
                return self._validate(data)
            error: Exception = _TOO_LARGE
        except _FAILURES as failure:
            error = failure
        raise self._not_decoded(data, error) from error


class PydanticListCodec(_Limited[list[Any]]):
    """A list of pydantic models: cut into items by msgspec, each read by its model."""

    __slots__ = ("_cut", "_item")

    def __init__(self, model: Any, max_bytes: int) -> None:
        super().__init__(f"a list of {model.__name__}", max_bytes)
        self._item = PydanticCodec(model, max_bytes)
        self._cut = msgspec.json.Decoder(list[msgspec.Raw]).decode

    def encode(self, payload: list[Any]) -> bytes:
        """Return the models as one JSON list."""
        if not isinstance(payload, list):
            raise self._refuse_type(payload)
        return self._within_limit(b"[" + b",".join([self._item.encode(item) for item in payload]) + b"]")

    def decode(self, data: bytes) -> list[Any]:
        """Return the models, validated, or raise DecodeError for the first that is wrong."""
        try:
            if len(data) <= self.max_bytes:
                return [self._item.decode(bytes(raw)) for raw in self._cut(data)]
            error: Exception = _TOO_LARGE
        except _FAILURES as failure:
            error = failure
        raise self._not_decoded(data, error) from error


class ForeignCodec(_Limited[Any]):
    """A user's own codec, held to the promises of ours: whatever it raises becomes an error of the tree."""

    __slots__ = ("_codec",)

    def __init__(self, codec: Any, max_bytes: int) -> None:
        super().__init__(str(getattr(codec, "name", None) or type(codec).__name__), max_bytes)
        self._codec = codec

    def encode(self, payload: Any) -> bytes:
        """Return what the user's codec made of it, if that is bytes."""
        try:
            data = self._codec.encode(payload)
        except CodecError:
            raise
        except Exception as error:  # a stranger's code may raise anything
            raise self._not_encoded(error) from error
        if not isinstance(data, bytes):
            raise EncodeError(f"codec {self.name} encoded to a {type(data).__name__}: make it return bytes")
        return self._within_limit(data)

    def decode(self, data: bytes) -> Any:
        """Return what the user's codec made of it."""
        try:
            if len(data) <= self.max_bytes:
                return self._codec.decode(data)
            error: Exception = _TOO_LARGE
        except CodecError:
            raise
        except Exception as failure:  # noqa: BLE001 - the same, raised below
            error = failure
        raise self._not_decoded(data, error) from error


# ── words ────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_nan(value: Any) -> None:
    """Raise ValueError if a NaN or an infinity is in there: msgspec would write null for it, silently."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_nan(key)
            _refuse_nan(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_nan(item)


def _snippet(data: bytes) -> str:
    if not data:
        return "nothing"
    return shown(data, SNIPPET_BYTES)


def _reason(error: BaseException) -> str:
    """Say in one bounded line why it failed."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = _first_problem(error) or str(error) or type(error).__name__
    line = " ".join(text.split())
    if len(line) > REASON_HEAD + REASON_TAIL + 5:
        line = f"{line[:REASON_HEAD]} ... {line[-REASON_TAIL:]}"
    return line.encode(errors="backslashreplace").decode()


def _first_problem(error: BaseException) -> str:
    """Take the first of a pydantic error's problems; its own text has many lines and quotes the input."""
    problems = getattr(error, "errors", None)
    if not callable(problems):
        return ""
    try:
        first = problems(include_input=False, include_url=False)[0]
        return f"{first['msg']} - at `{'.'.join(str(step) for step in first['loc']) or '$'}`"
    except (TypeError, LookupError):
        return ""  # something else that has .errors
