"""Dead letters as a command names, chooses and prints them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.cli.show import LONG, NUMBER, SHORT, TEXT, Show, ago, as_text, brief, many, plain, readable
from headrace.deadletters import DeadLetter
from headrace.errors import ConfigError
from headrace.fields import headers_of, key_of
from headrace.options import did_you_mean, shown

_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)
_FILTER = re.compile(r"([a-z_]+)([=~])(.*)", re.DOTALL)
_FIELDS: dict[str, Callable[[DeadLetter], str]] = {
    "error": lambda letter: letter.error,
    "reason": lambda letter: letter.reason,
    "owner": lambda letter: letter.owner,
    "attempts": lambda letter: str(letter.attempts),
    "id": lambda letter: letter.id,
    "original_id": lambda letter: letter.original_id,
    "payload": lambda letter: as_text(letter.payload or b""),
}
FIELDS = ", ".join(_FIELDS)
LAST_MS = 253_402_300_799_999  # the last one of the year 9999, where calendars end

Match = Callable[[DeadLetter], bool]


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────────


def check_ids(ids: Sequence[str]) -> Sequence[str]:
    """Ids as the server writes them, or ConfigError: anything else it would refuse in the middle of the work."""
    for each in ids:
        if not _ID.fullmatch(each):
            raise ConfigError(
                f"{shown(each)} is no id: write it as headrace dlq list shows it, such as 1700000000000-0"
            )
    return ids


def matching(filters: Sequence[str] | None) -> Match:
    """A test that all of the --where filters hold. FIELD=VALUE is equal, FIELD~TEXT contains, in any case."""
    tests = [_test(text) for text in filters or ()]
    return lambda letter: all(test(letter) for test in tests)


def _test(text: str) -> Match:
    found = _FILTER.fullmatch(text)
    if found is None:
        raise ConfigError(f"--where {shown(text)} is neither FIELD=VALUE nor FIELD~TEXT: write error=ValueError")
    name, sign, wanted = found.groups()
    if name not in _FIELDS:
        raise ConfigError(f"--where knows no field {shown(name)}: {did_you_mean(name, _FIELDS)}")
    read = _FIELDS[name]
    if sign == "=":
        return lambda letter: read(letter) == wanted
    return lambda letter: wanted.casefold() in read(letter).casefold()


def id_order(id_: str) -> tuple[int, int]:
    """Ids compare as two numbers, not as text."""
    ms, _, number = id_.partition("-")
    return int(ms), int(number or 0)


# ── printing ─────────────────────────────────────────────────────────────────────────────────────────


def letter_object(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter for programs. Its payload is the value if it is JSON, else text, else base64."""
    return {
        "id": letter.id,
        "original_id": letter.original_id,
        "stream": letter.stream,
        "group": letter.group,
        "owner": letter.owner,
        "attempts": letter.attempts,
        "first_ms": letter.first_ms,
        "last_ms": letter.last_ms,
        "error": letter.error,
        "reason": letter.reason,
        "key": key_of(letter.fields),
        "headers": headers_of(letter.fields),
        "payload": None if letter.payload is None else readable(letter.payload),
    }


def pairs(letter: DeadLetter) -> list[tuple[bytes, bytes]]:
    """The original fields, repeated names included."""
    return list(zip(letter.fields[::2], letter.fields[1::2], strict=True))


def print_list(show: Show, stream: str, letters: Sequence[DeadLetter], total: int) -> None:
    if not letters:
        show.line(f"{stream} has no dead letters" if not total else f"none of {total:,} dead letters matches")
        return
    columns = [("id", TEXT), ("buried", NUMBER), ("group", TEXT), ("tries", NUMBER), ("error", TEXT), ("reason", LONG)]
    now_ms = time.time() * 1000
    rows = [
        (
            letter.id,
            ago(now_ms - letter.last_ms) if letter.last_ms else "",
            letter.group or "(not ours)",
            letter.attempts,
            letter.error,
            plain(letter.reason, SHORT),
            brief(letter.payload),
        )
        for letter in letters
    ]
    show.table(f"{many(total, 'dead letter')} of {stream}", [*columns, ("payload", LONG)], rows)


def print_letter(show: Show, letter: DeadLetter) -> None:
    about = {
        "dead letter": letter.id,
        "message": letter.original_id,
        "group": letter.group,
        "last owner": letter.owner,
        "attempts": str(letter.attempts),
        "added": moment(letter.first_ms),
        "buried": moment(letter.last_ms),
        "error": letter.error,
        "reason": letter.reason,
    }
    for name, value in about.items():
        show.pair(name, value)
    show.line("fields", style="bold")
    for field, content in pairs(letter):
        show.pair("  " + as_text(field), as_text(content))


def moment(ms: int) -> str:
    """A time for people, in UTC: servers and workers may stand anywhere."""
    if ms > LAST_MS:
        return f"{ms} ms"  # a forged one
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms else ""
