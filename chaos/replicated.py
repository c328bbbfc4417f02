"""Servers with replicas: a primary watched by sentinels, and a cluster of three masters with a replica each.

A replica logs in as a user of its own, so that a fault can shut it out of its primary and of nothing else. Servers keep
nothing on disk: what is killed comes back empty, and as a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import redis

from chaos.topology import USER, ServerPlan, version_of
from tests.support.ports import LOOPBACK
from tests.support.proxy import Behind
from tests.support.servers import NATIVE, Server
from tests.support.topologies import (
    SERVICE,
    Cluster,
    Member,
    Sentinels,
    start_cluster,
    start_sentinels,
)

REPLICA: Final = "replica"  # the user of replicas
STEP_S: Final = 30.0  # how long until all are in step again


def _lines(canary: str, plan: ServerPlan) -> list[str]:
    """Configuration of every server with data. Users are not replicated: each has them all."""
    config = [
        f"{name} {word}"
        for name, words in plan.config.items()
        for word in ([words] if isinstance(words, str | int) else words)
    ]
    return [
        f"user {USER} on >{canary} ~* &* +@all",
        f"user {REPLICA} on nopass +psync +sync +replconf +ping",
        f"masteruser {REPLICA}",
        "masterauth any",
        f"appendonly {'yes' if plan.aof else 'no'}",
        f"appendfsync {plan.fsync}",
        *config,
    ]


class Replicated:
    """What both have in common, and what failovers are made of.

    It is assembled in haste and then told its patience, so that it starts quickly and no busy machine fails it over.
    """

    def __init__(self, key: str, canary: str, shop: Sentinels | Cluster) -> None:
        self.key = key
        self.native = key in NATIVE
        self.servers: list[Server] = []
        self._canary = canary
        self._shop = shop
        self.behind: list[Behind] = [member.port for member in shop.members]

    @property
    def data(self) -> list[Member]:
        return [member for member in self._shop.members if not member.sentinel]

    @property
    def url(self) -> str:
        return self._shop.url.replace("://", f"://{USER}:{self._canary}@")

    def through(self, ports: Sequence[int]) -> dict[str, Any]:
        """Addresses come from sentinels and from the cluster's own map, so the worker itself takes the detour."""
        return {"detour": {str(member.port): port for member, port in zip(self._shop.members, ports, strict=True)}}

    @property
    def nodes(self) -> list[redis.Redis]:
        return [member.sync() for member in self.data if member.alive and not member.paused]

    @property
    def masters(self) -> list[redis.Redis]:
        return [node for node in self.nodes if node.info("replication")["role"] == "master"]

    def places(self, streams: Sequence[str]) -> list[tuple[redis.Redis, set[str]]]:
        served = {stream: self.primary_of(stream) for stream in streams}
        return [
            (member.sync(), {stream for stream, primary in served.items() if primary is member})
            for member in self.data
            if member.alive and not member.paused
        ]

    @property
    def version(self) -> str:
        return version_of(self.nodes[0])

    def restart(self, server: Server) -> None:
        raise NotImplementedError("a server of a set is brought back by its successor: rejoin()")

    def close(self) -> None:
        self._shop.stop()

    # ── failovers ──

    def primary_of(self, stream: str) -> Member:
        raise NotImplementedError

    def replica_of(self, primary: Member) -> Member:
        """Its replica, in step or not."""
        for member in self.data:
            if member is not primary and member.alive and not member.paused:
                about = member.info("replication")
                if about["role"] == "slave" and about["master_port"] == primary.port:
                    return member
        raise LookupError(f"{primary.address} has no replica")

    def part(self, primary: Member) -> None:
        """Nothing reaches the replica from now on, and both are well otherwise."""
        primary.ask("ACL", "SETUSER", REPLICA, "off")
        primary.ask("CLIENT", "KILL", "TYPE", "replica")

    def await_failover(self, stream: str, former: Member) -> Member:
        """Wait until another server has taken over; answers it."""

        def taken() -> Member | None:
            with suppress(LookupError, StopIteration, redis.RedisError):
                found = self.primary_of(stream)
                return found if found is not former and found.info("replication")["role"] == "master" else None
            return None

        self._shop.until(taken, "a failover", STEP_S)
        return self.primary_of(stream)

    def rejoin(self, former: Member, primary: Member) -> None:
        """The former primary is started again, or told, to be a replica of its successor."""
        if not former.alive:
            former.start()
            self._shop.until(former.answers, "the former primary's return")

    def until_in_step(self) -> None:
        self._shop.until(self._shop.ready, "everybody in step", STEP_S)


class BehindSentinel(Replicated):
    """One primary, one replica, three sentinels."""

    _shop: Sentinels

    def __init__(self, key: str, canary: str, plan: ServerPlan) -> None:
        super().__init__(key, canary, start_sentinels(key, data_lines=_lines(canary, plan)))
        for watcher in self._shop.watchers:
            watcher.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", int(plan.patience_s * 1000))

    def streams(self, name: str) -> list[str]:
        return [name]

    @property
    def admin(self) -> redis.Redis:
        return self._shop.primary.sync()

    def primary_of(self, stream: str) -> Member:
        return self._shop.primary

    def rejoin(self, former: Member, primary: Member) -> None:
        """The sentinels would do it too, after ten seconds. One that comes back empty must not be elected: that would
        lose everything, and be nobody's fault but the operator's."""
        with (former.folder / "server.conf").open("a") as conf:
            conf.write(f"\nreplicaof {LOOPBACK} {primary.port}\nreplica-priority 0\n")
        super().rejoin(former, primary)
        former.ask("REPLICAOF", LOOPBACK, primary.port)

    def until_in_step(self) -> None:
        super().until_in_step()
        for member in self.data:
            member.ask("CONFIG", "SET", "replica-priority", 100)


class InCluster(Replicated):
    """Three masters, each with a replica."""

    _shop: Cluster

    def __init__(self, key: str, canary: str, plan: ServerPlan) -> None:
        # With a validity factor a replica that was never in step is not elected.
        lines = [*_lines(canary, plan), "cluster-replica-validity-factor 10"]
        super().__init__(key, canary, start_cluster(key, lines=lines))
        for member in self.data:
            member.ask("CONFIG", "SET", "cluster-node-timeout", int(plan.patience_s * 1000))

    @property
    def cluster(self) -> Cluster:
        return self._shop

    def streams(self, name: str) -> list[str]:
        return self._shop.names(name, self._shop.shards)

    @property
    def admin(self) -> redis.Redis:
        client: redis.Redis = self._shop.sync()
        return client

    def primary_of(self, stream: str) -> Member:
        return self._shop.member_of(stream)
