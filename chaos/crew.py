"""Worker processes: forked by a zygote, or under `headrace run`. Dead ones are replaced, as an init system would."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.worker import VARIABLE
from tests.support.history import Pen
from tests.support.wait import wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
REPLACE_S: Final = 0.05  # after so long a dead worker is replaced
STOP_S: Final = 30.0
WORD_LIMIT: Final = 300  # characters of a process's last line that are noted
WORK: Final = "from chaos.worker import from_environment, main; main(from_environment())"


@dataclass(slots=True)
class Worker:
    """One process. `settings` are what it was started with, and what its replacement gets."""

    number: int
    settings: dict[str, Any]
    log: Path
    pid: int = 0
    code: int | None = None
    paused: bool = False
    proxy: int = -1  # which of the stage's proxies it goes through
    kept: bool = True  # replaced when it dies
    _joined: bool = False

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.code is None

    @property
    def joined(self) -> bool:
        """Whether it has entered its group; asked often, so a yes is remembered."""
        self._joined = self._joined or (self.log.exists() and b"worker.started" in self.log.read_bytes())
        return self._joined

    @property
    def last_word(self) -> str:
        """The end of its log: of one that ended by itself, the error."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1][:WORD_LIMIT] if lines else ""

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Zygote:
    """The forking process. `env` says which tree and which preloaded libraries its workers run with."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._workers: dict[int, Worker] = {}
        self._next = 0
        self.died: asyncio.Queue[Worker] = asyncio.Queue()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.zygote", "chaos.worker"),
            cwd=ROOT,
            env=self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if await self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the zygote did not start")
        self._listening = asyncio.create_task(self._listen(self._process.stdout))

    async def fork(self, worker: Worker) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._next += 1
        born: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[self._next] = born
        env = {**self._env, VARIABLE: json.dumps(worker.settings)}
        order = {"number": self._next, "log": str(worker.log), "env": env, "code": WORK, "argv": []}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        worker.pid = await born
        self._workers[worker.pid] = worker

    async def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        if self._listening is not None:
            await self._listening
        # redis-py's transports are closed; this one is closed by its end, which asyncio notices a turn later
        await asyncio.sleep(0)

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        while line := await stdout.readline():
            word, first, second = line.split()
            if word == b"born":
                self._waiting.pop(int(first)).set_result(int(second))
                await asyncio.sleep(0)  # whoever waits for the birth enters it before its death is heard
            elif (worker := self._workers.pop(int(first), None)) is not None:
                worker.code = int(second)
                self.died.put_nowait(worker)


@dataclass
class Crew:
    """The workers of a run. Every birth and death is noted."""

    folder: Path
    pen: Pen
    settings: dict[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    _zygotes: dict[str, Zygote] = field(default_factory=dict)
    _keeping: set[asyncio.Task[None]] = field(default_factory=set)
    _stopping: bool = False

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    async def hire(self, *, zygote: str = "", env: Mapping[str, str] | None = None, **settings: Any) -> Worker:
        """Start one more worker. Workers of one `zygote` share a tree and an environment."""
        worker = self._enter({**self.settings, **settings, "zygote": zygote})
        if zygote not in self._zygotes:
            await self._start_zygote(zygote, {**self.env, **(env or {})})
        await self._zygotes[zygote].fork(worker)
        return worker

    async def ready(self, workers: int = 0, timeout: float = 20.0) -> None:
        """Wait until all of them (or so many) have joined their group."""

        def joined() -> bool:
            return sum(worker.joined for worker in self.alive) >= (workers or len(self.alive))

        await wait_until(joined, timeout, 0.02, what="the workers' start")

    async def stop(self) -> list[Worker]:
        """SIGTERM to all; answers those that had to be killed."""
        self._stopping = True
        for worker in self.alive:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        stuck: list[Worker] = []
        try:
            await wait_until(lambda: not self.alive, STOP_S, 0.02)
        except AssertionError:
            stuck = self.alive
            for worker in stuck:
                worker.signal(signal.SIGKILL)
        return stuck

    async def close(self) -> None:
        self._stopping = True
        for worker in self.alive:
            worker.signal(signal.SIGKILL)
        for zygote in self._zygotes.values():
            await zygote.stop()
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    # ── under the supervisor ──

    async def supervise(self, processes: int) -> asyncio.subprocess.Process:
        """`headrace run`: a parent and its children, whose deaths are the parent's business."""
        log = self.folder / f"parent-{len(self.workers)}.log"
        env = {**os.environ, **self.env, VARIABLE: json.dumps(self.settings), "PYTHONUNBUFFERED": "1"}
        program = "chaos.broken_parent" if self.settings.get("mutant") else "headrace.cli"
        words = ["-m", program, "run", "chaos.supervised:app", "--processes", str(processes)]
        with log.open("ab") as sink:
            parent = await asyncio.create_subprocess_exec(
                sys.executable, *words, cwd=ROOT, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        await wait_until(lambda: log.read_bytes().count(b"worker.started") >= processes, 30.0, what="the children")
        return parent

    # ── keeping ──

    def _enter(self, settings: dict[str, Any]) -> Worker:
        number = len(self.workers)
        worker = Worker(number, settings, self.folder / f"worker-{number}.log")
        self.workers.append(worker)
        return worker

    async def _start_zygote(self, name: str, env: Mapping[str, str]) -> None:
        zygote = Zygote(env)
        self._zygotes[name] = zygote
        await zygote.start()
        self._keeping.add(asyncio.create_task(self._keep(zygote)))

    async def _keep(self, zygote: Zygote) -> None:
        """Note every death, and start another in the dead one's place."""
        while True:
            dead = await zygote.died.get()
            self.pen.note("died", pid=dead.pid, code=dead.code, word=dead.last_word)
            if dead.kept and not self._stopping:
                self._keeping.add(asyncio.create_task(self._replace(zygote, dead)))

    async def _replace(self, zygote: Zygote, dead: Worker) -> None:
        await asyncio.sleep(REPLACE_S)
        if self._stopping:
            return
        worker = self._enter(dead.settings)
        worker.proxy = dead.proxy
        await zygote.fork(worker)
