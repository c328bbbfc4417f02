"""Reads what bury.lua and replay.lua wrote: dead letters, and copies made for one group."""

from __future__ import annotations

from typing import Final, NamedTuple

WIDE: Final = 7_000  # words from which on an original is packed into one field (bury.lua)


class Letter(NamedTuple):
    """A dead letter, taken apart: the message as it was, and what is known about its burial."""

    original: list[bytes]  # names and values in turn, byte for byte
    about: dict[str, bytes]  # names without the prefix


class Copy(NamedTuple):
    """A message that replay had to append again, because the original was trimmed."""

    original_id: str
    only: str  # the one group it is for: the others ack it unseen
    fields: list[bytes]


def open_letter(fields: list[bytes], prefix: str = "_") -> Letter | None:
    """Take a dead letter apart; None if it is none of ours. A buried copy comes out as the original."""
    mark = f"{prefix}n".encode()
    at = next((at for at in range(len(fields) - 2, -1, -2) if fields[at] == mark), None)
    if at is None or not fields[at + 1].isdigit():
        return None
    about = {
        name.decode("utf-8", "backslashreplace").removeprefix(prefix): value
        for name, value in zip(fields[at + 2 :: 2], fields[at + 3 :: 2], strict=True)
    }
    original = _unpacked(fields[:at], prefix) if int(fields[at + 1]) > WIDE else fields[:at]
    copy = open_copy(original, prefix)
    return Letter(copy.fields if copy else original, about)


def open_copy(fields: list[bytes], prefix: str = "_") -> Copy | None:
    """Take a replayed copy apart; None for every other message. Cheap where the first name tells."""
    if len(fields) < 4 or fields[0] != f"{prefix}original_id".encode():
        return None
    if fields[2] != f"{prefix}only".encode():
        return None
    return Copy(fields[1].decode(), fields[3].decode(), _unpacked(fields[4:], prefix))


def _unpacked(fields: list[bytes], prefix: str) -> list[bytes]:
    """The words of an original that was packed into one field ("<length>:<bytes>" each); else as they are."""
    if len(fields) != 2 or fields[0] != f"{prefix}packed".encode():
        return fields
    data, words, at = fields[1], [], 0
    while at < len(data):
        colon = data.index(b":", at)
        end = colon + 1 + int(data[at:colon])
        words.append(data[colon + 1 : end])
        at = end
    return words
