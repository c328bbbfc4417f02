"""The way to the primary that sentinels name: a route, as those of routes.py are.

More than half of the sentinels have to agree, and a later failover outvotes all. While it is used, one of them is asked
now and then whether there was another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from headrace.errors import AuthFailed, HeadraceError, NoPrimary, ServiceUnknown, Unavailable, WrongTopology
from headrace.redis.faults import translate
from headrace.redis.routes import AGAIN_S
from headrace.redis.talk import Ask, Steps, pack
from headrace.redis.topology import Node, Told, agreed, read_told

log = logging.getLogger("headrace")

FRESH_S: Final = 1.0  # how long the primary's address is believed without asking a sentinel
CHECK_S: Final = 0.25  # how long that question may take: the primary we know is not left for a slow sentinel
CHECK_LATER_S: Final = 5.0  # when no sentinel answers it
FIND_S: Final = 1.0  # how long one sentinel is asked for the primary while there are others to ask


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
        self._told_at = 0.0  # when the question that this answers was asked
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

    def serves(self, node: Node) -> bool:
        return self._told is None or self._told.primary == node

    def moved(self, slot: int, node: Node) -> None:
        """No slots here."""

    def lost(self, node: Node) -> None:
        if self._told is None or self._told.primary == node:
            self._stale = True

    def doubted(self, node: Node) -> None:
        self._check_at = 0.0

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
            self._last(self._sentinels[0])
            self._check_at = time.monotonic() + CHECK_LATER_S
            return
        told = read_told(*answer)
        if told is not None and self._told is not None and told.primary != self._told.primary:
            yield from self._find()
        else:
            self._last(self._sentinels[0])  # it may be the one that has not heard of a failover: the next one next

    def _find(self) -> Steps:
        """Generator: ask the sentinels in turn, until more than half of them agree; a later failover outvotes all.

        A failover that was heard of already is not forgotten for a majority that has not heard of it yet: the others
        are asked too. Sentinels that were all set up anew begin at epoch 0, and are believed.
        """
        asked_at = self._asked_at = time.monotonic()
        known = 0 if self._told is None else self._told.epoch
        told: list[Told] = []
        unknown = 0
        failed: HeadraceError | None = None
        sentinels = self._sentinels
        for sentinel in sentinels:
            within_s = FIND_S if sentinel is not sentinels[-1] else None
            answer = yield Ask(sentinel, self._ask, sentinel=True, within_s=within_s)
            if isinstance(answer, HeadraceError):
                failed = answer
                self._last(sentinel)
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
            if len(same) * 2 > len(sentinels) and view.epoch >= known:
                break
        found = self._settled(told, unknown, failed)
        if asked_at >= self._told_at:  # else somebody has asked after us, and was answered before
            if self._told is not None and found.primary != self._told.primary:
                log.warning(
                    "primary.changed service=%s from %s to %s", self._service, self._told.primary, found.primary
                )
            self._told, self._told_at = found, asked_at
        self._stale = False
        self._check_at = time.monotonic() + FRESH_S

    def _last(self, sentinel: Node) -> None:
        """It gave no answer, or no news: the others are asked before it. A new list, because threads share it."""
        self._sentinels = [*(one for one in self._sentinels if one != sentinel), sentinel]

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
        return found


def _refused_by(sentinel: Node, reply: Exception) -> HeadraceError:
    if isinstance(reply, NoPermissionError):
        return translate(reply)
    if isinstance(reply, ResponseError) and "unknown command" in str(reply).lower():
        return WrongTopology(f"{sentinel} is no sentinel: write redis:// for a server, or give the sentinels' port")
    return translate(reply)
