"""What happened, told by every process into files outside the Redis under test.

Each line is JSON: {at, pid, op, kind, id, owner, attempt, about}. `at` is CLOCK_MONOTONIC, which all processes of a
machine share, so the lines of several processes merge exactly. `kind` is invoke, ok, fail or info (outcome unknown).
A line is one write to a file opened with O_APPEND: a process that is killed leaves whole lines, and none is torn by
another.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal["", "invoke", "ok", "fail", "info"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    at: float
    pid: int
    op: str
    kind: Kind = ""
    id: str = ""
    owner: str = ""
    attempt: int = 0
    about: dict[str, Any] = {}


class Pen:
    """The writing end, one a process."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._encode = msgspec.json.Encoder().encode

    def note(
        self,
        op: str,
        kind: Kind = "",
        *,
        id: str = "",  # noqa: A002 - the word of the line
        owner: str = "",
        attempt: int = 0,
        **about: Any,
    ) -> None:
        event = Event(time.monotonic(), os.getpid(), op, kind, id, owner, attempt, about)
        os.write(self._fd, self._encode(event) + b"\n")

    def note_all(self, events: list[Event]) -> None:
        """Many lines in one write, for a producer that adds by the hundred."""
        os.write(self._fd, b"".join(self._encode(event) + b"\n" for event in events))

    def close(self) -> None:
        os.close(self._fd)


class History:
    """The reading end: everything that was noted so far, by all processes, in order of time.

    The path is one file, or a folder with a file for each process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            path.touch()

    def events(self, op: str = "", **wanted: Any) -> list[Event]:
        """The events of one kind (or all), with these values."""
        decode = msgspec.json.Decoder(Event).decode
        files = sorted(self.path.glob("*.jsonl")) if self.path.is_dir() else [self.path]
        found = [decode(line) for file in files for line in _whole_lines(file.read_bytes())]
        fits = [event for event in found if op in ("", event.op) and _fits(event, wanted)]
        return sorted(fits, key=lambda event: event.at)

    def starts(self, **wanted: Any) -> list[Event]:
        """Every start of a handler."""
        return self.events("start", **wanted)

    def ends(self, **wanted: Any) -> list[Event]:
        """Every handler that came to its end."""
        return self.events("end", **wanted)


def _fits(event: Event, wanted: dict[str, Any]) -> bool:
    return all(getattr(event, name, event.about.get(name)) == value for name, value in wanted.items())


def _whole_lines(told: bytes) -> list[bytes]:
    """The last line may be half written while it is read, and of one that was killed at the end of a page it stays so:
    the next line follows it at once."""
    lines = told[: told.rfind(b"\n") + 1].splitlines()
    return [line[max(0, line.rfind(b'{"at":')) :] for line in lines]
