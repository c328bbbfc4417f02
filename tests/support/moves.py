"""A slot of a cluster goes from one master to another, in the old way and in the atomic one."""

from __future__ import annotations

import time

from headrace.redis.topology import slot_of
from tests.support.topologies import Cluster, Member
from tests.support.wait import wait_until_sync

ATOMIC = ("redis8", "valkey9")
"""Servers of the matrix that can move a slot in one step."""


def another(cluster: Cluster, master: Member) -> Member:
    """A master that is not this one."""
    return next(one for one in cluster.members if one is not master and one.info("replication")["role"] == "master")


def move_classic(
    cluster: Cluster, name: str, source: Member, target: Member, *, page: int = 10, rest_s: float = 0.1
) -> None:
    """IMPORTING, MIGRATING, MIGRATE key by key, NODE: as redis-cli --cluster reshard does it.

    A large slot takes its time: there is a rest after each page of keys, and the halves stand at two servers meanwhile.
    """
    slot = slot_of(name)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, page):
        for key in keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        time.sleep(rest_s)
    for member in (target, source):
        member.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))


def move_atomically(cluster: Cluster, name: str, source: Member, target: Member) -> None:
    """All keys at once: Redis 8.4+ is asked for it at the new owner, Valkey 9+ at the old one."""
    slot = slot_of(name)
    if cluster.key.startswith("valkey"):
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id_of(target))
    else:
        target.ask("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
    wait_until_sync(lambda: cluster.member_of(name) is target, 20, what="the slot has moved")
