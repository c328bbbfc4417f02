"""Which server holds which key, as pure values: slots of keys, the map of a cluster, redirections, primaries.

Nothing here talks to anybody. What asks is in routes.py, what is asked over is in link.py.
"""

from __future__ import annotations

import hashlib
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.exceptions import AskError, MovedError

from headrace.names import tag_of

SLOTS: Final = 16_384
UNKNOWN_HOST: Final = "?"  # a node that has no name to tell, where names were asked for


class Node(NamedTuple):
    """One server process by its address. Port 0: the host is the path of a unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def slot_of(key: bytes | str | float) -> int:
    """The slot of a key: CRC16 of its {tag}, or of all of it.

    >>> slot_of("orders") == slot_of("{orders}:dlq"), slot_of("123456789")
    (True, 12739)
    """
    # Latin-1 gives every byte a character and back: the rule about braces is written once, for text.
    text = key.decode("latin-1") if isinstance(key, bytes) else str(key).encode().decode("latin-1")
    return crc_hqx(tag_of(text).encode("latin-1"), 0) % SLOTS


def chosen(owner: str, nodes: Iterable[Node]) -> Node | None:
    """One node for an owner, the same for whoever asks: rendezvous hashing, so a change of nodes moves few owners."""
    return max(nodes, key=lambda node: hashlib.sha1(f"{owner} {node}".encode()).digest(), default=None)  # noqa: S324


# ── the map of a cluster ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Shard:
    """One master with a range of slots, and its replicas."""

    first: int
    last: int
    master: Node
    replicas: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Slot to master. ``moved`` holds what redirections said since the map was read."""

    shards: tuple[Shard, ...] = ()
    moved: dict[int, Node] = field(default_factory=dict)

    def master(self, slot: int) -> Node | None:
        """Who serves a slot; None if nobody does."""
        if slot in self.moved:
            return self.moved[slot]
        at = bisect_right(self.shards, slot, key=lambda shard: shard.first) - 1
        return self.shards[at].master if at >= 0 and slot <= self.shards[at].last else None

    @property
    def masters(self) -> tuple[Node, ...]:
        """All masters that serve at least one slot, in a fixed order."""
        return tuple(sorted({shard.master for shard in self.shards}))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Masters, then replicas."""
        replicas = {node for shard in self.shards for node in shard.replicas}
        return (*self.masters, *sorted(replicas.difference(self.masters)))

    @property
    def covered(self) -> int:
        """How many of the slots are served."""
        return sum(shard.last - shard.first + 1 for shard in self.shards)


def read_slots(reply: Sequence[Any], asked: Node) -> SlotMap:
    """Read the reply to CLUSTER SLOTS. A node without a host is on the host that was asked."""
    shards = []
    for first, last, *nodes in reply:
        found = [_node(node, asked) for node in nodes]
        if found and found[0] is not None:
            replicas = tuple(node for node in found[1:] if node is not None)
            shards.append(Shard(int(first), int(last), found[0], replicas))
    return SlotMap(tuple(sorted(shards, key=lambda shard: shard.first)))


def _node(raw: Sequence[Any], asked: Node) -> Node | None:
    host = (raw[0] or b"").decode()
    if host == UNKNOWN_HOST:
        more = raw[3] if len(raw) > 3 else []
        told = dict(zip(more[::2], more[1::2], strict=False))
        host = (told.get(b"ip") or b"").decode()
        if not host:
            return None
    return Node(host or asked.host, int(raw[1]))


# ── redirections ─────────────────────────────────────────────────────────────────────────────────────


class Moved(NamedTuple):
    """The slot has another master now (``for_good``), or this one call belongs to the node it is moving to."""

    slot: int
    node: Node
    for_good: bool


def redirection(reply: object, asked: Node) -> Moved | None:
    """Read MOVED and ASK. Both say that the call has not been executed."""
    if not isinstance(reply, AskError):
        return None
    host = reply.host if reply.host not in ("", UNKNOWN_HOST) else asked.host
    return Moved(reply.slot_id, Node(host, reply.port), isinstance(reply, MovedError))


# ── what sentinels say ───────────────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    """One sentinel's view of a service. A higher epoch is a later failover."""

    primary: Node
    epoch: int = 0
    quorum: int = 0
    sentinels: int = 1
    replicas: int = 0
    flags: str = "master"


def read_told(address: Any, about: Any) -> Told | None:
    """From the replies to GET-MASTER-ADDR-BY-NAME and MASTER (an error where it is forbidden). None: not known."""
    if not isinstance(address, list) or len(address) < 2:
        return None
    primary = Node(address[0].decode(), int(address[1]))
    if not isinstance(about, list):
        return Told(primary)
    row = {about[at].decode(): about[at + 1].decode() for at in range(0, len(about) - 1, 2)}

    def number(name: str) -> int:
        return int(row[name]) if row.get(name, "").isdigit() else 0

    return Told(
        primary,
        epoch=number("config-epoch"),
        quorum=number("quorum"),
        sentinels=number("num-other-sentinels") + 1,
        replicas=number("num-slaves"),
        flags=row.get("flags", ""),
    )


def agreed(told: Sequence[Told]) -> Told | None:
    """The primary of the latest failover that any sentinel knows; None if two name different ones for the same epoch.

    A sentinel that was cut off from the others still names the old primary, with the old epoch.
    """
    latest = max(one.epoch for one in told)
    views = [one for one in told if one.epoch == latest]
    if len({one.primary for one in views}) > 1:
        return None
    return views[0]
