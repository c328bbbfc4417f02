"""A child of the supervisor: loads the app, tells its parent what it will hold, handles messages until told to stop.

Started by ``headrace run`` as ``python -m headrace.child``; not meant to be started by hand. It is told by file
descriptors: the board (shared memory), a pipe for its hello, and the leash, a pipe that ends when the parent dies.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

from headrace import logs, loop
from headrace.app import App
from headrace.board import Board
from headrace.errors import ConfigError, HeadraceError, Verdict, classify
from headrace.names import owner_name
from headrace.recovery import Requeue

log = logging.getLogger("headrace")

EXIT_FATAL = 78  # nothing a restart could help: the parent stops


def load_app(target: str) -> App:
    """The app behind ``module:name``. Raises ConfigError with what to do."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{target!r} does not name an app: write module:app, as in shop:app for `app` in shop.py")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigError(f"no module {module_name!r} in {Path.cwd()}: start in the directory that holds it") from error
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f", did you mean {module_name}:{apps[0]}?" if apps else ""
            raise ConfigError(f"module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is a {type(found).__name__}, not a headrace.App")
    return found


def hello_of(app: App, owner: str) -> bytes:
    lanes = [
        {
            "stream": job.stream,
            "group": job.group,
            "lease_ms": job.settings.lease_ms,
            "stall_after_ms": job.settings.stall_after_ms,
            "max_attempts": job.settings.max_attempts,
            "copies": job.settings.prefix if isinstance(job.settings.recovery, Requeue) else "",
        }
        for job in app.jobs
    ]
    owned = [
        {
            "stream": job.stream,
            "group": job.group,
            "lease_ms": job.settings.handler.lease_ms,
            "stall_after_ms": job.settings.handler.stall_after_ms,
        }
        for job in app.owner_jobs
    ]
    hello = {"pid": os.getpid(), "owner": owner, "fixed": bool(app.owner), "lanes": lanes, "owned": owned}
    return json.dumps(hello).encode() + b"\n"


async def handle(app: App, options: argparse.Namespace) -> None:
    jobs = app.sized(options.concurrency)
    board = Board.create(options.board, marks=sum(job.slots for job in jobs))
    owner = app.owner or owner_name()
    try:
        os.write(options.hello, hello_of(app, owner))
    except BrokenPipeError:
        log.warning("parent.died: ending before anything was read")
        return
    running = asyncio.get_running_loop()

    def unleashed() -> None:
        """The parent died: finish what runs and go."""
        running.remove_reader(options.leash)
        log.warning("parent.died: draining")
        os.kill(os.getpid(), signal.SIGTERM)

    running.add_reader(options.leash, unleashed)
    await app.serve(burst=options.burst, concurrency=options.concurrency, board=board, owner=owner)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.child")
    parser.add_argument("target")
    parser.add_argument("--board", type=int, required=True)
    parser.add_argument("--hello", type=int, required=True)
    parser.add_argument("--leash", type=int, required=True)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--log-level", default="INFO")
    options = parser.parse_args(arguments)
    logs.configure(options.log_level)
    try:
        loop.run(handle(load_app(options.target), options))
    except HeadraceError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - one clear line, no traceback
        return EXIT_FATAL if classify(error) is Verdict.FATAL else 1  # the server is away: the parent starts us again
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still run a plain def handler beyond its grace must not hold the process: their work was released.
    os._exit(code)
