"""What the worker processes did, told into one file beside the server.

Every note is one line and one write to a file opened for appending, so a process that is killed leaves whole lines and
none is torn by another. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

PATH_VARIABLE: Final = "HEADRACE_DEMO_JOURNAL"


class Note(NamedTuple):
    """``what``: start, then done, failed, refused (another owner had it by then) or lethal (its process dies of it)."""

    at: float
    pid: int
    what: str
    id: str
    attempt: int


class Pen:
    """The writing end, one a process. Without the variable it writes to nowhere."""

    def __init__(self) -> None:
        path = os.environ.get(PATH_VARIABLE, os.devnull)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._encoder = msgspec.json.Encoder()

    def note(self, what: str, id_: str, attempt: int) -> None:
        line = self._encoder.encode(Note(time.monotonic(), os.getpid(), what, id_, attempt))
        os.write(self._fd, line + b"\n")


class Journal:
    """The reading end: goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Note)

    def news(self) -> list[Note]:
        """What was noted since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def close(self) -> None:
        self._file.close()
