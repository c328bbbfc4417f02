"""From one URL to connections: one node, unix socket, TLS (SPEC 48).

A :class:`Server` is where a worker, a thread or the supervising parent gets its links. redis-py's connection classes
do the dialling, the TLS and the authentication; everything above them (retries, time-outs, scripts) is ours, because
redis-py's defaults re-send a read whose answer was cut (FACTS, "Client").
"""

from __future__ import annotations

import logging
import ssl
from typing import Any

from redis import connection as sync_connections
from redis.asyncio import connection as async_connections

from headrace.config import ConnectSettings
from headrace.endpoint import Endpoint, parse_url
from headrace.errors import AuthFailed, ConfigError
from headrace.redis.link import Link, SyncLink

log = logging.getLogger("headrace")


class Server:
    """A server that links can be made to. Holds no connection itself, so it may be shared and copied freely."""

    def __init__(self, url: str | Endpoint, settings: ConnectSettings | None = None) -> None:
        self.endpoint = parse_url(url) if isinstance(url, str) else url
        self.settings = settings or ConnectSettings()
        if self.endpoint.kind not in ("tcp", "unix"):
            raise ConfigError(
                f"{self.endpoint.masked}: {self.endpoint.kind} is not supported yet: give the URL of one node"
            )

        if self.endpoint.tls and not self._verifies:
            log.warning("tls.unverified %s: neither chain nor host name is checked", self.endpoint.masked)

    def __repr__(self) -> str:
        return f"<Server {self.endpoint.masked}>"

    def link(self, name: str = "headrace", *, at: str = "") -> Link:
        """A dedicated connection for the event loop. It connects with its first call.

        ``at`` names the stream it serves: in a cluster it leads to the master of that stream's slot. Without it a call
        goes where its own key is.
        """
        return Link(lambda: self._dial(async_connections), name=name, timeout_ms=self.settings.command_timeout_ms)

    def sync_link(self, name: str = "headrace", *, at: str = "", timeout_ms: int | None = None) -> SyncLink:
        """The same for a thread or a process without an event loop."""
        limit = timeout_ms or self.settings.command_timeout_ms
        return SyncLink(lambda: self._dial(sync_connections, limit), name=name, timeout_ms=limit)

    def _dial(self, module: Any, timeout_ms: int | None = None) -> Any:
        """Make (not yet open) one connection of redis-py: RESP2, raw replies, no retries of its own."""
        end = self.endpoint
        connect_ms = self.settings.connect_timeout_ms
        options: dict[str, Any] = {
            "db": end.db,
            "username": end.username,
            "password": end.password,
            "protocol": 2,
            "driver_info": None,
            # The asyncio link times each call itself; redis-py would start a task a command to do it.
            "socket_timeout": None if timeout_ms is None else timeout_ms / 1000,
            "socket_connect_timeout": min(connect_ms, timeout_ms or connect_ms) / 1000,
            "socket_read_size": 1 << 18,
        }
        if end.kind == "unix":
            return module.UnixDomainSocketConnection(path=end.path, **options)
        host, port = end.hosts[0]
        options |= {"host": host, "port": port, "socket_keepalive": True}
        if not end.tls:
            return module.Connection(**options)
        return module.SSLConnection(**options, **self._tls())

    @property
    def _verifies(self) -> bool:
        return not (self.endpoint.tls_insecure or self.settings.tls_insecure)

    def _check_files(self) -> None:
        """Raise AuthFailed where a file of the URL cannot be used: the client would call that an unreachable server,
        and be asked again for ever. Paths are not repeated; an encrypted key asks nobody for its password."""
        end = self.endpoint
        context = ssl.create_default_context()
        try:
            if end.ca_cert:
                context.load_verify_locations(end.ca_cert)
            if end.client_cert:
                context.load_cert_chain(end.client_cert, end.client_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "no PEM file that fits"
            raise AuthFailed(
                f"TLS: a file is of no use ({why}): check the paths ca_cert, client_cert and client_key in the URL, "
                "and that the key is not encrypted"
            ) from None

    def _tls(self) -> dict[str, Any]:
        end = self.endpoint
        self._check_files()
        verify = self._verifies
        return {
            "ssl_cert_reqs": "required" if verify else "none",
            "ssl_check_hostname": verify,
            "ssl_ca_certs": end.ca_cert,
            "ssl_certfile": end.client_cert,
            "ssl_keyfile": end.client_key,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }
