"""With maxmemory reached every outcome still works: a full server is emptied by workers that can finish."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.effects import Effect
from headrace.errors import ServerRefused
from headrace.redis import commands, scripts
from headrace.redis.calls import Call
from tests.support.lab import Lab, Pair

ME = "me"


def _effects(lab: Lab, pair: Pair) -> Call[Any]:
    result = f"{lab.keys.prefix}:result"
    wanted = [Effect.set(result, "1"), Effect.xadd(f"{result}s", {"f": "v"})]
    return scripts.effects(lab.keys, lab.group, ME, *pair, wanted, once=("k", b"", 1_000))


OUTCOMES: dict[str, Callable[[Lab, Pair], Call[Any]]] = {
    "ack": lambda lab, pair: scripts.ack(lab.keys, lab.group, ME, [pair]),
    "ack and delete": lambda lab, pair: scripts.ack(
        lab.keys, lab.group, ME, [pair], delete="acked" if lab.server.key == "redis8" else "sole"
    ),
    "done": lambda lab, pair: scripts.done(lab.keys, lab.group, ME, [(*pair, "k", b"r")], 60_000),
    "effects": _effects,
    "retry": lambda lab, pair: scripts.park(lab.keys, lab.group, ME, 0, "waiting", [(*pair, 1)]),
    "bury": lambda lab, pair: scripts.bury(lab.keys, lab.group, ME, *pair, extra={"_why": "x" * 1_000}),
    "renew": lambda lab, pair: scripts.renew(lab.keys, lab.group, ME, [pair]),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_works_with_memory_full(lab: Lab, name: str) -> None:
    """Also as the first of its kind, when the waiting group, the due set and the dead letters are not there yet."""
    (pair,) = lab.held()
    with lab.memory_full():
        with pytest.raises(ServerRefused):
            lab.raw("XADD", lab.keys.stream, "*", "f", "v")
        answer = lab.call(OUTCOMES[name](lab, pair))
    kind = answer[0].kind if isinstance(answer, list) else answer.kind
    assert kind == "ok"
    assert len(lab.pending()) == (name == "renew")


def test_taking_works_with_memory_full(lab: Lab) -> None:
    lab.held(4, owner="dead")
    with lab.memory_full():
        lab.age([lab.ids()[0]], 60_000, "dead")
        assert len(lab.call(scripts.rescue(lab.keys, lab.group, ME, 30_000)).taken) == 1
        assert len(lab.call(scripts.mine(lab.keys, lab.group, ME, 10, [])).taken) == 1
        assert lab.call(scripts.adopt(lab.keys, lab.group, "dead", [])).seen == 3
        time.sleep(0.002)
        assert len(lab.call(scripts.due(lab.keys, lab.group, ME, 10)).taken) == 3
        assert lab.call(scripts.renew_owner(lab.keys, lab.group, ME, 0)).renewed == 4


def test_due_recreates_a_vanished_waiting_group_with_memory_full(lab: Lab) -> None:
    (pair,) = lab.held()
    lab.call(scripts.park(lab.keys, lab.group, ME, 0, "waiting", [(*pair, 1)]))
    lab.raw("XGROUP", "DESTROY", lab.keys.stream, lab.waiting)
    time.sleep(0.002)
    with lab.memory_full():
        found = lab.call(scripts.due(lab.keys, lab.group, ME, 10))
    assert found.regrouped
    assert len(found.taken) == 1


def test_running_alone_works_with_memory_full(lab: Lab) -> None:
    (pair,) = lab.held()
    with lab.memory_full():
        lab.call(scripts.park(lab.keys, lab.group, ME, 0, "crashed", [(*pair, 1)], alone=True))
        time.sleep(0.002)
        assert lab.call(scripts.turn(lab.keys, lab.group, 1_000))
        assert len(lab.call(scripts.due(lab.keys, lab.group, ME, 1, alone=True, early_ms=1_000)).taken) == 1


@pytest.mark.parametrize("trimmed", [False, True], ids=["in place", "as a copy"])
def test_replay_works_with_memory_full(lab: Lab, trimmed: bool) -> None:
    (pair,) = lab.held()
    letter = lab.call(scripts.bury(lab.keys, lab.group, ME, *pair, extra={})).id
    if trimmed:
        lab.trim(pair[0])
    with lab.memory_full():
        answer = lab.call(scripts.replay(lab.keys, lab.group, pair[0].decode(), letter))
    assert answer.kind == ("copy" if trimmed else "same")


def test_a_worker_can_start_with_memory_full(lab: Lab) -> None:
    lab.make_group()
    with lab.memory_full():
        assert lab.call(scripts.join(lab.keys, lab.group, ME, "abc", 1_000, "{}", True)).ok
        assert lab.call(scripts.stay(lab.keys, lab.group, ME, "abc")).mine
        assert lab.call(commands.read(lab.keys, lab.group, ME, 1)) == []
        assert lab.call(scripts.pull_back(lab.keys, lab.group)).kind == "even"
        lab.call(scripts.keep_floor(lab.keys, lab.group))
    lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, "99999999999999-0")
    with lab.memory_full():
        assert lab.call(scripts.pull_back(lab.keys, lab.group)).kind == "pulled"
    lab.raw("XGROUP", "DESTROY", lab.keys.stream, lab.group)
    with lab.memory_full():
        assert lab.call(scripts.regroup(lab.keys, lab.group)).kind == "made"
        assert lab.call(commands.read(lab.keys, lab.group, ME, 1)) == []
        assert lab.call(scripts.remove_owner(lab.keys, lab.group, ME)).kind == "removed"
