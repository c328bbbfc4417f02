"""The supervisor and its worker processes, seen from outside: ``headrace run`` in a process of its own.

Run as a program this module is that process: it tells what happens to its children as JSON lines, and ends when the
demo does, however that ends (its standard input is then closed).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from headrace import logs
from headrace.demo.journal import PATH_VARIABLE
from headrace.supervisor import RunOptions, Supervisor

TARGET: Final = "headrace.demo.worker:app"
GRACE_S: Final = 5.0
PATIENCE_S: Final = 30.0  # longer than the supervisor's own, which kills what does not drain


class Crew:
    """Worker processes under one supervisor. ``pids`` are those alive, as far as the supervisor has told."""

    def __init__(self, url: str, processes: int, journal: Path, log: Path) -> None:
        self._news: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.log = log
        self.pids: list[int] = []
        with log.open("ab") as sink:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "headrace.demo.crew", url, str(processes)],
                env={**os.environ, PATH_VARIABLE: str(journal)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which ends them in order
            )
        self._listener = threading.Thread(target=self._listen, name="crew", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            self._news.put(json.loads(line))

    @property
    def alive(self) -> bool:
        return self._supervisor.poll() is None

    def news(self) -> list[dict[str, Any]]:
        """What happened to the workers since the last call: {at, event, pid, ...}."""
        found = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._news.get_nowait())
        for told in found:
            if told["event"] == "child.started":
                self.pids.append(told["pid"])
            elif told["event"] == "child.ended":
                self.pids.remove(told["pid"])
        return found

    def signal(self, pid: int, number: signal.Signals) -> float:
        """Send a signal to one worker and answer when. One that has just died by itself is fine."""
        at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return at

    def stop(self) -> int:
        """Let them finish what they do and end, the paused ones too; answers the supervisor's exit code."""
        for pid in self.pids:
            self.signal(pid, signal.SIGCONT)
        if self.alive:
            self._supervisor.terminate()
        try:
            code = self._supervisor.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # the workers notice, and end by themselves
            code = self._supervisor.wait()
        assert self._supervisor.stdin is not None
        with contextlib.suppress(OSError):
            self._supervisor.stdin.close()
        self._listener.join(1.0)
        if not self._listener.is_alive():  # a pipe that somebody reads cannot be closed
            assert self._supervisor.stdout is not None
            self._supervisor.stdout.close()
        return code


# ── inside the supervisor's process ──


def _end_with_parent() -> None:
    """Wait until nobody holds the other end of standard input, then end as by SIGTERM."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(event: str, about: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"at": time.monotonic(), "event": event, **about}), flush=True)


def main(words: list[str]) -> int:
    url, processes = words
    logs.configure("WARNING")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    options = RunOptions(TARGET, processes=int(processes), log_level="WARNING", grace_s=GRACE_S)
    return Supervisor(options, url, _tell).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
