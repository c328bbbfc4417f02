"""Clusters and sentinels for tests: real servers as child processes, assembled before they start.

A cluster's nodes.conf and a sentinel's configuration are written as the servers themselves would write them after they
had met, so nobody has to be introduced: 3 masters with 3 replicas serve after about 2.5 s, a primary with its replica
and 3 sentinels after about 1.5 s.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import redis.cluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.redis.topology import slot_of
from tests.support.binaries import find
from tests.support.ports import BUS, LOOPBACK, free_port
from tests.support.servers import KEYS, ServerMissing
from tests.support.tls import TlsFiles
from tests.support.wait import wait_until_sync

NODE_TIMEOUT_MS = 1_000
DOWN_AFTER_MS = 800
SERVICE = "shop"
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


def every(first: str) -> tuple[str, ...]:
    """All servers of the matrix, this one first: `make test` runs a test of topologies there, `make long` on all.

    >>> every("valkey9")
    ('valkey9', 'redis6', 'redis7', 'redis8')
    """
    return (first, *(key for key in KEYS if key != first))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)


@dataclass
class Member:
    """One server process of a topology."""

    key: str
    folder: Path
    port: int
    lines: list[str]
    sentinel: bool = False
    password: str | None = None
    tls: TlsFiles | None = None
    paused: bool = False
    process: subprocess.Popen[bytes] | None = None
    _client: redis.Redis | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        binary = find(self.key)
        if binary is None:
            raise ServerMissing(self.key)
        conf = self.folder / "server.conf"
        if not conf.exists():
            conf.write_text("\n".join([*self.lines, ""]))
        words = [str(binary), str(conf), *(["--sentinel"] if self.sentinel else [])]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent
        )
        log.close()

    def sync(self) -> redis.Redis:
        """A plain client for looking at it."""
        if self._client is None:
            retry = Retry(NoBackoff(), 0)  # whoever asks decides whether to ask again
            secure = {"ssl": True, "ssl_ca_certs": str(self.tls.ca)} if self.tls else {}
            place: dict[str, Any] = {"host": LOOPBACK, "port": self.port, "password": self.password, **secure}
            self._client = redis.Redis(**place, socket_timeout=5, retry=retry)
        return self._client

    def ask(self, *words: str | int) -> Any:
        return self.sync().execute_command(*words)  # type: ignore[no-untyped-call]

    def info(self, section: str) -> dict[str, Any]:
        return self.sync().info(section)

    def answers(self) -> bool:
        try:
            return bool(self.sync().ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def kill(self) -> None:
        """SIGKILL, and return when it is dead. start() brings it back with what it had on disk."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def pause(self) -> None:
        self.paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self.alive:
            self.kill()


@dataclass
class Topology:
    """Some servers that belong together."""

    key: str
    folder: Path
    members: list[Member] = field(default_factory=list)
    tls: TlsFiles | None = None
    _client: Any = field(default=None, repr=False)

    @property
    def alive(self) -> bool:
        return all(member.alive for member in self.members)

    def add(self, lines: Sequence[str], *, sentinel: bool = False, port: int = 0) -> Member:
        port = port or free_port()
        folder = self.folder / str(port)
        folder.mkdir()
        own = [f"tls-port {port}", "port 0"] if self.tls else [f"port {port}"]
        own += [f"bind {LOOPBACK}", f'dir "{folder}"', "protected-mode no"]
        member = Member(self.key, folder, port, [*own, *lines], sentinel, tls=self.tls)
        self.members.append(member)
        return member

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        for member in self.members:
            member.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, what: Callable[[], Any], wanted: str, timeout: float = 15.0) -> None:
        try:
            wait_until_sync(what, timeout, 0.02, what=wanted)
        except (AssertionError, redis.RedisError) as late:
            logs = "\n".join(f"── {one.port}\n{(one.folder / 'log').read_text()[-800:]}" for one in self.members)
            raise AssertionError(f"{late}\n{logs}") from late


_DATA = ['save ""', "appendonly no", "repl-diskless-sync yes", "repl-diskless-sync-delay 0", "repl-timeout 5"]


# ── cluster ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cluster(Topology):
    """Masters with a replica each. members[i + shards] is the replica of members[i] at the start."""

    shards: int = 3
    ids: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(member.address for member in self.members)

    def sync(self) -> Any:
        """A plain client of redis-py for looking at all of it."""
        if self._client is None:
            nodes = [redis.cluster.ClusterNode(LOOPBACK, one.port) for one in self.members]  # type: ignore[no-untyped-call]
            self._client = redis.RedisCluster(startup_nodes=nodes)
        return self._client

    def flush(self) -> None:
        """Delete every key."""
        for member in self.members:
            if member.info("replication")["role"] == "master":
                member.ask("FLUSHALL")

    def member_of(self, key: str) -> Member:
        """The master that serves a key now, as a majority of those alive says."""
        slot = slot_of(key)
        for asked in self.members:
            if asked.paused or not asked.alive:
                continue
            try:
                rows = asked.ask("CLUSTER", "SLOTS")
            except redis.RedisError:
                continue
            port = _master_port(rows, slot)
            found = next((member for member in self.members if member.port == port), None)
            if found is not None and found.alive and not found.paused and found.info("replication")["role"] == "master":
                return found
        raise LookupError(f"nobody serves slot {slot}")

    def names(self, prefix: str, count: int) -> list[str]:
        """Stream names that spread over the shards in turn."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            name = f"{prefix}-{number}"
            number += 1
            if slot_of(name) * self.shards // 16_384 == len(found) % self.shards:
                found.append(name)
        return found

    def id_of(self, member: Member) -> str:
        return self.ids[self.members.index(member)]

    def ready(self) -> bool:
        """All slots served, all replicas in step, and everybody agrees."""
        for member in self.members:
            if not member.answers() or "cluster_state:ok" not in _text(member.ask("CLUSTER", "INFO")):
                return False
            about = member.info("replication")
            if about["role"] == "slave" and about["master_link_status"] != "up":
                return False
            if about["role"] == "master" and about["connected_slaves"] < 1 and len(self.members) > self.shards:
                return False
        return True


def _text(reply: Any) -> str:
    if isinstance(reply, dict):  # redis-py reads CLUSTER INFO for us
        return "\n".join(f"{name}:{value}" for name, value in reply.items())
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _master_port(rows: Any, slot: int) -> int | None:
    if isinstance(rows, dict):  # redis-py reads CLUSTER SLOTS for us
        ranges = [(first, last, about["primary"][1]) for (first, last), about in rows.items()]
    else:
        ranges = [(row[0], row[1], row[2][1]) for row in rows]
    return next((port for first, last, port in ranges if first <= slot <= last), None)


def start_cluster(
    key: str = "redis8",
    *,
    shards: int = 3,
    replicas: bool = True,
    lines: Sequence[str] = (),
    password: str | None = None,
    tls: TlsFiles | None = None,
) -> Cluster:
    """A cluster of `shards` masters, each with a replica. Raises ServerMissing."""
    if find(key) is None:
        raise ServerMissing(key)
    cluster = Cluster(key, Path(tempfile.mkdtemp(prefix="headrace-cluster-")), shards=shards, tls=tls)
    own = ["cluster-enabled yes", f"cluster-node-timeout {NODE_TIMEOUT_MS}", "cluster-require-full-coverage no"]
    own += ["cluster-migration-barrier 10", "cluster-replica-validity-factor 0", "repl-ping-replica-period 1"]
    try:
        for _ in range(shards * (2 if replicas else 1)):
            cluster.add([*own, *_DATA, *lines]).password = password
            cluster.ids.append(secrets.token_hex(20))
        for at, member in enumerate(cluster.members):
            (member.folder / "nodes.conf").write_text(_nodes_conf(cluster, at))
            member.start()
        cluster.until(cluster.ready, "the cluster serves all slots")
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _nodes_conf(cluster: Cluster, me: int) -> str:
    rows = []
    for at, member in enumerate(cluster.members):
        shard = at % cluster.shards
        first, last = (16_384 * shard + cluster.shards - 1) // cluster.shards, 0
        last = (16_384 * (shard + 1) + cluster.shards - 1) // cluster.shards - 1
        master = at < cluster.shards
        flags = ("myself," if at == me else "") + ("master" if master else "slave")
        of = "-" if master else cluster.ids[shard]
        slots = f" {first}-{last}" if master else ""
        place = f"{LOOPBACK}:{member.port}@{member.port + BUS}"
        rows.append(f"{cluster.ids[at]} {place} {flags} {of} 0 0 {shard + 1} connected{slots}")
    return "\n".join([*rows, f"vars currentEpoch {cluster.shards} lastVoteEpoch 0", ""])


# ── sentinels ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Sentinels(Topology):
    """A primary, its replica, and sentinels that watch them."""

    data: list[Member] = field(default_factory=list)
    watchers: list[Member] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(one.address for one in self.watchers)}/{SERVICE}/0"

    def sync(self) -> Any:
        """A plain client for looking at the primary of this moment."""
        return self.primary.sync()

    def flush(self) -> None:
        self.primary.ask("FLUSHALL")

    @property
    def hurt(self) -> bool:
        """Whether a member has died, was paused, or has changed its role since the start."""
        whole = self.alive and not any(member.paused for member in self.members)
        first = self.data[0]
        return not (whole and self.primary is first and first.info("replication")["role"] == "master")

    @property
    def primary(self) -> Member:
        """The primary now, as the first sentinel that answers says."""
        for watcher in self.watchers:
            if watcher.alive and not watcher.paused:
                _, port = watcher.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                return next(one for one in self.data if one.port == int(port))
        raise LookupError("no sentinel is alive")

    def ready(self) -> bool:
        """The replica in step, and every sentinel sees it and all others."""
        if not all(member.answers() for member in self.members):
            return False
        replicas = [one for one in self.data if one.info("replication")["role"] == "slave"]
        if len(replicas) != len(self.data) - 1:
            return False
        in_step = all(one.info("replication")["master_link_status"] == "up" for one in replicas)
        return in_step and all(self._sees(watcher) for watcher in self.watchers)

    def until_copied(self) -> None:
        """What the primary has now is at its replica: a kill loses nothing of it."""
        wanted = self.primary.info("replication")["master_repl_offset"]
        others = [one for one in self.data if one is not self.primary]
        self.until(
            lambda: all(one.info("replication").get("slave_repl_offset", 0) >= wanted for one in others),
            "the replica has all that the primary has",
        )

    def _sees(self, watcher: Member) -> bool:
        try:
            watcher.ask("SENTINEL", "CKQUORUM", SERVICE)
        except redis.ResponseError:  # NOQUORUM
            return False
        return len(watcher.ask("SENTINEL", "REPLICAS", SERVICE)) == len(self.data) - 1


def start_sentinels(
    key: str = "redis8",
    *,
    replica_key: str = "",
    sentinels: int = 3,
    data_lines: Sequence[str] = (),
    primary_lines: Sequence[str] = (),
    replica_lines: Sequence[str] = (),
    sentinel_lines: Sequence[str] = (),
    passwords: tuple[str | None, str | None] = (None, None),
) -> Sentinels:
    """A primary with one replica (of another version, if `replica_key` says so) and three sentinels."""
    for wanted in (key, replica_key or key):
        if find(wanted) is None:
            raise ServerMissing(wanted)
    found = Sentinels(key, Path(tempfile.mkdtemp(prefix="headrace-sentinel-")))
    try:
        primary = found.add([*_DATA, *data_lines, *primary_lines])
        replica = found.add([*_DATA, *data_lines, *replica_lines, f"replicaof {LOOPBACK} {primary.port}"])
        replica.key = replica_key or key
        found.data = [primary, replica]
        ids = [(secrets.token_hex(20), free_port()) for _ in range(sentinels)]
        for own_id, port in ids:
            others = [
                f"sentinel known-sentinel {SERVICE} {LOOPBACK} {other_port} {other}"
                for other, other_port in ids
                if other != own_id
            ]
            lines = [
                f"sentinel myid {own_id}",
                f"sentinel monitor {SERVICE} {LOOPBACK} {primary.port} {sentinels // 2 + 1}",
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {SERVICE} 4000",
                f"sentinel known-replica {SERVICE} {LOOPBACK} {replica.port}",
                *others,
                *sentinel_lines,
            ]
            found.watchers.append(found.add(lines, sentinel=True, port=port))
        for member in found.members:
            member.password = passwords[1 if member.sentinel else 0]
            member.start()
        found.until(found.ready, "sentinels see a primary and its replica in step")
    except BaseException:
        found.stop()
        raise
    return found
