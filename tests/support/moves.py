"""A slot of a cluster goes from one master to another, in the old way and in the atomic one."""

from __future__ import annotations

import time

from headrace.redis.topology import slot_of
from tests.support.topologies import Cluster, Member
from tests.support.wait import wait_until_sync


def another(cluster: Cluster, master: Member) -> Member:
    """A master that is not this one."""
    return next(one for one in cluster.members if one is not master and one.info("replication")["role"] == "master")


def move_classic(cluster: Cluster, name: str, source: Member, target: Member) -> None:
    """IMPORTING, MIGRATING, MIGRATE key by key, NODE: as redis-cli --cluster reshard does it."""
    slot = slot_of(name)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
        for key in keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        time.sleep(0.1)  # a large slot takes its time: the halves stand at two servers meanwhile
    for member in (target, source):
        member.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))


def move_atomically(cluster: Cluster, name: str, source: Member, target: Member) -> None:
    """CLUSTER MIGRATION IMPORT, asked of the new owner (Redis 8.4+)."""
    slot = slot_of(name)
    target.ask("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
    wait_until_sync(lambda: cluster.member_of(name) is target, 20, what="the slot has moved")
