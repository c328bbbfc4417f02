"""A process that has imported everything and forks another for each line it reads: 10 ms instead of 400.

    python -m tests.support.zygote MODULE ...

It is told on stdin, a JSON object a line: {"number", "log", "env", "code", "argv"}; the fork runs the code as
``python -c`` would, in this environment, with what it prints in the log. It answers on stdout, a line each:
"born <number> <pid>" and "died <pid> <status>". It ends, and its children with it, when stdin does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def _child(order: dict[str, Any]) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["-c", *order["argv"]]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    exec(compile(order["code"], "<zygote>", "exec"), {"__name__": "__main__"})
    sys.exit(0)  # through all that an interpreter does at its end


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(f"died {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


def main(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write)
    print("ready", flush=True)
    waiting = b""
    while True:
        readable, _, _ = select.select([0, wake_read], [], [])
        if wake_read in readable:
            with suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap()
        if 0 not in readable:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _child(order)
            print(f"born {order['number']} {pid}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
