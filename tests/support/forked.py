"""Processes forked by a zygote that has headrace imported: real ones, with 0.3 s of work less at each start."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ("headrace.app", "headrace.supervisor", "headrace.cli", "tests.support.history", "tests.support.workers")
PATIENCE_S = 30.0


class Forked:
    """A forked process, with the calls of subprocess.Popen that tests make."""

    def __init__(self, code: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._zygote = _zygote()
        self.pid = self._zygote.fork({"log": str(log), "env": dict(env), "code": code, "argv": list(argv)})

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._zygote.codes.get(self.pid)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        if not self._zygote.until(lambda: self.pid in self._zygote.codes, timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._zygote.codes[self.pid]

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Zygote:
    """The forking process, and what it has told: a test process has one."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}  # pid -> exit code
        self._born: dict[int, int] = {}  # number of the order -> pid
        self._orders = 0
        self._told = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", *PRELOADED],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, name="zygote", daemon=True).start()
        atexit.register(self.close)

    def fork(self, order: dict[str, object]) -> int:
        self._orders += 1
        number = self._orders
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"number": number, **order}).encode() + b"\n")
        self._process.stdin.flush()
        if not self.until(lambda: number in self._born, PATIENCE_S):
            raise AssertionError("the zygote forks no more")
        return self._born.pop(number)

    def until(self, happened: Callable[[], bool], timeout: float) -> bool:
        with self._told:
            return self._told.wait_for(happened, timeout)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *numbers = line.split()
            with self._told:
                if word == b"born":
                    self._born[int(numbers[0])] = int(numbers[1])
                    self.codes.pop(int(numbers[1]), None)  # a number that was another's before
                elif word == b"died":
                    self.codes[int(numbers[0])] = int(numbers[1])
                self._told.notify_all()


_one: list[Zygote] = []


def _zygote() -> Zygote:
    if not _one:
        _one.append(Zygote())
    return _one[0]
