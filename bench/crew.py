"""Worker processes that run bench/tasks.py, with and without the supervising parent."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bench import tasks
from bench.arena import Arena
from headrace.names import keys_of
from headrace.redis import commands
from headrace.redis.connect import Server
from tests.support.history import Event, History
from tests.support.wait import wait_until_sync

SUPERVISE: Final = """
import sys
from headrace.supervisor import RunOptions, Supervisor
sys.exit(Supervisor(RunOptions("bench.tasks:app", processes=int(sys.argv[2])), sys.argv[1]).run())
"""


class Crew:
    """Some processes with the same app. What happened in them is in ``history``, what they logged in ``log``."""

    def __init__(self, arena: Arena, folder: Path, *, processes: int, supervised: bool, **settings: Any) -> None:
        self._arena = arena
        self._processes = processes
        self._supervised = supervised
        self.history = History(folder / "history.jsonl")
        self.log = folder / "log.txt"
        told = {"history": str(self.history.path), **settings}
        self._env = {**os.environ, "HEADRACE_URL": arena.url, "BENCH_TASKS": json.dumps(told)}
        self._started: list[subprocess.Popen[bytes]] = []

    # ── processes ──

    def start(self) -> None:
        """Start them all, or those that were killed, and return at once."""
        if self._supervised:
            if not self._started:
                self._begin(["-c", SUPERVISE, self._arena.url, str(self._processes)])
            return
        self._started = [process for process in self._started if process.poll() is None]
        for _ in range(self._processes - len(self._started)):
            self._begin(["-m", "bench.tasks"])

    def _begin(self, words: list[str]) -> None:
        with self.log.open("ab") as sink:
            self._started.append(subprocess.Popen([sys.executable, *words], env=self._env, stdout=sink, stderr=sink))

    def ready(self, timeout_s: float = 20.0) -> None:
        """Wait until all of them live and have entered every group."""
        wait_until_sync(lambda: len(self._owners()) >= self._processes, timeout_s, what=f"{self._processes} workers")

    def _owners(self) -> set[str]:
        """The owners in every group whose process lives."""
        link = Server(self._arena.url).sync_link("bench")
        try:
            entered = [link.call(commands.owners(keys_of(stream), tasks.GROUP)) for stream in tasks.STREAMS]
        finally:
            link.close()
        living = [{owner.name for owner in owners if _lives(int(owner.about["pid"]))} for owners in entered]
        return set.intersection(*living)

    def end(self) -> None:
        """Kill them all, also what a supervisor started."""
        for process in self._started:
            if self._supervised:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            for pid in [*_children(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGKILL)
            process.wait(10)

    # ── work ──

    def add(self, stream: str, count: int = 1, **payload: float) -> list[str]:
        """Add messages one by one, so that the processes that wait for some get them in turn."""
        client: Any = self._arena.client
        body = json.dumps(payload)
        return [client.xadd(stream, {"payload": body}).decode() for _ in range(count)]

    def started(self, ids: list[str], timeout_s: float = 20.0) -> list[Event]:
        """Wait until all of them have been started; answers their starts."""
        wanted = set(ids)

        def all_of_them() -> list[Event]:
            starts = [event for event in self.history.starts() if event.id in wanted]
            return starts if {event.id for event in starts} == wanted else []

        return wait_until_sync(all_of_them, timeout_s, what=f"{len(ids)} messages started")

    def outcomes(self, stream: str, ids: list[str]) -> list[int]:
        """How many outcomes the server has taken of each message."""
        counts: list[Any] = self._arena.client.hmget(tasks.outcomes_key(stream), ids)
        return [int(count or 0) for count in counts]

    def settled(self, stream: str, ids: list[str], timeout_s: float) -> bool:
        """Wait until each has an outcome; False if one of them has none in time."""
        try:
            wait_until_sync(lambda: all(self.outcomes(stream, ids)), timeout_s, what="outcomes")
        except AssertionError:
            return False
        return True

    def pick(self, starts: list[Event], rng: random.Random) -> int:
        """One of the processes that have started something."""
        return rng.choice(sorted({event.pid for event in starts}))


@contextmanager
def crew(arena: Arena, *, processes: int, supervised: bool, **settings: Any) -> Iterator[Crew]:
    """A crew that is ready to work. The server is emptied before; the processes are gone afterwards."""
    arena.client.flushall()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        workers = Crew(arena, Path(folder), processes=processes, supervised=supervised, **settings)
        try:
            workers.start()
            workers.ready()
            yield workers
        except AssertionError as late:
            raise RuntimeError(f"{late}\n{workers.log.read_text(errors='replace')[-3000:]}") from late
        finally:
            workers.end()


def _lives(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has waited for."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
