"""What happens to messages when a worker dies, and when a live one is slow.

Two workers of a peer. In both, a trickle of quick messages goes on, because some peers look for abandoned messages only
when something arrives.

    recovery   the worker that holds messages is killed with all its processes: how long until they start on the other
    live       four messages that take longer than the peer waits for a sign of life, handled by live workers: how often
               each was started. Async; sync; blocking the event loop; and with the holder paused (SIGSTOP) for longer
               than that, where a second start is what recovery means, if the peer has any.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from bench.arena import Arena
from bench.peers.roster import Peer
from bench.peers.stage import Stage, stage
from bench.report import Run

MESSAGES: Final = 4
HANDLER_S: Final = 5.0  # of what is held when its worker is killed
TRICKLE_S: Final = 0.2
LIVE: Final = {"async": "slow", "sync": "plain", "blocked": "block", "sigstop": ""}


def _count(peer: Peer) -> int:
    return min(MESSAGES, 2 * peer.slots)


# ── recovery ──


def recovery(peer: Peer, arena: Arena, *, fastest: bool, wait_s: float) -> Run:
    """``late_s`` of the last message that the killed worker held; None if it did not start within ``wait_s``."""
    kind = peer.kinds[0]
    with stage(peer, arena, ["tick", kind], fastest=fastest) as on:
        on.both_ready()
        owners = on.started(on.enqueuer.add(kind, _count(peer), HANDLER_S))
        victim = owners[min(owners, key=int)]
        held = {id_ for id_, owner in owners.items() if owner == victim}
        killed_at = time.monotonic()
        on.kill(victim)
        _trickle(on, wait_s, lambda: held <= _elsewhere(on, victim).keys())
        late = {id_: at - killed_at for id_, at in _elsewhere(on, victim).items() if id_ in held}
    return {"held": len(held), "came_back": len(late), "late_s": max(late.values()) if late.keys() == held else None}


def _elsewhere(on: Stage, victim: str) -> dict[str, float]:
    """When each message was first started by another worker than this one."""
    found: dict[str, float] = {}
    for event in on.history.starts():
        if event.owner != victim:
            found.setdefault(event.id, event.at)
    return found


def _trickle(on: Stage, timeout_s: float, enough: Callable[[], bool]) -> bool:
    """Send a quick message now and then until it is enough; False if it was not in time."""
    until = time.monotonic() + timeout_s
    while not enough():
        if time.monotonic() > until:
            return False
        on.enqueuer.add("tick")
        time.sleep(TRICKLE_S)
    return True


# ── live handlers ──


def live(peer: Peer, arena: Arena, way: str) -> Run | None:
    """How often live slow handlers were started, at the fastest settings; None if the peer has no such handlers."""
    kind = LIVE[way] or peer.kinds[0]
    if kind not in peer.kinds:
        return None
    long_s = peer.idle_s + min(2 * peer.idle_s, 10.0)
    handler_s = 2 * long_s if way == "sigstop" else long_s
    with stage(peer, arena, ["tick", kind], fastest=True) as on:
        on.both_ready()
        ids = on.enqueuer.add(kind, _count(peer), handler_s)
        if way == "sigstop":
            victim = on.started(ids)[ids[0]]
            on.pause(victim)
            _trickle(on, long_s, lambda: False)
            on.resume(victim)
        quiet = _quiet(on, ids, settle_s=min(1.5 * peer.idle_s + 1, 15.0))
        _trickle(on, len(ids) * handler_s + 30.0, quiet)
        return _tally(on, ids)


def _quiet(on: Stage, ids: list[str], settle_s: float) -> Callable[[], bool]:
    """Whether each has been started, nothing runs, and nothing has begun for so long."""

    def asked() -> bool:
        events = [event for event in on.history.events() if event.id in ids and event.op != "tick"]
        starts = Counter(event.id for event in events if event.op == "start")
        over = sum(event.op in ("end", "cut") for event in events)
        return len(starts) == len(ids) and over >= starts.total() and time.monotonic() - events[-1].at > settle_s

    return asked


def _tally(on: Stage, ids: list[str]) -> Run:
    def by_id(op: str) -> Counter[str]:
        return Counter(event.id for event in on.history.events(op) if event.id in ids)

    starts, ends = by_id("start"), by_id("end")
    return {
        "messages": len(ids),
        "executions": starts.total(),
        "most": max(starts.values(), default=0),
        "ended": len(ends),  # messages of which a handler came to its end
    }
