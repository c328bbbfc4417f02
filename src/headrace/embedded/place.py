"""The directory of one embedded server: its files, its locks, and whether somebody answers there.

server.conf  server.log  server.pid  server.sock     what their names say
users.lock   shared by every process that uses the server; the guard waits for it alone
life.lock    held by the server itself: whoever gets it knows that none is running
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
import time
from enum import Enum
from pathlib import Path

from headrace.errors import ConfigError

SOCKET_BYTES = 100
"""A unix socket's path holds 107 bytes on Linux, 103 on macOS; some servers add a suffix of their own."""


class Answer(Enum):
    """What a server said to PING."""

    READY = "ready"
    BUSY = "busy"  # loading its file, or silent
    NONE = "none"  # nobody listens


class Place:
    """The files of one embedded server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "server.conf"
        self.log = folder / "server.log"
        self.pid_file = folder / "server.pid"
        self.users = folder / "users.lock"
        self.life = folder / "life.lock"
        self.socket = _socket_of(folder)

    def pid(self) -> int | None:
        """The server's process id, or None while it is not known."""
        try:
            return int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None

    def ask(self, seconds: float = 0.5) -> Answer:
        """Send PING over the unix socket, without a client library."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(seconds)
            try:
                line.connect(str(self.socket))
                line.sendall(b"PING\r\n")
                said = line.recv(64)
            except (TimeoutError, BlockingIOError):
                return Answer.BUSY
            except OSError:
                return Answer.NONE
        if said.startswith(b"-LOADING"):
            return Answer.BUSY
        return Answer.READY if said else Answer.NONE  # -NOAUTH is an answer too


class Hold:
    """A lock on a file, given back by release() or by the death of the process.

    It is given back by closing the file, never by unlocking it: a forked child shares the lock, and
    unlocking in the child would take it from the parent.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, place: Path, kind: int, *, until: float = 0.0) -> Hold | None:
        """Take the lock, trying until the given monotonic time; None when somebody else kept it."""
        fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                return cls(fd)
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(fd)
                    return None
                time.sleep(0.02)

    def release(self) -> None:
        """Give it back. Twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _socket_of(folder: Path) -> Path:
    """Where the socket lies: in the folder, or under a short name made from it when its path is too long.

    The short name follows from the folder alone, so that every process finds the same one.
    """
    near = folder / "server.sock"
    if len(os.fsencode(near)) <= SOCKET_BYTES:
        return near
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:20] + ".sock"
    for root in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 - the folder below is checked
        far = root / f"headrace-{os.getuid()}" / name
        if len(os.fsencode(far)) <= SOCKET_BYTES:
            _own_folder(far.parent)
            return far
    raise ConfigError(f"no place for a unix socket short enough for {folder}: choose a shorter path")


def _own_folder(folder: Path) -> None:
    """Make a folder that only we may enter, or refuse one that somebody else put there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if folder.is_symlink() or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to other users: remove it, or set TMPDIR to a folder of your own")
