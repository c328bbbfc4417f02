"""`headrace run`: the supervising parent and its children.

Which server: what the app's code names wins, because it wins in the children, and the parent must renew where they
read. Else the places of where.py, and without any the embedded server of this directory, held by the parent.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer

from headrace import __version__, logs
from headrace.cli.ask import AsJson, Debug, Url, unreachable
from headrace.cli.peek import Peeked, peek
from headrace.cli.show import many, plain, span, trace
from headrace.cli.where import VARIABLE, Where, find, located
from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.redis.connect import Server
from headrace.supervisor import RunOptions, Supervisor

log = logging.getLogger("headrace")

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, as in shop:app.", show_default=False)]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, max=1_000, help="Worker processes.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-c", min=1, max=100_000, help="Handlers at once, in each process.")
]
Reload = Annotated[bool, typer.Option("--reload", help="Start anew when a Python file changes.")]
Burst = Annotated[bool, typer.Option("--burst", help="End when nothing is left to do.")]


class Level(StrEnum):
    """How much to tell."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevel = Annotated[Level, typer.Option("--log-level", case_sensitive=False, help="How much to tell on stderr.")]


def run(
    target: Target,
    processes: Processes = 1,
    concurrency: Concurrency = None,
    reload: Reload = False,
    burst: Burst = False,
    log_level: LogLevel = Level.INFO,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Handle messages in worker processes until told to stop.

    SIGTERM or Ctrl-C drains: running handlers get their grace, the rest is handed back. A second one ends at once.
    """
    level = log_level.upper()
    logs.configure(level)
    try:
        given = find(url)
        app = peek(target, {**os.environ, **({VARIABLE: given.url} if given else {})})
        with _server_of(app, given, target) as where, _events(as_json) as events:
            options = RunOptions(
                target,
                processes=processes,
                concurrency=concurrency,
                burst=burst,
                reload=reload,
                grace_s=app.grace_s,
                log_level=level,
            )
            code = _supervise(options, app, where, events)
    except HeadraceError:
        if debug:
            trace()
        raise
    raise typer.Exit(code)


def _supervise(options: RunOptions, app: Peeked, where: Where, events: TextIO | None) -> int:
    def told(event: str, about: dict[str, Any]) -> None:
        if events is not None:
            events.write(json.dumps({"event": event, **about}) + "\n")
            events.flush()

    _check(where, app)
    _greet(options, app, where)
    handlers = [asdict(handler) for handler in app.handlers]
    told("run.started", {"server": where.masked, "processes": options.processes, "handlers": handlers})
    code = Supervisor(options, where.url, told=told, connect=app.connect).run()
    told("run.ended", {"code": code})
    return code


@contextmanager
def _server_of(app: Peeked, given: Where | None, target: str) -> Iterator[Where]:
    if app.url is not None:
        if given is not None and given.source == "--url" and given.url != app.url:
            raise ConfigError(f"--url is given, but {target} names its server in its code: remove one of them")
        yield Where(app.url, f"the code of {target}")
        return
    if given is not None:
        yield given
        return
    with located(None, create=True) as where:
        yield where


def _check(where: Where, app: Peeked) -> None:
    """Say now, in one line, what every child would say: server away, wrong password."""
    link = Server(where.url, app.connect).sync_link("headrace:run")
    try:
        link.open()
    except Unavailable as error:
        raise unreachable(where, error) from error
    finally:
        link.close()


def _greet(options: RunOptions, app: Peeked, where: Where) -> None:
    counted = many(options.processes, "process", "processes")
    log.info("headrace %s: %s, %s, %s (%s)", __version__, plain(options.target), counted, where.masked, where.source)
    for handler in app.handlers:
        log.info(
            "handler %s: stream %s, group %s, %d at once, lease %s",
            *(handler.name, plain(handler.stream), plain(handler.group)),
            *(options.concurrency or handler.concurrency, span(handler.lease_ms)),
        )


@contextmanager
def _events(as_json: bool) -> Iterator[TextIO | None]:
    """Where events go with --json: stdout, which is theirs alone. What handlers print goes to stderr then."""
    if not as_json:
        yield None
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:  # a copy is not inherited by children
        os.dup2(2, 1)
        try:
            yield events
        finally:
            events.flush()
            os.dup2(events.fileno(), 1)
