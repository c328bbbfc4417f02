"""Where a run takes place: one node here, Sentinel and Cluster in replicated.py. The faults ask this seam."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

import redis

from tests.support.proxy import Behind
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
    patience_s: float = 6.0  # how long a server with a replica is silent before that takes over; busy is not dead


class Topology(Protocol):
    """What a stage needs of the servers under test."""

    key: str  # of the server matrix
    native: bool
    servers: list[Server]  # those that a fault may kill and restart by themselves: the one node
    behind: list[Behind]  # what a proxy of a worker stands before

    @property
    def url(self) -> str:
        """For workers and feeder: a user of their own, whose password is the canary."""

    def through(self, ports: Sequence[int]) -> dict[str, Any]:
        """Settings of a worker that goes through a proxy with these ports."""

    def streams(self, name: str) -> list[str]:
        """Streams of a run: in a cluster one for each shard."""

    @property
    def admin(self) -> redis.Redis:
        """A client that may do everything, for faults and for looking; it finds each key's server."""

    @property
    def nodes(self) -> list[redis.Redis]:
        """One such client for every server with data that is there now, replicas too."""

    @property
    def masters(self) -> list[redis.Redis]:
        """The same without replicas."""

    def places(self, streams: Sequence[str]) -> list[tuple[redis.Redis, set[str]]]:
        """A client for every server with data, and which of these streams it serves."""

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
        self.behind: list[Behind] = [self.server.socket]

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def url(self) -> str:
        return f"unix://{USER}:{self._canary}@{quote(str(self.server.socket))}"

    def through(self, ports: Sequence[int]) -> dict[str, Any]:
        return {"url": f"redis://{USER}:{self._canary}@127.0.0.1:{ports[0]}"}

    def streams(self, name: str) -> list[str]:
        return [name]

    @property
    def admin(self) -> redis.Redis:
        return self.server.sync()

    @property
    def nodes(self) -> list[redis.Redis]:
        return [self.admin]

    masters = nodes

    def places(self, streams: Sequence[str]) -> list[tuple[redis.Redis, set[str]]]:
        return [(self.admin, {*streams})]

    @property
    def version(self) -> str:
        return version_of(self.admin)

    def restart(self, server: Server) -> None:
        with _environment(self._env):
            server.restart()

    def close(self) -> None:
        self.server.stop()


def version_of(client: redis.Redis) -> str:
    info = client.info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    return f"{name} {info[f'{name}_version']}"


KINDS: Final[tuple[Kind, ...]] = ("single", "sentinel", "cluster")


def make(kind: Kind, key: str, canary: str, plan: ServerPlan, folder: Path, env: Mapping[str, str]) -> Topology:
    """Start a topology. Raises NotAtHand, or ServerMissing."""
    if key not in KEYS:
        raise NotAtHand(f"no server is called {key}")
    if kind == "single":
        return Single(key, canary, plan, folder, env)
    from chaos.replicated import BehindSentinel, InCluster

    if env or plan.disk_mb:
        raise NotAtHand(f"a {kind} is started without preloaded libraries and on the disk there is")
    return (BehindSentinel if kind == "sentinel" else InCluster)(key, canary, plan)


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
