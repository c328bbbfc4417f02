"""The primary that sentinels name, while a failover spreads among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.redis.routes import BySentinel
from headrace.redis.talk import Ask
from headrace.redis.topology import Node

SENTINELS = [Node("s", port) for port in (1, 2, 3)]
OLD, NEW = Node("old", 1), Node("new", 1)


def find(route: BySentinel, views: Mapping[int, tuple[Node, int]]) -> Node:
    """Drive the route's question; `views` says what the sentinel on each port names, with its epoch."""
    route.reset()
    steps = route.node(None)
    answer: Any = None
    try:
        while True:
            step = steps.send(answer)
            assert isinstance(step, Ask)
            node, epoch = views[step.node.port]
            about = [b"config-epoch", str(epoch).encode()]
            answer = [[node.host.encode(), str(node.port).encode()], about]
    except StopIteration as end:
        found: Node = end.value
        return found


def test_a_majority_that_has_not_heard_of_a_failover_does_not_lead_back_to_the_old_primary() -> None:
    """A failover reaches one sentinel after the other; those that have not heard of it may be asked first."""
    route = BySentinel(SENTINELS, "shop")
    assert find(route, {1: (OLD, 0), 2: (OLD, 0), 3: (OLD, 0)}) == OLD
    assert find(route, {1: (NEW, 1), 2: (NEW, 1), 3: (NEW, 1)}) == NEW
    assert find(route, {1: (OLD, 0), 2: (OLD, 0), 3: (NEW, 1)}) == NEW


def test_sentinels_that_were_all_set_up_anew_are_believed_with_their_lower_epoch() -> None:
    route = BySentinel(SENTINELS, "shop")
    assert find(route, dict.fromkeys((1, 2, 3), (NEW, 7))) == NEW
    assert find(route, dict.fromkeys((1, 2, 3), (OLD, 0))) == OLD
