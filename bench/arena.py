"""Servers to measure on, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from headrace.embedded import Embedded
from tests.support import servers

DEFAULT: Final = ("embedded", "redis8")
KNOWN: Final = ("embedded", *servers.KEYS)

# Called by scripts only; everything else in the statistics came over the wire.
_INSIDE: Final = frozenset({"xack", "xackdel", "xclaim", "xpending", "zrange", "zrangebyscore", "time", "zcard"})

# Fills a stream far quicker than a client could. KEYS 1 stream · ARGV 1 first number 2 last number 3 padding
_FILL: Final = """
for number = ARGV[1], ARGV[2] do
  redis.call('XADD', KEYS[1], '*', 'payload',
    '{"id":' .. number .. ',"customer":"c-123456","amount":12.5,"currency":"EUR","note":"' .. ARGV[3] .. '"}')
end
"""
_FILL_AT_ONCE: Final = 5_000
_PADDING: Final = "x" * 110  # makes a message of about 200 bytes


@dataclass(frozen=True, slots=True)
class Arena:
    """One running server and a plain client to look at it with."""

    key: str
    url: str
    socket: Path
    pid: int
    client: redis.Redis

    @property
    def name(self) -> str:
        """``valkey 9.1.2``, ``redis 8.10.2``: what it says it is."""
        info = self.client.info("server")
        if "valkey_version" in info:
            return f"valkey {info['valkey_version']}"
        return f"redis {info['redis_version']}"

    @property
    def words(self) -> dict[str, Any]:
        """How a run names its server."""
        return {"server": self.key, "version": self.name}

    def fill(self, stream: str, count: int) -> None:
        """Append messages of about 200 bytes."""
        fill = self.client.register_script(_FILL)
        for first in range(0, count, _FILL_AT_ONCE):
            fill(keys=[stream], args=[first, min(first + _FILL_AT_ONCE, count) - 1, _PADDING])

    def calls(self) -> Calls:
        """How often every command was called, and for how long, since the server's start."""
        stats: Mapping[str, Mapping[str, Any]] = self.client.info("commandstats")
        return Calls({name.removeprefix("cmdstat_"): dict(about) for name, about in stats.items()})


@dataclass(frozen=True, slots=True)
class Calls:
    """INFO commandstats at one moment. Calls of commands inside scripts are counted as well."""

    by_name: Mapping[str, Mapping[str, Any]]

    def since(self, before: Calls, *, sent: bool = False) -> int:
        """Calls between two moments, this look at them left out; ``sent``: only those that a client sent."""
        names = (name for name in self.by_name if name != "info" and not (sent and name in _INSIDE))
        return sum(self._calls(name) - before._calls(name) for name in names)

    def usec_since(self, before: Calls, name: str) -> int:
        """Server time spent in one command between two moments, in µs."""
        return self._usec(name) - before._usec(name)

    def _calls(self, name: str) -> int:
        return int(self.by_name.get(name, {}).get("calls", 0))

    def _usec(self, name: str) -> int:
        return int(self.by_name.get(name, {}).get("usec", 0))


@contextmanager
def arena(key: str, *, tcp: bool = False) -> Iterator[Arena]:
    """Start a server without persistence; it ends with the block. ``tcp``: its URL is a loopback port, not a socket."""
    if key == "embedded":
        with Embedded() as embedded, _looking_at(embedded.socket) as client:
            yield Arena(key, embedded.url, embedded.socket, embedded.pid, client)
        return
    server = servers.start_server(key, tcp=tcp)
    try:
        with _looking_at(server.socket) as client:
            yield Arena(key, server.url, server.socket, server.pid, client)
    finally:
        server.stop()


@contextmanager
def _looking_at(socket: Path) -> Iterator[redis.Redis]:
    client = redis.Redis(unix_socket_path=str(socket), protocol=2)
    try:
        yield client
    finally:
        client.close()
