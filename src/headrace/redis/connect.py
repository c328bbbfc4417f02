"""From one URL to connections: one node, unix socket, Sentinel, Cluster, TLS (SPEC 48).

A :class:`Server` is where a worker, a thread or the supervising parent gets its links. redis-py's connection classes
do the dialling, the TLS and the authentication; everything above them (retries, time-outs, scripts) is ours, because
redis-py's defaults re-send a read whose answer was cut (FACTS, "Client").
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from redis import connection as sync_connections
from redis.asyncio import connection as async_connections

from headrace.config import ConnectSettings
from headrace.endpoint import Endpoint, parse_url
from headrace.errors import ConfigError, HeadraceError
from headrace.redis import tls
from headrace.redis.line import Line
from headrace.redis.lines import Explain
from headrace.redis.link import Link
from headrace.redis.routes import InCluster, OneNode
from headrace.redis.sentinels import BySentinel
from headrace.redis.subscription import Subscription
from headrace.redis.synclink import SyncLink
from headrace.redis.topology import Node, slot_of

log = logging.getLogger("headrace")

KINDS = ("tcp", "unix", "sentinel", "cluster")


class Server:
    """A server, or a set of servers, that links can be made to.

    Holds no connection itself, so it may be shared by threads and copied freely. What its links learn about a cluster's
    slots or a sentinel's primary, they share through it.
    """

    def __init__(self, url: str | Endpoint, settings: ConnectSettings | None = None) -> None:
        self.endpoint = parse_url(url) if isinstance(url, str) else url
        self.settings = settings or ConnectSettings()
        self.route = _route(self.endpoint)
        if self.endpoint.tls and not self._verifies:
            log.warning("tls.unverified %s: neither chain nor host name is checked", self.endpoint.masked)

    def __repr__(self) -> str:
        return f"<Server {self.endpoint.masked}>"

    def link(self, name: str = "headrace", *, at: str = "") -> Link:
        """A link for the event loop. It connects with its first call.

        ``at`` names the stream it serves: in a cluster it leads to the master of that stream's slot, and follows it.
        Without it a call goes where its own key is.
        """
        dial = functools.partial(self._dial, async_connections)
        limit = self.settings.command_timeout_ms
        return Link(dial, self.route, name=name, timeout_ms=limit, at=at, explain=self._explain)

    def sync_link(self, name: str = "headrace", *, at: str = "", timeout_ms: int | None = None) -> SyncLink:
        """The same for a thread or a process without an event loop."""
        limit = timeout_ms or self.settings.command_timeout_ms
        dial = functools.partial(self._dial, sync_connections, timeout_ms=limit)
        return SyncLink(dial, self.route, name=name, timeout_ms=limit, at=at, explain=self._explain)

    def listening(self, node: Node, pattern: str, name: str = "headrace") -> Subscription:
        """What one server publishes under a pattern of channels."""
        return Subscription(Line(self._dial(async_connections, node)), pattern, name)

    def place(self, key: bytes | str | float) -> Node | None:
        """The master that serves a key, as far as is known without asking; None outside a cluster.

        What must not wait for another shard's trouble is kept apart by it.
        """
        return self.route.map.master(slot_of(key)) if isinstance(self.route, InCluster) else None

    def reset_topology(self) -> None:
        """Read the map of the cluster, or the primary's address, again before the next call."""
        if not isinstance(self.route, OneNode):
            self.route.reset()

    def _dial(self, module: Any, node: Node, *, sentinel: bool = False, timeout_ms: int | None = None) -> Any:
        """Make (not yet open) one connection of redis-py: RESP2, raw replies, no retries of its own."""
        end = self.endpoint
        connect_ms = self.settings.connect_timeout_ms
        options: dict[str, Any] = {
            "db": 0 if sentinel else end.db,
            "username": end.sentinel_username if sentinel else end.username,
            "password": end.sentinel_password if sentinel else end.password,
            "protocol": 2,
            "driver_info": None,
            # The asyncio link times each call itself; redis-py would start a task a command to do it.
            "socket_timeout": None if timeout_ms is None else timeout_ms / 1000,
            "socket_connect_timeout": min(connect_ms, timeout_ms or connect_ms) / 1000,
            "socket_read_size": 1 << 18,
        }
        if end.kind == "unix":
            return module.UnixDomainSocketConnection(path=end.path, **options)
        options |= {"host": node.host, "port": node.port, "socket_keepalive": True}
        if not end.tls:
            return module.Connection(**options)
        return module.SSLConnection(**options, **tls.options_of(end, verify=self._verifies))

    @property
    def _explain(self) -> Explain | None:
        return self._explained if self.endpoint.tls else None

    @property
    def _verifies(self) -> bool:
        return not (self.endpoint.tls_insecure or self.settings.tls_insecure)

    def _explained(self, node: Node, error: Exception) -> HeadraceError:
        timeout_s = self.settings.connect_timeout_ms / 1000
        return tls.explained(self.endpoint, node, error, verify=self._verifies, timeout_s=timeout_s)


def _route(end: Endpoint) -> OneNode | InCluster | BySentinel:
    if end.kind == "unix":
        return OneNode(Node(end.path, 0))
    nodes = [Node(host, port) for host, port in end.hosts]
    if end.kind == "cluster":
        return InCluster(nodes)
    if end.kind == "sentinel":
        return BySentinel(nodes, end.service)
    if end.kind != "tcp":
        raise ConfigError(f"{end.masked}: {end.kind} is no way to a server that Headrace knows: {', '.join(KINDS)}")
    return OneNode(nodes[0])
