"""Holes of servers that are known, and the first versions without them."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cve:
    """A hole, and the first version of each line (major, minor) without it. Lines not named are not judged."""

    id: str
    what: str
    redis: tuple[Version, ...] = ()
    valkey: tuple[Version, ...] = ()
    never_fixed: tuple[Version, ...] = ()  # lines of Redis that have it and got no fix
    needs_tls: bool = False  # only where the server speaks TLS

    def fixed_in(self, server: str, version: Version) -> str | None:
        """The version to go to; "" if this line has none; None if the server does not have the hole."""
        if server == "redis" and version[:2] in self.never_fixed:
            return ""
        for fixed in {"redis": self.redis, "valkey": self.valkey}.get(server, ()):
            if fixed[:2] == version[:2] and version < fixed:
                return ".".join(map(str, fixed))
        return None


# From the projects' release notes, as of November 2026. Only what a client or a script can reach.
CVES = (
    Cve(
        "CVE-2025-49844",
        "a script can run code on the server (use after free in Lua)",
        redis=((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
        valkey=((7, 2, 11), (8, 0, 6), (8, 1, 4)),
        never_fixed=((7, 0),),
    ),
    Cve(
        "CVE-2026-23479",
        "a client with a password can run code on the server (use after free when blocked clients wake)",
        redis=((7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)),
        valkey=((7, 2, 13), (8, 0, 8), (8, 1, 7), (9, 0, 4)),
    ),
    Cve(
        "CVE-2026-81934",
        "anybody who reaches the TLS port may run code on the server (use after free in pending TLS data)",
        redis=((8, 2, 9), (8, 4, 6), (8, 6, 6), (8, 8, 2), (8, 10, 1)),
        needs_tls=True,
    ),
    Cve(
        "CVE-2026-56684",
        "a client with a password can run code on the server (use after free in TLS and CLIENT KILL)",
        valkey=((7, 2, 14), (8, 0, 10), (8, 1, 9), (9, 0, 5), (9, 1, 1)),
        needs_tls=True,
    ),
)
