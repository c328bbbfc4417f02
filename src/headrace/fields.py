"""The fields of an entry: one for the payload, the others our own under a prefix (SPEC 41).

    payload        the encoded payload, and nothing else
    _key           idempotency key, if one was given
    _traceparent   W3C trace context
    _h:<name>      one header

Entries stay flat lists [name, value, name, value, ...] of bytes, as the server sends them: a dict would drop
repeated names, and making one costs more than reading the one field needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import DecodeError, EncodeError, NameRefused
from headrace.names import check_key
from headrace.options import shown

FIELD = "payload"
FIELD_BYTES = FIELD.encode()
PREFIX = "_"
KEY = "key"
TRACEPARENT = "traceparent"
HEADER = "h:"

HEADERS_LIMIT = 100  # headers of one message
HEADER_NAME_LIMIT = 200  # bytes
HEADER_VALUE_LIMIT = 16_384  # bytes


def pack_fields(
    data: bytes,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    traceparent: str | None = None,
    prefix: str = PREFIX,
) -> list[bytes | str]:
    """Return the flat fields of an entry: the payload first, so that finding it costs one comparison.

    >>> pack_fields(b"{}", key="order-1", headers={"tenant": "a"})
    ['payload', b'{}', '_key', 'order-1', '_h:tenant', 'a']
    """
    return [FIELD, data, *own_fields(key=key, headers=headers, traceparent=traceparent, prefix=prefix)]


def own_fields(
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    traceparent: str | None = None,
    prefix: str = PREFIX,
) -> list[bytes | str]:
    """Return only what Headrace adds to an entry, checked. Raises NameRefused or EncodeError."""
    flat: list[bytes | str] = []
    if key is not None:
        flat += [prefix + KEY, check_key(key)]
    if traceparent is not None:
        flat += [prefix + TRACEPARENT, _check_text(traceparent, "traceparent", HEADER_NAME_LIMIT)]
    if headers:
        if len(headers) > HEADERS_LIMIT:
            raise EncodeError(
                f"{len(headers)} headers: at most {HEADERS_LIMIT} are allowed, put the rest in the payload"
            )
        for name, value in headers.items():
            _check_text(name, "header name", HEADER_NAME_LIMIT)
            flat += [
                f"{prefix}{HEADER}{name}",
                _check_text(value, f"header {name[:40]!r}", HEADER_VALUE_LIMIT, empty=True),
            ]
    return flat


def _check_text(value: object, what: str, limit_bytes: int, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise EncodeError(f"{what} is a {type(value).__name__}: give a str")
    if not value and not empty:
        raise EncodeError(f"{what} is empty: give at least one character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise EncodeError(f"{what} holds a lone surrogate, which UTF-8 cannot write: remove it") from None
    if size > limit_bytes:
        raise EncodeError(f"{what} has {size} bytes: at most {limit_bytes} are allowed, put it in the payload")
    return value


def find_field(flat: Sequence[bytes], name: bytes) -> bytes | None:
    """Return the value of the first field with this name, or None. Values that look like names are none."""
    if len(flat) > 1 and flat[0] == name:
        return flat[1]
    for at in range(2, len(flat) - 1, 2):
        if flat[at] == name:
            return flat[at + 1]
    return None


def headers_of(flat: Sequence[bytes], prefix: str = PREFIX) -> dict[str, str]:
    """Return the headers of an entry; bytes that are not UTF-8 are replaced: a header is for reading."""
    front = (prefix + HEADER).encode()
    headers: dict[str, str] = {}
    for at in range(0, len(flat) - 1, 2):
        if flat[at].startswith(front):
            headers.setdefault(flat[at][len(front) :].decode(errors="replace"), flat[at + 1].decode(errors="replace"))
    return headers


def key_of(flat: Sequence[bytes], prefix: str = PREFIX) -> str | None:
    """Return the idempotency key an entry was added with, or None if there is none that could be one."""
    found = find_field(flat, (prefix + KEY).encode())
    if found is None:
        return None
    try:
        return check_key(found.decode())
    except (UnicodeDecodeError, NameRefused):
        return None  # written by somebody else; a message is not refused for that


def shown_fields(flat: Sequence[bytes]) -> str:
    """Name the fields of an entry, for an error: bounded, without values."""
    names = [shown(name, 20) for name in flat[0:10:2]]
    return ", ".join(names) + (", ..." if len(flat) > 10 else "") if names else "none"


class FieldsCodec:
    """Reads and writes whole entries as dict[str, str], for streams that other producers write or read.

    The payload is every field whose name does not start with the prefix. Of a repeated name the first counts;
    `delivery.fields` has them all.
    """

    __slots__ = ()

    name = "fields"

    def __repr__(self) -> str:
        return "<codec fields>"

    def encode_entry(self, payload: object) -> list[bytes | str]:
        """Return the flat fields: text, bytes and numbers are written as they are."""
        if not isinstance(payload, Mapping) or not payload:
            raise EncodeError(f"expected fields, found {shown(payload)}: add a dict with at least one field")
        flat: list[bytes | str] = []
        for name, value in payload.items():
            flat += [_field_text(name, "a field name"), _field_text(value, f"field {shown(name, 40)}")]
        return flat

    def decode_entry(self, flat: Sequence[bytes], prefix: bytes) -> dict[str, str]:
        """Return the fields that are not ours, or raise DecodeError if one is not UTF-8."""
        fields: dict[str, str] = {}
        for at in range(0, len(flat) - 1, 2):
            if flat[at].startswith(prefix):
                continue
            try:
                fields.setdefault(flat[at].decode(), flat[at + 1].decode())
            except UnicodeDecodeError:
                raise DecodeError(
                    f"expected text, found field {shown(flat[at], 40)} = {shown(flat[at + 1], 40)}: not UTF-8"
                ) from None
        return fields

    def encode(self, payload: Any) -> bytes:
        """Refuse: an entry is not one value."""
        raise EncodeError("FieldsCodec writes whole entries: use encode_fields()")

    def decode(self, data: bytes) -> Any:
        """Refuse: an entry is not one value."""
        raise DecodeError("FieldsCodec reads whole entries: use decode_fields()")


def _field_text(value: object, what: str) -> bytes | str:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise EncodeError(f"{what} is a {type(value).__name__}: give text, bytes or a number")
    try:
        text = str(value)
        text.encode()
    except ValueError as error:  # a lone surrogate, or an int of more than 4,300 digits
        raise EncodeError(f"{what} cannot be written as text: {str(error)[:80]}") from error
    return text
