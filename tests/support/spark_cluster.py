"""A standalone Spark cluster for tests: a master, two workers and drivers, all child processes ended by their pid.

They are started from the pip package alone, through Spark's own classes. The workers have two host names, 127.0.0.1
and 127.0.0.2, because Spark runs a speculative copy only on another host. tests/support/spark_driver.py is what a
driver does.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support import spark_archive
from tests.support.wait import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
WORKERS = {"a": "127.0.0.1", "b": "127.0.0.2"}
CORES = 2  # of each worker: room for two applications
PR_SET_PDEATHSIG = 1


def spark_env(**more: str) -> dict[str, str]:
    """What every Spark process of a test needs: this Python, this Spark, its defaults, and the loopback."""
    env = {word: value for word, value in os.environ.items() if not word.startswith(("SPARK_", "PYSPARK_"))}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    spark = {"SPARK_HOME": str(spark_archive.home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    spark["PYSPARK_SUBMIT_ARGS"] = spark_archive.submit_arguments()
    return {**env, **python, **spark, **more}


def _die_with_parent() -> None:
    """A test run that is killed leaves no JVM behind (Linux; elsewhere stop() must do)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A process of Spark's with its log. It ends with stop(), and with the process that started it."""

    def __init__(
        self, words: Sequence[str], log: Path, env: Mapping[str, str], *, talks: bool = False, folder: Path = ROOT
    ) -> None:
        self.log_file = log
        pipe = subprocess.PIPE if talks else None
        with log.open("ab") as sink:
            self.popen = subprocess.Popen(
                list(words),
                cwd=folder,
                env=dict(env),
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or sink,
                stderr=sink,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def said(self, pattern: str, timeout: float = 120.0) -> str:
        """Wait until the log holds this; answers its first group."""

        def look() -> re.Match[str] | None:
            assert self.popen.poll() is None, f"it ended with {self.popen.poll()}:\n{self.log[-3000:]}"
            return re.search(pattern, self.log)

        found = wait_until_sync(look, timeout, 0.05, what=f"{pattern} in {self.log_file.name}")
        assert found is not None
        return found.group(1) if found.re.groups else found.group(0)

    def stop(self) -> None:
        """Kill it and all that it started. Twice is fine, and so is a paused or a dead one."""
        for pid in [self.pid, *descendants(self.pid)]:
            if pid != self.pid or self.popen.poll() is None:
                _signal(pid, signal.SIGKILL)
        self.popen.wait(10)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Cluster:
    """A master and two workers, `a` and `b`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, Child] = {}
        self.url = ""

    def start(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        master = self._child("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = master.said(r"Starting Spark master at (spark://\S+)")
        for name, host in WORKERS.items():
            limits = ["--cores", str(CORES), "--memory", "2g", "--work-dir", str(self._folder / f"work-{name}")]
            words = ["--host", host, "--port", "0", "--webui-port", "0", *limits, self.url]
            env = {"SPARK_LOCAL_IP": host, "HEADRACE_TEST_WORKER": name}
            self._child(name, "worker.Worker", *words, **env)
        for name in WORKERS:
            self._children[name].said("Successfully registered with master")

    def _child(self, name: str, deployed: str, *words: str, **env: str) -> Child:
        local = {"SPARK_LOCAL_DIRS": str(self._folder / "local"), "SPARK_DAEMON_MEMORY": "256m"}
        # a REST server would listen on a port that is not ours
        local["SPARK_DAEMON_JAVA_OPTS"] = f"{spark_archive.jvm_options()} -Dspark.master.rest.enabled=false"
        program = str(spark_archive.home() / "bin" / "spark-class")
        command = [program, f"org.apache.spark.deploy.{deployed}", "--properties-file", str(spark_archive.defaults())]
        command += words
        self._children[name] = Child(command, self._folder / f"{name}.log", spark_env(**local, **env))
        return self._children[name]

    def executor(self, worker: str) -> list[int]:
        """The processes of a worker's executor: the JVM first, then its Pythons."""
        return descendants(self._children[worker].pid)

    def kill_executor(self, worker: str) -> None:
        for pid in self.executor(worker):
            _signal(pid, signal.SIGKILL)

    def pause_executor(self, worker: str) -> None:
        for pid in self.executor(worker):
            _signal(pid, signal.SIGSTOP)

    def continue_executor(self, worker: str) -> None:
        for pid in self.executor(worker):
            _signal(pid, signal.SIGCONT)

    def stop(self) -> None:
        for child in reversed(self._children.values()):
            child.stop()


class Driver:
    """A driver in a process of its own: it runs one query at a time and can be killed."""

    def __init__(self, master: str, folder: Path, number: int, **conf: str) -> None:
        words = [sys.executable, "-m", "tests.support.spark_driver", master, json.dumps(conf)]
        local = {"SPARK_LOCAL_DIRS": str(folder / "local")}
        self._child = Child(words, folder / f"driver-{number}.log", spark_env(**local), talks=True)
        self.busy = False  # with a query whose end nobody has heard of

    @property
    def alive(self) -> bool:
        return self._child.popen.poll() is None

    def begin(self, **job: Any) -> None:
        """Start a query; see spark_driver.run for the words."""
        assert self._child.popen.stdin is not None
        self._child.popen.stdin.write(json.dumps(job).encode() + b"\n")
        self._child.popen.stdin.flush()
        self.busy = True

    def end(self) -> None:
        """Wait until the query has read all there was. Raises what ended it."""
        error = self.ended()
        assert error is None, error

    def ended(self) -> str | None:
        """Wait until the query has ended; answers with what error, if with any."""
        assert self._child.popen.stdout is not None
        for line in self._child.popen.stdout:
            if line.startswith(b"@"):
                error: str | None = json.loads(line[1:])["error"]
                self.busy = False
                return error
        raise AssertionError(f"the driver is gone:\n{self._child.log[-3000:]}")

    def run(self, **job: Any) -> None:
        self.begin(**job)
        self.end()

    def stop(self) -> None:
        """SIGKILL."""
        self._child.stop()


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, parents first."""
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in told.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, []))
    for one in found:
        found += children.get(one, [])
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
