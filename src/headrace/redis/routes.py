"""The ways to the server that holds a key: one node, the primary that sentinels name, the masters of a cluster.

A route is the shared knowledge of all links of one :class:`~headrace.redis.connect.Server`, in whatever threads they
are. It finds out by yielding what to ask (see talk.py) and keeps what it heard: a map of slots, or the primary's
address. What was heard is read again when a server contradicts it or cannot be reached, and not more often than
``AGAIN_S``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from headrace.errors import (
    AuthFailed,
    HeadraceError,
    NoPrimary,
    ServiceUnknown,
    SlotMissing,
    Unavailable,
    WrongTopology,
)
from headrace.names import tag_of
from headrace.redis.faults import translate
from headrace.redis.talk import Ask, Steps, pack
from headrace.redis.topology import Node, SlotMap, Told, agreed, read_slots, read_told, slot_of

log = logging.getLogger("headrace")

AGAIN_S: Final = 0.1  # a map that was contradicted is not read more often
FRESH_S: Final = 1.0  # how long the primary's address is believed without asking a sentinel
CHECK_S: Final = 0.25  # how long that question may take: the primary we know is not left for a slow sentinel
CHECK_LATER_S: Final = 5.0  # when no sentinel answers it
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

    def moved(self, slot: int, node: Node) -> None:
        """One node moves nothing."""

    def lost(self, node: Node) -> None:
        """There is no other."""


class InCluster:
    """The masters of a cluster, by slot."""

    spreads = True
    moves = True
    asks_role = False

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        self._lock = threading.Lock()
        self._map = SlotMap()
        self._stale = True
        self._read_at = 0.0
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

    def moved(self, slot: int, node: Node) -> None:
        with self._lock:
            self._map = replace(self._map, moved={**self._map.moved, slot: node})
            self._stale = True

    def lost(self, node: Node) -> None:
        self._lost[node] = time.monotonic()
        self.expire()

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
        self._stale, self._read_at = False, time.monotonic()
        try:
            found = yield from self._read()
        except HeadraceError:
            self._stale = True
            if not self._map.shards:
                raise
            return
        with self._lock:
            self._map = found

    def _read(self) -> Steps:
        known = {**dict.fromkeys(self._map.nodes), **dict.fromkeys(self._seeds)}
        asked = sorted(known, key=lambda node: self._lost.get(node, 0.0))
        failed: HeadraceError | None = None
        for node in asked:
            answer = yield Ask(node, _SLOTS)
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


class BySentinel:
    """The primary of one service, as the sentinels know it."""

    spreads = False
    moves = True
    asks_role = True

    def __init__(self, sentinels: Sequence[Node], service: str) -> None:
        self._sentinels = list(sentinels)
        self._service = service
        self._ask = [
            pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)),
            pack(("SENTINEL", "MASTER", service)),
        ]
        self._told: Told | None = None
        self._asked_at = 0.0
        self._check_at = 0.0
        self._stale = True

    @property
    def told(self) -> Told | None:
        """What is known now, without asking."""
        return self._told

    def node(self, key: Any) -> Steps:
        now = time.monotonic()
        if self._told is None or (self._stale and now >= self._asked_at + AGAIN_S):
            yield from self._find()
        elif now >= self._check_at:
            yield from self._check()
        assert self._told is not None
        return self._told.primary

    def settled(self, key: str) -> Node | None:
        if self._told is None or self._stale or time.monotonic() >= self._check_at:
            return None
        return self._told.primary

    def masters(self) -> Steps:
        node = yield from self.node(None)
        return (node,)

    def moved(self, slot: int, node: Node) -> None:
        """No slots here."""

    def lost(self, node: Node) -> None:
        if self._told is None or self._told.primary == node:
            self._stale = True

    def reset(self) -> None:
        """Ask the sentinels again before the next call, however fresh their answer is: somebody has asked for it."""
        self._stale, self._asked_at = True, 0.0

    def _check(self) -> Steps:
        """Generator: has there been a failover? An old primary, paused and back again, does not know of it.

        One sentinel is asked, for a short time; its silence changes nothing.
        """
        self._check_at = time.monotonic() + FRESH_S
        answer = yield Ask(self._sentinels[0], self._ask, sentinel=True, within_s=CHECK_S)
        if isinstance(answer, HeadraceError):
            self._sentinels.append(self._sentinels.pop(0))
            self._check_at = time.monotonic() + CHECK_LATER_S
            return
        told = read_told(*answer)
        if told is not None and self._told is not None and told.primary != self._told.primary:
            yield from self._find()

    def _find(self) -> Steps:
        """Generator: ask the sentinels in turn, until more than half of them agree; a later failover outvotes all.

        A failover that was heard of already is not forgotten for a majority that has not heard of it yet: the others
        are asked too. Sentinels that were all set up anew begin at epoch 0, and are believed.
        """
        self._asked_at = time.monotonic()
        known = 0 if self._told is None else self._told.epoch
        told: list[Told] = []
        unknown = 0
        failed: HeadraceError | None = None
        for sentinel in list(self._sentinels):
            answer = yield Ask(sentinel, self._ask, sentinel=True)
            if isinstance(answer, HeadraceError):
                failed = answer
                continue
            refused = answer[0]
            if isinstance(refused, Exception):
                failed = _refused_by(sentinel, refused)
                continue
            view = read_told(*answer)
            if view is None:
                unknown += 1
                continue
            told.append(view)
            same = [one for one in told if (one.primary, one.epoch) == (view.primary, view.epoch)]
            if len(same) * 2 > len(self._sentinels) and view.epoch >= known:
                break
        self._told = self._settled(told, unknown, failed)
        self._stale = False
        self._check_at = time.monotonic() + FRESH_S

    def _settled(self, told: Sequence[Told], unknown: int, failed: HeadraceError | None) -> Told:
        names = ", ".join(map(str, self._sentinels))
        if not told and unknown:
            raise ServiceUnknown(
                f"the sentinels ({names}) know no service {self._service!r}: check the name in the URL against "
                "the one in `sentinel monitor`"
            )
        if not told:
            if isinstance(failed, (AuthFailed, WrongTopology)) or (failed and not isinstance(failed, Unavailable)):
                raise failed
            raise NoPrimary(f"no sentinel answers ({names}), so nobody can say where {self._service!r} is: {failed}")
        found = agreed(told)
        if found is None:
            views = ", ".join(sorted({str(one.primary) for one in told}))
            raise NoPrimary(
                f"the sentinels disagree about the primary of {self._service!r} ({views}): a failover is under way, "
                "or they have lost sight of each other; Headrace backs off and tries again"
            )
        if self._told is not None and found.primary != self._told.primary:
            log.warning("primary.changed service=%s from %s to %s", self._service, self._told.primary, found.primary)
        return found


def _refused_by(sentinel: Node, reply: Exception) -> HeadraceError:
    if isinstance(reply, NoPermissionError):
        return translate(reply)
    if isinstance(reply, ResponseError) and "unknown command" in str(reply).lower():
        return WrongTopology(f"{sentinel} is no sentinel: write redis:// for a server, or give the sentinels' port")
    return translate(reply)
