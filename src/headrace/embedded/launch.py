"""Start one server under its guard, and see it answer."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded import guard
from headrace.embedded.binary import ServerStartFailed
from headrace.embedded.conf import LOOPBACK, ConfigLines, conf_text, own_lines, write_conf
from headrace.embedded.place import Answer, Hold, Place

END_SECONDS = guard.END_SECONDS + 5.0
"""How long a guard may take to see its server off: after this something is badly wrong."""

PORT_TRIES = 5
LOG_STAMP = re.compile(r"^\d+:\w .*?\.\d{3} (?=[#*.-] )")
SECRET_LINE = re.compile(r">>> '\S*(pass|auth|user)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    binary: Path
    config: ConfigLines
    port: int | None  # None: unix socket alone; 0: any free one
    keep: bool  # the folder stays and has an append-only file; else both go with the server


@dataclass(frozen=True, slots=True)
class Running:
    """What was started."""

    guard: subprocess.Popen[bytes]
    pid: int
    port: int | None


def launch(place: Place, life: Hold, plan: Plan, until: float) -> Running:
    """Start a server, whose life lock the caller holds, and return when it answers.

    A free port may be taken by somebody else before the server gets to it: then the next one is tried.
    """
    for tries_left in reversed(range(PORT_TRIES)):
        port = _free_port() if plan.port == 0 else plan.port
        place.pid_file.unlink(missing_ok=True)
        write_conf(place.conf, conf_text({**own_lines(place, port=port or 0, keep=plan.keep), **plan.config}))
        log_start = place.log.stat().st_size if place.log.exists() else 0
        guarding = _spawn(place, life, plan)
        pid = _ready(place, guarding, until)
        if pid is not None:
            return Running(guarding, pid, port)
        guarding.terminate()
        guarding.wait(END_SECONDS)
        words = _last_words(place.log, log_start)
        if plan.port != 0 or "in use" not in words or not tries_left:
            raise ServerStartFailed(f"{plan.binary} did not start: {words}")
    raise AssertionError("unreachable: the last try returns or raises")


def _spawn(place: Place, life: Hold, plan: Plan) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for the program, which may need its server to drain.
    words = (place.users, life.fd, place.folder, "no" if plan.keep else "yes", plan.binary, place.conf)
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(life.fd,),
            start_new_session=True,
        )


def _ready(place: Place, guarding: subprocess.Popen[bytes], until: float) -> int | None:
    """The server's process id as soon as it answers; None when it ended or the time is over."""
    while guarding.poll() is None and time.monotonic() < until:
        pid = place.pid()
        if pid is not None and place.ask() is Answer.READY:
            return pid
        time.sleep(0.005)
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _last_words(log: Path, start: int) -> str:
    """What the server said before it ended, as one short line: the refused line and why, or its last line."""
    if not log.exists():
        return "it left no log"
    with log.open("rb") as file:
        file.seek(start)
        said = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    said = [LOG_STAMP.sub("", line) for line in said if "WARNING" not in line]
    said = [">>> (a line with a secret)" if SECRET_LINE.match(line) else line for line in said]
    blamed = [line.removeprefix("# ") for line in said if line.startswith((">>>", "Bad ", "# "))]
    return "; ".join((blamed or said)[-3:])[:400] or "it said nothing"
