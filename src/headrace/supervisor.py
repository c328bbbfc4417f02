"""The supervising parent of ``headrace run``: starts children, looks after what they hold, restarts, drains.

    child dies            what it held is handed back at once, a new child is started, with backoff if it keeps dying
    SIGTERM, SIGINT       forwarded; children drain; a second one is forwarded too and ends at once
    parent dies           children notice by their leash, drain and exit
    source changes        with --reload: children drain and are started anew

The parent never loads the user's code: a crash, a leak or a held GIL there cannot touch it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headrace.board import Board
from headrace.child import EXIT_FATAL
from headrace.config import ConnectSettings
from headrace.estates import Estates
from headrace.guardian import Guardian
from headrace.policy import reconnect_delay_ms
from headrace.redis.connect import Server
from headrace.ward import Ward, read_hello

log = logging.getLogger("headrace")

TICK_S = 0.02
STEADY_S = 10.0  # a child that lived this long is not a crash loop


@dataclass(frozen=True, slots=True)
class RunOptions:
    target: str
    processes: int = 1
    concurrency: int | None = None
    burst: bool = False
    reload: bool = False
    grace_s: float = 30.0
    log_level: str = "INFO"


@dataclass(slots=True)
class Child:
    process: subprocess.Popen[bytes]
    board_file: IO[bytes]
    hello: int  # our end of the pipe the child says hello on
    leash: int  # our end of the leash: closing it sets the child free
    begun: float
    said: bytes = b""
    ward: Ward | None = None


@dataclass(slots=True)
class Supervisor:
    options: RunOptions
    url: str
    told: Callable[[str, dict[str, Any]], None] = lambda event, about: None
    connect: ConnectSettings | None = None  # the app's own: what lets its children in must let the parent in
    _children: list[Child] = field(default_factory=list)
    _due: list[float] = field(default_factory=list)  # when children are to be started
    _crashes: int = 0
    _asked: int = 0  # how many stop signals came
    _forwarded: int = 0
    _asked_at: float = 0.0
    _fatal: int = 0

    def run(self) -> int:
        """Until told to stop, or until a burst is done. Answers the exit code."""
        server = Server(self.url, self.connect)
        watch = Guardian(server)
        estates = Estates(server, self.told)
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        watch.start()
        estates.start()
        self._due = [0.0] * self.options.processes
        changes = Changes() if self.options.reload else None
        try:
            while self._due or self._children:
                if not estates.of_a_name_in_use:
                    self._start_due()
                self._hear(watch)
                self._bury_dead(watch, estates)
                self._forward()
                if changes is not None and changes.seen():
                    self._reload()
        finally:
            for child in self._children:
                child.process.kill()
            watch.stop()
            estates.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._fatal

    # ── starting ──

    def _start_due(self) -> None:
        now = time.monotonic()
        for at in [at for at in self._due if at <= now]:
            self._due.remove(at)
            if not self._asked and not self._fatal:
                self._children.append(self._spawn())

    def _spawn(self) -> Child:
        board = tempfile.TemporaryFile(prefix="headrace-board-")  # noqa: SIM115 - it lives as long as the child
        hello_read, hello_write = os.pipe()
        leash_read, leash_write = os.pipe()
        options = self.options
        words = [sys.executable, "-m", "headrace.child", options.target, "--log-level", options.log_level]
        words += ["--board", str(board.fileno()), "--hello", str(hello_write), "--leash", str(leash_read)]
        words += ["--concurrency", str(options.concurrency)] if options.concurrency else []
        words += ["--burst"] if options.burst else []
        process = subprocess.Popen(
            words,
            pass_fds=(board.fileno(), hello_write, leash_read),
            env={**os.environ, "HEADRACE_URL": self.url},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which forwards it once
        )
        os.close(hello_write)
        os.close(leash_read)
        os.set_blocking(hello_read, False)
        self.told("child.started", {"pid": process.pid})
        return Child(process, board, hello_read, leash_write, time.monotonic())

    # ── listening ──

    def _hear(self, watch: Guardian) -> None:
        """Wait a moment for hellos and deaths."""
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for child in self._children:
                if child.ward is None:
                    selector.register(child.hello, selectors.EVENT_READ)
                with contextlib.suppress(AttributeError, OSError):
                    death = os.pidfd_open(child.process.pid)
                    stack.callback(os.close, death)
                    selector.register(death, selectors.EVENT_READ)
            selector.select(TICK_S)
        for child in self._children:
            if child.ward is None:
                self._read_hello(child, watch)

    def _read_hello(self, child: Child, watch: Guardian) -> None:
        with contextlib.suppress(BlockingIOError):
            child.said += os.read(child.hello, 65_536)
        if child.said.endswith(b"\n"):
            child.ward = read_hello(json.loads(child.said), Board.attach(child.board_file.fileno()))
            watch.watch(child.ward)

    # ── deaths ──

    def _bury_dead(self, watch: Guardian, estates: Estates) -> None:
        for child in [child for child in self._children if child.process.poll() is not None]:
            self._read_hello(child, watch) if child.ward is None else None
            self._children.remove(child)
            ward = watch.forget(child.process.pid) or child.ward
            code = child.process.returncode
            self.told("child.ended", {"pid": child.process.pid, "code": code})
            if code == 0:
                self._ended_well()
            elif code == EXIT_FATAL:
                self._fatal = self._fatal or 1
                self._asked += 1
            else:
                self._crashed(child, code)
            if ward is not None and code != 0:
                estates.take(ward)
            os.close(child.hello)
            os.close(child.leash)

    def _ended_well(self) -> None:
        if not self.options.burst and not self._asked:
            self._due.append(0.0)  # a reload, or somebody else's SIGTERM: the place is filled again

    def _crashed(self, child: Child, code: int) -> None:
        self._crashes = 0 if time.monotonic() - child.begun > STEADY_S else self._crashes + 1
        wait_ms = 0 if self._crashes <= 1 else min(5_000, reconnect_delay_ms(self._crashes - 2, random.random()))
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log.error("child.died pid=%d by %s: restarted in %d ms", child.process.pid, how, wait_ms)
        if not self._asked:
            self._due.append(time.monotonic() + wait_ms / 1000)

    # ── stopping ──

    def _on_signal(self, number: int, frame: Any) -> None:
        self._asked += 1

    def _forward(self) -> None:
        """Pass stop signals on, once each; kill what does not drain in its grace."""
        if self._forwarded < self._asked:
            self._forwarded = self._asked
            self._asked_at = self._asked_at or time.monotonic()
            self._due.clear()
            self._signal_all(signal.SIGTERM)
        if self._asked and time.monotonic() - self._asked_at > self.options.grace_s + 10:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)

    def _reload(self) -> None:
        log.info("source.changed: restarting %d children", len(self._children))
        self._signal_all(signal.SIGTERM)


class Changes:
    """Whether a Python file below this directory was written, looked at every half second."""

    EVERY_S = 0.5

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path.cwd()
        self._next_at = 0.0
        self._seen = self._look()

    def seen(self) -> bool:
        if time.monotonic() < self._next_at:
            return False
        self._next_at = time.monotonic() + self.EVERY_S
        now, before = self._look(), self._seen
        self._seen = now
        return now != before

    def _look(self) -> dict[str, float]:
        found = {}
        for folder, folders, files in os.walk(self._root):
            folders[:] = [
                name for name in folders if not name.startswith(".") and name not in ("__pycache__", "node_modules")
            ]
            for name in files:
                if name.endswith(".py"):
                    with contextlib.suppress(OSError):
                        file = Path(folder, name)
                        found[str(file)] = file.stat().st_mtime
        return found
