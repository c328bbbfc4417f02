"""The ways to the server that holds a key: one node, or the masters of a cluster (sentinels.py has the third).

A route is the shared knowledge of all links of one :class:`~headrace.redis.connect.Server`, in whatever threads they
are. It finds out by yielding what to ask (see talk.py) and keeps what it heard: a map of slots, or the primary's
address. What was heard is read again when a server contradicts it or cannot be reached, and not more often than
``AGAIN_S``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from redis.exceptions import ResponseError

from headrace.errors import HeadraceError, SlotMissing, Unavailable, WrongTopology
from headrace.names import tag_of
from headrace.redis.faults import translate
from headrace.redis.talk import Ask, Steps, pack
from headrace.redis.topology import Node, SlotMap, read_slots, slot_of

AGAIN_S: Final = 0.1  # a map that was contradicted is not read more often
READ_S: Final = 1.0  # how long one node is asked for it while there are others to ask
_SLOTS = [pack(("CLUSTER", "SLOTS"))]


class OneNode:
    """One server, and what it says is final."""

    spreads = False
    moves = False
    asks_role = False

    def __init__(self, node: Node) -> None:
        self._node = node

    def node(self, key: Any) -> Steps:
        yield from ()
        return self._node

    def settled(self, key: str) -> Node | None:
        return self._node

    def masters(self) -> Steps:
        yield from ()
        return (self._node,)

    def serves(self, node: Node) -> bool:
        return True

    def moved(self, slot: int, node: Node) -> None:
        """One node moves nothing."""

    def lost(self, node: Node) -> None:
        """There is no other."""

    def doubted(self, node: Node) -> None:
        """Nor anybody to ask."""


class InCluster:
    """The masters of a cluster, by slot."""

    spreads = True
    moves = True
    asks_role = False

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        self._lock = threading.Lock()
        self._map = SlotMap()
        self._serving: tuple[SlotMap, frozenset[Node]] = (self._map, frozenset())  # of which map, and all its masters
        self._stale = True
        self._read_at = 0.0
        self._asked_at = 0.0  # when the reading of this map began
        self._lost: dict[Node, float] = {}

    @property
    def map(self) -> SlotMap:
        """What is known now, without asking."""
        return self._map

    def node(self, key: Any) -> Steps:
        if isinstance(key, Node):
            return key
        yield from self._fresh()
        if key is None:
            return self._any()
        slot = slot_of(key)
        node = self._map.master(slot)
        if node is None:
            self.expire()
            tag = tag_of(key if isinstance(key, str) else str(key))
            raise SlotMissing(
                f"no master of the cluster serves slot {slot}, the slot of {tag!r}: give the slot to a node "
                "(CLUSTER ADDSLOTS), or bring back the node that had it; Headrace backs off and tries again",
                slot=slot,
                stream=tag,
            )
        return node

    def settled(self, key: str) -> Node | None:
        return None if self._stale or not key else self._map.master(slot_of(key))

    def masters(self) -> Steps:
        yield from self._fresh()
        return self._map.masters

    def serves(self, node: Node) -> bool:
        known, serving = self._serving
        if known is not self._map:
            known = self._map
            serving = frozenset((*known.masters, *known.moved.values()))
            self._serving = known, serving
        return not serving or node in serving

    def moved(self, slot: int, node: Node) -> None:
        with self._lock:
            self._map = replace(self._map, moved={**self._map.moved, slot: node})
            self._stale = True

    def lost(self, node: Node) -> None:
        self._lost[node] = time.monotonic()
        self.expire()

    def doubted(self, node: Node) -> None:
        self.lost(node)  # a map that cannot be read is no error while this one is there

    def expire(self) -> None:
        """Read the map again before the next call, if that is not too soon."""
        self._stale = True

    def reset(self) -> None:
        """Read the map again before the next call, however fresh it is: somebody has asked for it."""
        self._stale, self._read_at = True, 0.0

    def _any(self) -> Node:
        """A node for what holds no key: one that was not lost just now."""
        masters = self._map.masters
        return min(masters, key=lambda node: self._lost.get(node, 0.0))

    def _fresh(self) -> Steps:
        """Generator: read the map if need be. One that cannot be read is no error while an older one is there."""
        known = bool(self._map.shards)  # until then everybody asks: there is nothing to go by
        if known and (not self._stale or time.monotonic() < self._read_at + AGAIN_S):
            return
        asked_at = time.monotonic()
        self._stale, self._read_at = False, asked_at
        try:
            found = yield from self._read()
        except BaseException as error:  # also when whoever asked is cancelled: the next one has to ask
            self._stale = True
            if not isinstance(error, HeadraceError) or not self._map.shards:
                raise
            return
        with self._lock:
            if asked_at >= self._asked_at:  # else somebody has asked after us, and was answered before
                self._map, self._asked_at = found, asked_at

    def _read(self) -> Steps:
        known = {**dict.fromkeys(self._map.nodes), **dict.fromkeys(self._seeds)}
        asked = sorted(known, key=lambda node: self._lost.get(node, 0.0))
        failed: HeadraceError | None = None
        for node in asked:
            answer = yield Ask(node, _SLOTS, within_s=READ_S if node is not asked[-1] else None)
            reply = answer if isinstance(answer, HeadraceError) else answer[0]
            if isinstance(reply, list):
                found = read_slots(reply, node)
                self._lost.pop(node, None)
                if found.shards:
                    return found
                failed = Unavailable(f"{node} serves no slot: give the cluster its slots (redis-cli --cluster create)")
                continue
            failed = _not_a_map(node, reply)
            if not isinstance(failed, Unavailable):
                raise failed
            self._lost[node] = time.monotonic()
        named = ", ".join(map(str, asked[:5]))
        raise Unavailable(f"no node of the cluster answers ({named}): {failed}")


def _not_a_map(node: Node, reply: Exception) -> HeadraceError:
    if isinstance(reply, ResponseError) and "cluster support disabled" in str(reply):
        return WrongTopology(f"{node} is not part of a cluster: write redis:// instead of redis+cluster:// in the URL")
    return translate(reply)
