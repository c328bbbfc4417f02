"""A look at an app, in a process of its own: which server it names in its code, and which handlers it has.

The supervising parent never loads the user's code, but it must renew on the same server as its children, and
``App("redis://...", connect=...)`` wins over everything else there. So ``headrace run`` starts this once, before the
children:

    python -m headrace.cli.peek module:app FD

and reads one JSON object from the pipe FD: the URL may hold a password, which neither an argument nor a log may see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.child import load_app
from headrace.config import ConnectSettings
from headrace.errors import ConfigError, HeadraceError


@dataclass(frozen=True, slots=True)
class Handler:
    """One handler, for the first line of `headrace run`."""

    stream: str
    group: str
    name: str
    concurrency: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Peeked:
    """What the parent needs to know of an app."""

    url: str | None = field(repr=False)  # as written in the code, None if it is not
    grace_s: float
    handlers: tuple[Handler, ...]
    connect: ConnectSettings | None = None


def peek(target: str, env: dict[str, str]) -> Peeked:
    """Load the app in another process and hear what it is. Raises ConfigError (bad target) or HeadraceError."""
    heard, told = os.pipe()
    words = [sys.executable, "-m", "headrace.cli.peek", target, str(told)]
    # What the user's module prints while it is loaded is printed by the children, too: once is enough.
    process = subprocess.Popen(words, pass_fds=(told,), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.close(told)
    try:
        with os.fdopen(heard, "rb") as pipe:
            said = pipe.read()
    finally:
        process.wait()
    if not said:
        raise HeadraceError(f"{target} could not be loaded (exit code {process.returncode}): its error stands above")
    about = json.loads(said)
    if "refused" in about:
        raise ConfigError(about["refused"])
    connect = None if about["connect"] is None else ConnectSettings(**about["connect"])
    return Peeked(about["url"], about["grace_s"], tuple(Handler(**each) for each in about["handlers"]), connect)


def tell(target: str) -> dict[str, Any]:
    """In the other process: load the app and say what it is."""
    try:
        app = load_app(target)
        jobs = app.sized(None)
    except HeadraceError as error:
        return {"refused": str(error)}
    handlers = [
        {
            "stream": job.stream,
            "group": job.group,
            "name": job.name,
            "concurrency": job.concurrency,
            "lease_ms": job.settings.lease_ms,
        }
        for job in jobs
    ] + [
        {
            "stream": job.stream,
            "group": job.group,
            "name": job.name,
            "concurrency": job.settings.concurrency,
            "lease_ms": job.settings.handler.lease_ms,
        }
        for job in app.owner_jobs
    ]
    # The app keeps these to itself: its URL is a secret, the others nobody else's business but ours.
    connect = None if app.connect is None else asdict(app.connect)
    return {"url": app.url, "grace_s": app.grace_s, "handlers": handlers, "connect": connect}


def main(target: str, pipe: int) -> int:
    """Load, tell, go. An error in the user's own code shows its trace: that is what it takes to mend it."""
    try:
        about = tell(target)
    except Exception:  # noqa: BLE001 - whatever a user's module raises
        traceback.print_exc()
        return 1
    with os.fdopen(pipe, "wb") as out:
        out.write(json.dumps(about).encode())
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that the user's module started must not keep us
