"""The configuration file of an embedded server. A file, because `ps` shows command lines to everybody."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.embedded.place import Place
from headrace.errors import ConfigError

ConfigLines = Mapping[str, str | int | Sequence[str]]
"""Lines of a server's configuration file; a sequence gives the same word several lines (`user`, `save`)."""

LOOPBACK = "127.0.0.1"


def conf_text(lines: ConfigLines) -> str:
    """The lines as the server reads them. Refuses what would not stay one line."""
    return "".join(_line(word, value) for word, values in lines.items() for value in _each(values))


def own_lines(place: Place, *, port: int, keep: bool) -> dict[str, str | int | Sequence[str]]:
    """What an embedded server needs: reachable from this machine only, in the foreground, log on stdout."""
    return {
        "dir": _quoted(place.folder),
        "unixsocket": _quoted(place.socket),
        "unixsocketperm": "700",
        "port": port,
        "bind": LOOPBACK,
        "daemonize": "no",
        "logfile": "",
        "save": "",
        "appendonly": "yes" if keep else "no",
    }


def write_conf(file: Path, text: str) -> None:
    """Write a file that only we may read: a password may stand in it."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as out:
        out.write(text)


def _each(values: str | int | Sequence[str]) -> Sequence[str | int]:
    return [values] if isinstance(values, str | int) else values


def _line(word: str, value: str | int) -> str:
    text = f"{word} {value}" if value != "" else f'{word} ""'
    if not word or any(mark in text for mark in "\r\n\0"):
        raise ConfigError(f"a server configuration line must be one line with a name: {word!r:.80}")
    return text + "\n"


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
