"""The guard: a small process that starts one embedded server, and ends it when nobody uses it any more.

A program that is killed with -9 cannot end its server, so somebody else must. Every user of the server
holds a shared lock on a file; the kernel gives it back however the user dies. The guard waits for the
exclusive lock on the same file, and having it means: no user is left. Nothing polls, no pid is trusted.

It is run by path, without site-packages, and so imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

END_SECONDS = 10.0
"""A server that does not end by itself within this time is killed."""


def main(users: str, life: str, folder: str, temporary: str, *command: str) -> int:
    """Start `command` in `folder`, and see it to its end.

    1. `life` is an open, locked file: the server inherits it, so that it stays locked as long as the server
       lives, even if this guard is killed.
    2. When the guard ended the server (no users left, or SIGTERM), a temporary folder goes with it. A server
       that died by itself leaves everything where it is: whoever starts it again wants it.
    """
    server = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, pass_fds=(int(life),))
    asked = threading.Event()

    def end(*_: object) -> None:
        asked.set()
        server.send_signal(signal.SIGCONT)  # a paused server would not see the next one
        server.terminate()
        killer = threading.Timer(END_SECONDS, server.kill)
        killer.daemon = True
        killer.start()

    def end_when_unused() -> None:
        fcntl.flock(os.open(users, os.O_RDWR), fcntl.LOCK_EX)  # held until this process exits: nobody gets between
        end()

    signal.signal(signal.SIGTERM, end)
    pid_file = Path(folder, "server.pid")
    _write(pid_file, str(server.pid))
    threading.Thread(target=end_when_unused, daemon=True).start()
    status = server.wait()
    if pid_file.exists() and pid_file.read_text() == str(server.pid):
        pid_file.unlink()
    if asked.is_set() and temporary == "yes":
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _write(place: Path, text: str) -> None:
    """Write so that a reader sees all of it or nothing."""
    half = place.with_suffix(".new")
    half.write_text(text)
    half.replace(place)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
