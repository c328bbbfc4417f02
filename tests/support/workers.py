"""Worker processes for the crash tests: started, signalled and ended by the test; nothing outlives it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.forked import Forked
from tests.support.history import History
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

GROUP = "billing"

SUPERVISE = """
import json, logging, sys
from headrace.supervisor import RunOptions, Supervisor
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(process)d %(message)s")
url, options = sys.argv[1], json.loads(sys.argv[2])
sys.exit(Supervisor(RunOptions(target="tests.support.shop:app", **options), url).run())
"""


class Process:
    """A worker, or the supervising parent of some. What it logs is in `log`."""

    def __init__(self, code: str, argv: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.log_file = log
        log.touch()
        self._popen = Forked(code, argv, env, log)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._popen.poll()

    def children(self) -> list[int]:
        """The child processes of a supervisor that are alive now."""
        try:
            told = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in told.split()]

    def ready(self, workers: int = 1, timeout: float = 15.0) -> list[str]:
        """Wait until so many workers have started since the beginning; answers their owner names."""

        def owners() -> list[str]:
            found = re.findall(r"worker\.started owner=(\S+)", self.log)
            return found if len(found) >= workers else []

        try:
            return wait_until_sync(owners, timeout, what=f"{workers} workers started")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.log[-3000:]}") from late

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._popen.wait(10)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)

    def term(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, timeout: float = 15.0) -> int:
        """Wait for its end; answers the exit code."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"not ended within {timeout} s\n{self.log[-3000:]}") from late

    def end(self) -> None:
        """Kill it and whatever it has started, in whatever state that is."""
        family = [*self.children(), self.pid]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(10)


class Workers:
    """Starts processes that run tests/support/shop.py against one stream."""

    def __init__(self, folder: Path, url: str, stream: str) -> None:
        self.folder = folder
        self.url = url
        self.stream = stream
        self.history = History(folder / "history.jsonl")
        self.processes: list[Process] = []
        self.settings: dict[str, Any] = {"handler": {"lease": "400ms"}}

    def start(self, *, ready: bool = True, **settings: Any) -> Process:
        """A plain worker process: app.run()."""
        return self._begin("from tests.support.shop import main; main()", (), settings, ready=1 if ready else 0)

    def supervise(
        self, processes: int = 1, *, parent: str = "", ready: bool = True, options: Any = None, **settings: Any
    ) -> Process:
        """A supervising parent and its children, as `headrace run` starts them; `parent` is its own URL."""
        told = json.dumps({"processes": processes, **(options or {})})
        return self._begin(SUPERVISE, (parent or self.url, told), settings, ready=processes if ready else 0)

    def _begin(self, code: str, argv: Sequence[str], settings: dict[str, Any], *, ready: int) -> Process:
        shop = {**self.settings, **settings, "url": self.url, "stream": self.stream}
        shop["handler"] = {**self.settings["handler"], **settings.get("handler", {})}
        shop["history"] = str(self.history.path)
        env = {**os.environ, "HEADRACE_SHOP": json.dumps(shop), "PYTHONUNBUFFERED": "1"}
        log = self.folder / f"worker-{len(self.processes)}.log"
        process = Process(code, argv, env, log)
        self.processes.append(process)
        if ready:
            process.ready(ready)
        return process

    def add(self, server: Server, **order: Any) -> str:
        """Put one message into the stream; shop.py says what an order may be."""
        added = server.sync().xadd(self.stream, {"payload": json.dumps(order)})
        return bytes(added).decode()  # type: ignore[arg-type]

    def kill(self, pid: int) -> None:
        """SIGKILL a child of one of the supervisors. One that has just died by itself is fine."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def until(self, happened: Callable[[History], Any], timeout: float = 10.0, what: str = "") -> Any:
        """Wait until the history shows something; on failure the logs of all processes are shown."""
        try:
            return wait_until_sync(lambda: happened(self.history), timeout, what=what)
        except AssertionError as late:
            logs = "\n".join(f"── {process.log_file.name}\n{process.log[-3000:]}" for process in self.processes)
            raise AssertionError(f"{late}\n{logs}") from late

    def end(self) -> None:
        for process in self.processes:
            process.end()


def hold_gil(seconds: float) -> None:
    """One call into native code that neither gives up the GIL nor sleeps."""
    sample = 1_000_000
    begun = time.perf_counter()
    sum(range(sample))
    sum(range(int(sample / (time.perf_counter() - begun) * seconds)))
