"""A process that has imported everything and forks a worker for each line it reads: 10 ms instead of 400.

It is told on stdin, a JSON object a line: {"number", "log", "settings"}; it answers on stdout, a line each:
"born <number> <pid>" and "died <pid> <status>". It ends, and its children with it, when stdin does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any

from chaos import worker

_PR_SET_PDEATHSIG = 1


def _child(order: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    code = 1
    try:
        worker.main(order["settings"])
        code = 0
    except BaseException:  # noqa: BLE001 - the end of the process, told in its log
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(f"died {pid} {os.waitstatus_to_exitcode(status)}", flush=True)


def main() -> None:
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
    main()
