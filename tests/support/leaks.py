"""What a test left behind on a server that it shares with other tests."""

from __future__ import annotations

from collections.abc import Collection

from tests.support.servers import Server


def leaked(server: Server, prefixes: Collection[str]) -> list[str]:
    """Delete every key, and name those that carry none of the prefixes: nobody can tell whose they are."""
    if not server.alive:
        return [f"(the session's {server.key} was killed or paused: such a test needs own_server)"]
    client = server.sync()
    known = [prefix.encode() for prefix in prefixes]
    keys = list(client.scan_iter(count=1000))
    if keys:
        client.delete(*keys)
    return [repr(key) for key in keys if not any(prefix in key for prefix in known)]
