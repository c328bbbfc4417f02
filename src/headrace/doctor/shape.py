"""The shape of what a URL leads to: one server, a primary with sentinels, or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.redis import commands
from headrace.redis.connect import Server
from headrace.redis.link import Link
from headrace.redis.routes import InCluster
from headrace.redis.sentinels import BySentinel
from headrace.redis.topology import Node


@dataclass(frozen=True, slots=True)
class Shape:
    """``masters`` in the order of their addresses; numbers that could not be asked are None."""

    kind: Literal["one", "sentinel", "cluster"] = "one"
    masters: tuple[str, ...] = ()
    replicas: int | None = None
    alone: tuple[str, ...] = ()  # masters without a replica
    versions: tuple[str, ...] = ()  # all that are met
    slots: int = 0  # served, of 16,384
    full_coverage: bool | None = None  # one missing slot stops the whole cluster
    sentinels: int = 0
    quorum: int = 0
    flags: str = ""  # what the sentinels hold of the primary


async def shape_of(server: Server, link: Link) -> Shape:
    """Ask every master; one that does not answer is simply not counted."""
    route = server.route
    masters = await link.masters()
    if isinstance(route, BySentinel):
        told = route.told
        assert told is not None, "masters() has just found it"
        return Shape(
            "sentinel",
            tuple(map(str, masters)),
            replicas=told.replicas,
            sentinels=told.sentinels,
            quorum=told.quorum,
            flags=told.flags,
        )
    if not isinstance(route, InCluster):
        return Shape("one", tuple(map(str, masters)))
    known, alone, versions = route.map, [], set[str]()
    for node in masters:
        has_replica = any(shard.replicas for shard in known.shards if shard.master == node)
        alone += [] if has_replica else [str(node)]
        versions.add(await _version(link, node))
    return Shape(
        "cluster",
        tuple(map(str, masters)),
        replicas=len(known.nodes) - len(known.masters),
        alone=tuple(alone),
        versions=tuple(sorted(versions - {""})),
        slots=known.covered,
        full_coverage=await _full_coverage(link, masters),
    )


async def _version(link: Link, node: Node) -> str:
    try:
        about = await link.call(commands.info("server").aimed(node))
    except HeadraceError:
        return ""
    return about.get("valkey_version") or about.get("redis_version", "")


async def _full_coverage(link: Link, masters: tuple[Node, ...]) -> bool | None:
    """One master that wants it is enough to stop."""
    said = []
    for node in masters:
        try:
            said.append(await link.call(commands.config("cluster-require-full-coverage").aimed(node)))
        except HeadraceError:
            continue
    return "yes" in said if said else None
