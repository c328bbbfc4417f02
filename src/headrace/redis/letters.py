"""Reads what bury.lua and replay.lua wrote: dead letters, and copies made for one group."""

from __future__ import annotations

from typing import Final, NamedTuple

WIDE: Final = 7_000  # words from which on an original is packed into one field (bury.lua)


class Letter(NamedTuple):
    """A dead letter, taken apart: the message as it was, and what is known about its burial."""

    original: list[bytes]  # names and values in turn, byte for byte
    about: dict[str, bytes]  # names without the prefix


class Requeued(NamedTuple):
    """A message that was requeued (requeue.lua, or another client of its protocol)."""

    retries: int
    original_id: str  # "": not told
    fields: list[bytes]


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


def open_requeued(fields: list[bytes], prefix: str = "_") -> Requeued | None:
    """Take a requeued copy apart, wherever its two fields stand; None for every other message."""
    count_name, id_name = f"{prefix}retry_count".encode(), f"{prefix}original_id".encode()
    names = fields[::2]
    if count_name not in names:
        return None
    is_replayed = len(fields) > 3 and fields[2] == f"{prefix}only".encode()
    retries, original_id = 0, b""
    rest: list[bytes] = []
    for at in range(0, len(fields), 2):
        name, value = fields[at], fields[at + 1]
        if name == count_name:
            retries = retry_count(value)
        elif name == id_name and not (at == 0 and is_replayed):
            original_id = value
        else:
            rest += (name, value)
    return Requeued(retries, original_id.decode("utf-8", "backslashreplace"), _unpacked(rest, prefix))


def retry_count(value: bytes) -> int:
    """Read what anybody may have written: no small whole number counts as none (as requeue.lua and the Go client)."""
    return int(value) if 0 < len(value) < 10 and value.isdigit() else 0


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
