"""How users write options: durations, sizes, whole numbers and the option names themselves, checked.

Every function takes the option's name, so that its error says which one to change.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import timedelta

from headrace.errors import ConfigError

Duration = int | float | str | timedelta

DURATION_LIMIT_MS = 10 * 365 * 24 * 3_600_000  # ten years: far below what a server's clock and Lua can hold
SIZE_LIMIT_BYTES = 512 * 1024 * 1024  # a server's own limit for one value

LISTED = 150  # words that an error lists

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([a-z]{0,3})", re.ASCII)


def duration_ms(value: Duration, *, name: str = "duration") -> int:
    """Return a duration in whole milliseconds. Numbers are seconds; anything above zero is at least 1 ms.

    >>> duration_ms(1.5), duration_ms("500ms"), duration_ms("1h30m"), duration_ms(timedelta(seconds=2))
    (1500, 500, 5400000, 2000)
    """
    ms = _milliseconds(value, name)
    if ms < 0:
        raise ConfigError(f"{name} is negative: give zero or more, such as 30, '30s' or '500ms'")
    if ms > DURATION_LIMIT_MS:
        raise ConfigError(f"{name} is longer than ten years: give a shorter duration, such as '30s' or '2h'")
    return max(1, round(ms)) if ms > 0 else 0


def _milliseconds(value: Duration, name: str) -> float:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, str):
        return _parse_duration(value, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} is a {type(value).__name__}: give seconds as a number, a timedelta or '30s'")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} is {value}: give a finite number of seconds")
    return value * 1000


def _parse_duration(text: str, name: str) -> float:
    """Read "30s", "1h30m" or a bare number of seconds, as a command line hands it over."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return float(stripped) * 1000
    parts = _PART.findall(stripped) if len(stripped) <= 100 else []
    if not parts or _PART.sub("", stripped).strip():
        raise ConfigError(f"{name} {shown(text)} is not a duration: write a number and ms, s, m, h or d, such as '30s'")
    return sum(float(number) * _UNIT_MS[unit] for number, unit in parts)


def size_bytes(value: int | str, *, name: str = "size") -> int:
    """Return a size in bytes, from a number of bytes or a text such as "64MiB" or "1.5 MB".

    >>> size_bytes("64KiB"), size_bytes(100), size_bytes("2 MB")
    (65536, 100, 2000000)
    """
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip().lower())
        if found is None or found[2] not in _UNIT_BYTES:
            raise ConfigError(f"{name} {shown(value)} is not a size: write bytes, or KiB, MiB, GiB, KB, MB, GB")
        value = int(float(found[1]) * _UNIT_BYTES[found[2]])
    return whole_number(value, name=name, least=1, most=SIZE_LIMIT_BYTES)


def whole_number(value: object, *, name: str, least: int, most: int) -> int:
    """Return the value if it is an int within its limits, else raise ConfigError. True and 1.0 are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {shown(value)}: give a whole number from {least:,} to {most:,}")
    if not least <= value <= most:
        raise ConfigError(f"{name} is {shown(value)}: give a whole number from {least:,} to {most:,}")
    return value


def truth(value: object, *, name: str) -> bool:
    """Return the value if it is True or False, else raise ConfigError: "no" would be true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {shown(value)}: give True or False")
    return value


def refuse_unknown(given: Iterable[str], known: Iterable[str], *, what: str) -> None:
    """Raise ConfigError for the first option nobody knows, naming the nearest one, or all of them."""
    words = sorted(known)
    for word in given:
        if word not in words:
            raise ConfigError(f"{what} has no option {shown(word)}: {did_you_mean(word, words)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which of the known words was meant, or list them all."""
    words = sorted(known)
    near = difflib.get_close_matches(str(word)[:60].lower(), words, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" and {len(words) - LISTED:,} more" if len(words) > LISTED else ""
    return f"there are {', '.join(words[:LISTED])}{more}"


def shown(value: object, limit: int = 60) -> str:
    """Show a value in an error: quoted, on one line, bounded."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return "a huge number"  # its repr may raise
    text = repr(value[: limit + 1] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= limit + 3 else text[:limit] + "..."


def printable(text: str) -> str:
    """Text that a terminal or a log only shows: line ends, escapes and what nobody sees are written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def said(thing: object) -> str:
    """The text of an error or a reason, whatever it is: a stranger's __str__ may raise, or answer no text."""
    try:
        return str(thing)
    except Exception:  # noqa: BLE001 - a stranger's code may raise anything
        return f"a {type(thing).__name__[:60]} that cannot say what it is"
