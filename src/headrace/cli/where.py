"""Which server a command talks to.

    1. --url
    2. HEADRACE_URL
    3. url in the nearest headrace.toml, or in [tool.headrace] of the nearest pyproject.toml, from here upwards
    4. the embedded server of this directory, if it is there already or the command may make it

A URL may hold a password: it is never printed, and an error names the place it came from instead.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.embedded import shared
from headrace.embedded.server import HOME
from headrace.endpoint import parse_url
from headrace.errors import ConfigError, UrlRefused
from headrace.options import refuse_unknown

VARIABLE = "HEADRACE_URL"
OPTIONS = ("url",)  # what a configuration file may say


@dataclass(frozen=True, slots=True)
class Where:
    """A server's URL, checked, and who named it."""

    url: str = field(repr=False)
    source: str

    def __post_init__(self) -> None:
        try:
            parse_url(self.url)
        except UrlRefused as error:
            raise UrlRefused(f"{self.source}: {error}") from error

    @property
    def masked(self) -> str:
        """The URL without its secrets."""
        return parse_url(self.url).masked


def find(given: str | None, env: Mapping[str, str] = os.environ, start: Path | None = None) -> Where | None:
    """The URL somebody gave, from the first of the places that has one."""
    if given is not None:
        return Where(given, "--url")
    if env.get(VARIABLE):
        return Where(env[VARIABLE], VARIABLE)
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        found = _in_folder(folder)
        if found is not None:
            return found
    return None


@contextmanager
def located(given: str | None, *, create: bool = False) -> Iterator[Where]:
    """The server to talk to, for as long as the block runs; an embedded one is held for that long.

    Only a command that may ``create`` starts an embedded server where there was none: looking must not make things.
    """
    found = find(given)
    if found is not None:
        yield found
        return
    if not create and not Path(HOME).is_dir():
        raise ConfigError(
            'no server is known: give --url or HEADRACE_URL, or write url = "redis://host:6379" into headrace.toml'
        )
    server = shared(HOME)
    try:
        yield Where(server.url, f"the embedded server in {HOME}")
    finally:
        server.stop()


# ── configuration files ──────────────────────────────────────────────────────────────────────────────


def _in_folder(folder: Path) -> Where | None:
    own, project = folder / "headrace.toml", folder / "pyproject.toml"
    if own.is_file():
        return _read(_load(own), str(own))
    if project.is_file():
        table = _load(project).get("tool", {}).get("headrace")
        return None if table is None else _read(table, f"[tool.headrace] of {project}")
    return None


def _load(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # not UTF-8, not TOML, or a number nobody can read
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file} cannot be read: it is nested too deeply") from error


def _read(table: Any, source: str) -> Where | None:
    if not isinstance(table, dict):
        raise ConfigError(f"{source} is no table: write [tool.headrace] and url below it")
    refuse_unknown(table, OPTIONS, what=source)
    url = table.get("url")
    if url is None:
        return None
    if not isinstance(url, str):
        raise ConfigError(f"{source}: url is a {type(url).__name__}: write it in quotes")
    return Where(url, source)
