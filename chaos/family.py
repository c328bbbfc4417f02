"""`headrace run` as it is: a parent and its children. Whoever of them ends is noted, with how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from chaos.worker import VARIABLE
from tests.support.history import Pen
from tests.support.wait import wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
STOP_S: Final = 40.0


class Family:
    """The parent tells of its children on stdout, which goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, processes: int, log: Path, told: Path, pen: Pen) -> None:
        self._process = process
        self._processes = processes
        self._log = log
        self._told = told
        self._pen = pen
        self._heard = 0  # lines of what was told
        self._children: set[int] = set()

    @classmethod
    async def start(
        cls, folder: Path, pen: Pen, settings: Mapping[str, Any], env: Mapping[str, str], processes: int
    ) -> Family:
        log, told = folder / "parent.log", folder / "parent.told"
        env = {**os.environ, **env, VARIABLE: json.dumps(settings), "PYTHONUNBUFFERED": "1"}
        program = "chaos.broken_parent" if settings.get("mutant") else "headrace.cli"
        words = ["-m", program, "run", "chaos.supervised:app", "--processes", str(processes), "--json"]
        with log.open("ab") as errors, told.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *words, cwd=ROOT, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=errors
            )
        return cls(process, processes, log, told, pen)

    async def ready(self) -> None:
        def joined() -> bool:
            return self._log.read_bytes().count(b"worker.started") >= self._processes

        await wait_until(joined, 30.0, what="the children")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stop(self) -> bool:
        """SIGTERM to the parent, which forwards it. Answers whether all ended. Who had ended before did so unasked."""
        self._note_ends()
        if self._process.returncode is None:
            for pid in (self.pid, *self._children):
                self._pen.note("told", pid=pid)
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            return False
        self._note_ends()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        self._pen.note("died", pid=self.pid, code=self._process.returncode, word=lines[-1][:300] if lines else "")
        return True

    async def kill(self) -> None:
        """What a play that broke off has left; children end when their parent has."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _note_ends(self) -> None:
        """What the parent has told since it was asked last."""
        lines = self._told.read_text().splitlines()
        for line in lines[self._heard :]:
            about = json.loads(line)
            if about["event"] == "child.started":
                self._children.add(about["pid"])
            elif about["event"] == "child.ended":
                self._children.discard(about["pid"])
                self._pen.note("died", pid=about["pid"], code=about["code"], word="a child of headrace run")
        self._heard = len(lines)
