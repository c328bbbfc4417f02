"""Writes the lines that tests/support/history.py reads, with nothing but the standard library: a peer's environment has
the peer in it, and none of our packages."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Pen:
    """One a process. A line is one write to a file opened with O_APPEND, so none is torn."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, op: str, *, id: str = "", owner: str = "", **about: Any) -> None:  # noqa: A002 - the line's word
        line = {"at": time.monotonic(), "pid": os.getpid(), "op": op, "id": id, "owner": owner, "about": about}
        os.write(self._fd, json.dumps(line).encode() + b"\n")
