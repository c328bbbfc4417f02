"""What happened, told by every process into one file outside the Redis under test.

Each line is JSON: {at, pid, op, id, owner, attempt, ...}. `at` is CLOCK_MONOTONIC, which all processes of a machine
share, so the lines of several processes merge exactly. A line is one write to a file opened with O_APPEND: a process
that is killed leaves whole lines, and none is torn by another.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    at: float
    pid: int
    op: str
    id: str = ""
    owner: str = ""
    attempt: int = 0
    about: dict[str, Any] = field(default_factory=dict)


class Pen:
    """The writing end, one a process."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, op: str, **about: Any) -> None:
        line = {"at": time.monotonic(), "pid": os.getpid(), "op": op, **about}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class History:
    """The reading end: everything that was noted so far, by all processes, in order of time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def events(self, op: str = "", **wanted: Any) -> list[Event]:
        """The events of one kind (or all), with these values."""
        told = self.path.read_bytes()
        whole = told[: told.rfind(b"\n") + 1]  # the last line may be half written while it is read
        found = [_event(json.loads(line)) for line in whole.splitlines()]
        fits = [event for event in found if op in ("", event.op) and _fits(event, wanted)]
        return sorted(fits, key=lambda event: event.at)

    def starts(self, **wanted: Any) -> list[Event]:
        """Every start of a handler."""
        return self.events("start", **wanted)

    def ends(self, **wanted: Any) -> list[Event]:
        """Every handler that came to its end."""
        return self.events("end", **wanted)


def _event(line: dict[str, Any]) -> Event:
    known = {name: line.pop(name) for name in ("at", "pid", "op", "id", "owner", "attempt") if name in line}
    return Event(**known, about=line)


def _fits(event: Event, wanted: dict[str, Any]) -> bool:
    return all(getattr(event, name, event.about.get(name)) == value for name, value in wanted.items())
