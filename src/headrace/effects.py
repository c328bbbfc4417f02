"""Effects: writes that happen together with an ack, or not at all (SPEC 33).

Lua does not roll back, so everything that can be known before the call is checked here, and what only the
server knows (the type at the key, the number in a hash) is checked by the script before its first write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import EffectRefused
from headrace.names import OWN_MARK
from headrace.options import shown

Value = str | bytes | int | float

ARGS_LIMIT = 7_000  # Lua hands a command at most 8,000 arguments
BYTES_LIMIT = 64 * 1024 * 1024  # of all arguments of one effect
KEY_LIMIT = 4_096  # bytes
NUMBER_LIMIT = 10**15  # Lua's numbers are doubles: below this, sums of two are exact


@dataclass(frozen=True, slots=True)
class Effect:
    """One write. Made by the constructors below, which refuse what could fail on the server.

    >>> Effect.hincrby("{orders}:totals", "paid", 3)
    Effect(command='HINCRBY', key='{orders}:totals', args=(b'paid', b'3'))
    """

    command: str  # XADD, SET, HSET, HINCRBY or ZADD
    key: str  # in the slot of the stream; the script's caller checks that
    args: tuple[bytes, ...]  # what follows the key; XADD's id is always *

    @classmethod
    def xadd(cls, key: str, fields: Mapping[str, Value] | Mapping[bytes, Value]) -> Effect:
        """Append an entry to a stream."""
        return _made("XADD", key, _pairs("XADD", key, fields))

    @classmethod
    def set(cls, key: str, value: Value) -> Effect:
        """Set a string."""
        return _made("SET", key, [_bytes(value, "SET", key)])

    @classmethod
    def hset(cls, key: str, mapping: Mapping[str, Value] | Mapping[bytes, Value]) -> Effect:
        """Set fields of a hash."""
        return _made("HSET", key, _pairs("HSET", key, mapping))

    @classmethod
    def hincrby(cls, key: str, field: str | bytes, by: int = 1) -> Effect:
        """Add to a number in a hash. The number and the sum stay within 10^15."""
        return _made("HINCRBY", key, [_bytes(field, "HINCRBY", key), _whole(by, key)])

    @classmethod
    def zadd(cls, key: str, mapping: Mapping[str, float] | Mapping[bytes, float]) -> Effect:
        """Set the scores of members of a sorted set: {member: score}."""
        args: list[bytes] = []
        for member, score in _items("ZADD", key, mapping):
            args += [_number(score, "ZADD", key), _bytes(member, "ZADD", key)]
        return _made("ZADD", key, args)


def _made(command: str, key: object, args: list[bytes]) -> Effect:
    if not isinstance(key, str) or not key:
        raise _refused(command, key, "needs a key: give a non-empty str")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise _refused(command, key, "has a key with a lone surrogate, which UTF-8 cannot write") from None
    if size > KEY_LIMIT:
        raise _refused(command, key, f"has a key of {size} bytes: at most {KEY_LIMIT} are allowed")
    if OWN_MARK in key:
        raise _refused(command, key, f"writes to a key of Headrace itself ({OWN_MARK!r}): use another key")
    if len(args) > ARGS_LIMIT:
        raise _refused(command, key, f"has {len(args)} arguments: at most {ARGS_LIMIT}, make it two effects")
    if sum(map(len, args)) > BYTES_LIMIT:
        raise _refused(command, key, f"has more than {BYTES_LIMIT:,} bytes of arguments: make it smaller")
    return Effect(command, key, tuple(args))


def _pairs(command: str, key: str, mapping: object) -> list[bytes]:
    args: list[bytes] = []
    for field, value in _items(command, key, mapping):
        if not isinstance(field, (str, bytes)):
            raise _refused(command, key, f"has a field name that is a {type(field).__name__}: give text or bytes")
        args += [_bytes(field, command, key), _bytes(value, command, key)]
    return args


def _items(command: str, key: str, mapping: object) -> list[tuple[object, object]]:
    if not isinstance(mapping, Mapping) or not mapping:
        raise _refused(command, key, f"got {shown(mapping)}: give a dict with at least one item")
    return list(mapping.items())


def _bytes(value: object, command: str, key: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _refused(command, key, "has a lone surrogate in its text, which UTF-8 cannot write") from None
    return _number(value, command, key)


def _number(value: object, command: str, key: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        wanted = "a number" if command == "ZADD" else "text, bytes or a number"
        raise _refused(command, key, f"got a {type(value).__name__}: give {wanted}")
    if isinstance(value, int):
        if not -NUMBER_LIMIT < value < NUMBER_LIMIT:
            raise _refused(command, key, "got a whole number beyond 10^15: give a smaller one, or text")
        return str(value).encode()
    if not math.isfinite(value):
        raise _refused(command, key, f"got {value}: give a finite number")
    return repr(value).encode()


def _whole(by: object, key: str) -> bytes:
    if isinstance(by, bool) or not isinstance(by, int):
        raise _refused("HINCRBY", key, f"adds {shown(by)}: give an int")
    return _number(by, "HINCRBY", key)


def _refused(command: str, key: object, why: str) -> EffectRefused:
    return EffectRefused(f"effect {command} {shown(key)} {why}")
