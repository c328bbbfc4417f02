"""The primary that sentinels name and the map of a cluster, while a failover spreads among those who are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import Unavailable
from headrace.redis.routes import InCluster
from headrace.redis.sentinels import FIND_S, BySentinel
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


def test_a_sentinel_that_gives_no_answer_is_asked_last_the_next_time_and_only_then_with_patience() -> None:
    """Else every look for the primary would begin with waiting for it."""
    route = BySentinel(SENTINELS, "shop")
    assert look(route, away={1}) == [(1, FIND_S), (2, FIND_S), (3, None)]
    assert look(route, away={1}) == [(2, FIND_S), (3, FIND_S)]
    assert look(route, away={2, 3}) == [(2, FIND_S), (3, FIND_S), (1, None)]


def look(route: BySentinel, away: set[int]) -> list[tuple[int, float | None]]:
    """Whom the route asks while some sentinels are away, and for how long."""
    route.reset()
    steps, asked = route.node(None), []
    answer: Any = None
    try:
        while True:
            step = steps.send(answer)
            assert isinstance(step, Ask)
            asked.append((step.node.port, step.within_s))
            answer = Unavailable("no answer") if step.node.port in away else view(OLD, 0)
    except StopIteration:
        return asked


def view(primary: Node, epoch: int) -> list[Any]:
    return [[primary.host.encode(), str(primary.port).encode()], [b"config-epoch", str(epoch).encode()]]


def test_what_was_asked_earlier_is_no_news() -> None:
    """Threads ask at the same time, and an answer from before a failover may come after one from behind it."""
    sentinels = BySentinel(SENTINELS, "shop")
    assert find(sentinels, dict.fromkeys((1, 2, 3), (OLD, 0))) == OLD
    sentinels.reset()
    early = sentinels.node(None)
    next(early)
    assert find(sentinels, dict.fromkeys((1, 2, 3), (NEW, 1))) == NEW
    assert ended(early, *[view(OLD, 0)] * 2) == NEW

    cluster = InCluster([OLD])
    assert ended(cluster.node(None), None, [[slots(OLD)]]) == OLD
    cluster.reset()
    early = cluster.node(None)
    next(early)
    cluster.reset()
    assert ended(cluster.node(None), None, [[slots(NEW)]]) == NEW
    assert ended(early, [[slots(OLD)]]) == NEW


def test_a_map_whose_reading_was_given_up_is_read_by_the_next_one() -> None:
    cluster = InCluster([OLD])
    assert ended(cluster.node(None), None, [[slots(OLD)]]) == OLD
    cluster.reset()
    given_up = cluster.node(None)
    next(given_up)
    given_up.close()
    assert cluster.settled("orders") is None


def slots(master: Node) -> list[Any]:
    return [0, 16_383, [master.host.encode(), master.port, b"id"]]


def ended(steps: Any, *answers: Any) -> Any:
    """What a question comes to with these answers."""
    try:
        for answer in answers:
            steps.send(answer)
    except StopIteration as end:
        return end.value
    raise AssertionError("more is asked")


def test_a_doubt_asks_another_sentinel_than_the_one_that_had_no_news() -> None:
    """One that has not heard of a failover answers as readily as the others, and would be asked for ever."""
    route = BySentinel(SENTINELS, "shop")
    assert find(route, dict.fromkeys((1, 2, 3), (OLD, 0))) == OLD
    views = {1: view(OLD, 0), 2: view(NEW, 1), 3: view(NEW, 1)}
    found = OLD
    for _ in range(2):
        route.doubted(OLD)
        steps, answer = route.node(None), None
        try:
            while True:
                answer = views[steps.send(answer).node.port]
        except StopIteration as end:
            found = end.value
    assert found == NEW
