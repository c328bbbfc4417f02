"""Where a run takes place: one node, Sentinel, or Cluster. A scenario says which it needs; the faults ask this seam.

Only one node is there so far. Sentinel and Cluster enter here: a class with the same members, a line in TOPOLOGIES.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol
from urllib.parse import quote

import redis

from tests.support.servers import KEYS, NATIVE, Server, start_server

Kind = Literal["single", "sentinel", "cluster"]
USER: Final = "crew"
ConfigWords = Mapping[str, str | int | Sequence[str]]


class NotAtHand(Exception):
    """Something a scenario needs is not here; it is skipped, and the table says why."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How a scenario wants its server."""

    aof: bool = False
    fsync: str = "everysec"
    config: ConfigWords = field(default_factory=dict)
    preload: str = ""  # a library the server is started with: "faketime", "fsync"
    disk_mb: int = 0  # the server's folder is a file system of this size


class Topology(Protocol):
    """What a stage needs of the servers under test."""

    key: str  # of the server matrix
    native: bool
    servers: list[Server]

    @property
    def url(self) -> str:
        """For workers and feeder: a user of their own, whose password is the canary."""

    def url_at(self, port: int) -> str:
        """The same through a proxy on that port."""

    @property
    def admin(self) -> redis.Redis:
        """A client that may do everything, for faults and for looking."""

    @property
    def version(self) -> str: ...

    def restart(self, server: Server) -> None:
        """Start a server again that was killed, as it was started first."""

    def close(self) -> None: ...


class Single:
    """One node, reached over its unix socket."""

    def __init__(self, key: str, canary: str, plan: ServerPlan, folder: Path, env: Mapping[str, str]) -> None:
        self.key = key
        self.native = key in NATIVE
        self._canary = canary
        self._env = dict(env)
        lines: dict[str, str | int | Sequence[str]] = {
            "appendfsync": plan.fsync,
            "user": [f"{USER} on >{canary} ~* &* +@all"],
            **plan.config,
        }
        with _environment(env):
            self.servers = [start_server(key, aof=plan.aof, config=lines, dir=folder)]

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def url(self) -> str:
        return f"unix://{USER}:{self._canary}@{quote(str(self.server.socket))}"

    def url_at(self, port: int) -> str:
        return f"redis://{USER}:{self._canary}@127.0.0.1:{port}"

    @property
    def admin(self) -> redis.Redis:
        return self.server.sync()

    @property
    def version(self) -> str:
        info = self.admin.info("server")
        name = "valkey" if "valkey_version" in info else "redis"
        return f"{name} {info[f'{name}_version']}"

    def restart(self, server: Server) -> None:
        with _environment(self._env):
            server.restart()

    def close(self) -> None:
        self.server.stop()


Make = Callable[[str, str, ServerPlan, Path, Mapping[str, str]], Topology]
TOPOLOGIES: Final[Mapping[Kind, Make]] = {"single": Single}
KINDS: Final[tuple[Kind, ...]] = ("single", "sentinel", "cluster")


def make(kind: Kind, key: str, canary: str, plan: ServerPlan, folder: Path, env: Mapping[str, str]) -> Topology:
    """Start a topology, or say that it is not there."""
    if key not in KEYS:
        raise NotAtHand(f"no server is called {key}")
    if kind not in TOPOLOGIES:
        raise NotAtHand(f"needs a {kind}, which the core does not serve yet")
    return TOPOLOGIES[kind](key, canary, plan, folder, env)


@contextmanager
def _environment(words: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for what is started inside."""
    before = {word: os.environ.get(word) for word in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for word, value in before.items():
            if value is None:
                os.environ.pop(word, None)
            else:
                os.environ[word] = value
