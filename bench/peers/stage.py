"""One peer at work: its enqueuer, its workers, and what they noted. Everything ends with the block."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bench.arena import Arena
from bench.peers import venvs
from bench.peers.contract import Order
from bench.peers.roster import Peer
from tests.support.history import Event, History
from tests.support.wait import wait_until_sync

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 40.0
ADD_S: Final = 120.0


class Trouble(Exception):
    """A peer that did not do what it was asked for in time, with the end of its log."""


class Enqueuer:
    """The peer's producer, a process of its own that adds what it is told to."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path) -> None:
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, cwd=ROOT
            )
        self._next = 0

    def ready(self) -> None:
        self._answered(READY_S)

    def add(self, kind: str, count: int = 1, s: float = 0.0) -> list[str]:
        """Add so many messages and answer their ids, when the server has them all."""
        told = {"kind": kind, "first": self._next, "count": count, "s": s}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as gone:
            raise Trouble(f"the enqueuer has ended: {gone}") from gone
        self._answered(ADD_S)
        ids = [str(number) for number in range(self._next, self._next + count)]
        self._next += count
        return ids

    def _answered(self, timeout_s: float) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise Trouble(f"the enqueuer did not answer within {timeout_s:g} s")
        if self._process.stdout.readline() != b"ok\n":
            raise Trouble("the enqueuer has ended")

    def end(self) -> None:
        _kill(self._process)


class Stage:
    """``worker()`` starts one more worker and answers its name; the notes of workers carry it."""

    def __init__(self, peer: Peer, arena: Arena, home: Path, kinds: list[str], **order: Any) -> None:
        self.peer = peer
        self.history = History(home / "history.jsonl")
        self.log = home / "log.txt"
        self._python = str(venvs.python_of(peer))
        self._order = {"url": arena.url, "history": str(self.history.path), "kinds": kinds, **order}
        path = [str(ROOT), *([str(ROOT / "src")] if not peer.pins else [])]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.enqueuer = Enqueuer(self._words("add", ""), self._env, self.log)

    def _words(self, role: str, worker: str) -> list[str]:
        order = Order(worker=worker, **self._order)
        # -P: the folder of the adapters must not come before the peers' own packages
        return [self._python, "-P", "-m", f"bench.peers.adapters.{self.peer.module}", role, order.as_json()]

    def worker(self) -> str:
        name = f"w{len(self._workers)}"
        with self.log.open("ab") as sink:
            self._workers[name] = subprocess.Popen(
                self._words("worker", name),
                env=self._env,
                stdin=subprocess.PIPE,  # ends with us, and the worker with it
                stdout=sink,
                stderr=sink,
                cwd=ROOT,
                start_new_session=True,
            )
        return name

    def both_ready(self) -> None:
        """Start two workers and say hello until each has answered."""
        wanted = {self.worker(), self.worker()}

        def greeted() -> bool:
            self.enqueuer.add("tick", 2)
            return wanted <= {event.owner for event in self.history.events("tick")}

        self.wait(greeted, READY_S, "two workers that answer", interval=0.1)

    def started(self, ids: list[str], timeout_s: float = 30.0) -> dict[str, str]:
        """Wait until each has been started; answers which worker has it."""

        def owners() -> dict[str, str]:
            found = {event.id: event.owner for event in reversed(self.history.starts()) if event.id in ids}
            return found if len(found) == len(ids) else {}

        found: dict[str, str] = self.wait(owners, timeout_s, f"{len(ids)} messages started")
        return found

    def noted(self, op: str, timeout_s: float) -> Event:
        """Wait for the first note of this kind."""
        events: list[Event] = self.wait(lambda: self.history.events(op), timeout_s, f"the {op} message")
        return events[0]

    def wait(self, answer: Any, timeout_s: float, what: str, interval: float = 0.02) -> Any:
        """Wait for a true answer. Raises Trouble if there is none in time, or when a worker has ended by itself."""

        def asked() -> Any:
            for name, process in self._workers.items():
                if process.poll() not in (None, -signal.SIGKILL):
                    raise Trouble(f"{name} has ended with {process.returncode}; {self.tail()}")
            return answer()

        try:
            return wait_until_sync(asked, timeout_s, interval, what=what)
        except AssertionError as late:
            raise Trouble(f"not within {timeout_s:g} s: {what}; {self.tail()}") from late

    def tail(self) -> str:
        """The last words of the peer's programs."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"its log ends with: {lines[-1][:300]}" if lines else "its log is empty"

    def kill(self, name: str) -> None:
        """SIGKILL for the worker and everything it started."""
        _kill(self._workers[name])

    def pause(self, name: str) -> None:
        _signal_all(self._workers[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        _signal_all(self._workers[name].pid, signal.SIGCONT)

    def end(self) -> None:
        self.enqueuer.end()
        for process in self._workers.values():
            _kill(process)


@contextmanager
def stage(peer: Peer, arena: Arena, kinds: list[str], **order: Any) -> Iterator[Stage]:
    """A peer whose enqueuer is ready, on an emptied server."""
    arena.client.flushall()
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as home, ExitStack() as stack:
        found = Stage(peer, arena, Path(home), kinds, **order)
        stack.callback(found.end)
        try:
            found.enqueuer.ready()
        except Trouble as why:
            raise Trouble(f"{why}; {found.tail()}") from why
        yield found


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _signal_all(process.pid, signal.SIGKILL)
    process.wait(10)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _signal_all(pid: int, number: signal.Signals) -> None:
    """To a process and all that came from it; children may have left its process group."""
    for one in _tree(pid):
        with suppress(ProcessLookupError):
            os.kill(one, number)


def _tree(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found
