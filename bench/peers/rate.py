"""How fast one worker of a peer empties a full queue: messages a second, CPU, and what the server has to do for it.

The queue is filled first, then the worker starts; the clock runs from the first handler to the last, so that neither
starting up nor adding is part of it. How many messages: as many as it does in some seconds; a first small run tells.
``others_cores`` is how many cores everything else on the machine used meanwhile: on a quiet machine next to none.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from bench.arena import Arena
from bench.peers.roster import Peer
from bench.peers.stage import stage
from bench.report import Run

SLOTS: Final = 32
SECONDS: Final = 3.0
PROBE: Final = 400
LEAST: Final = 500
MOST: Final = 200_000
LIMIT_S: Final = 90.0


def probe(peer: Peer, arena: Arena, kind: str, seconds: float) -> int:
    """How many messages keep it busy for about so long. A quick peer tells only when it has enough to do."""
    tried, wanted = 0, PROBE
    while wanted > 4 * tried:
        tried = wanted
        per_s = measure(peer, arena, kind, tried)["msgs_per_s"]
        wanted = int(min(MOST, max(LEAST, per_s * seconds)))
    return wanted


def measure(peer: Peer, arena: Arena, kind: str, count: int) -> Run:
    """One run with so many messages of one kind (``empty`` or ``pause``)."""
    with stage(peer, arena, [kind], count=count, concurrency=SLOTS) as on:
        on.enqueuer.add(kind, count)
        before, reads = arena.calls(), _reads(arena)
        on.worker()
        first = on.noted("first", LIMIT_S)
        busy_s = _busy_s(arena)
        last = on.noted("last", LIMIT_S)
        busy_s = _busy_s(arena) - busy_s
        time.sleep(0.1)  # the last acknowledgements are part of what the server does
        calls, reads = arena.calls().since(before), _reads(arena) - reads
    seconds, cpu_s = last.at - first.at, last.about["cpu_s"] - first.about["cpu_s"]
    return {
        "messages": count,
        "msgs_per_s": round((count - 1) / seconds),
        "cpu_us_per_message": round(cpu_s / (count - 1) * 1e6, 1),
        "server_calls_per_message": round(calls / count, 3),
        "requests_per_message": round(reads / count, 3),
        "others_cores": round(max(0.0, busy_s - cpu_s) / seconds, 2),
    }


def _busy_s(arena: Arena) -> float:
    """CPU time that the whole machine has used, the server aside."""
    user, nice, system, _idle, _waiting, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    server = Path(f"/proc/{arena.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    ticks = sum(map(int, (user, nice, system, *interrupts))) - sum(map(int, server))
    return ticks / os.sysconf("SC_CLK_TCK")


def _reads(arena: Arena) -> int:
    """How often the server has read from a socket: the round trips, for a pipeline is read at once."""
    info: dict[str, Any] = arena.client.info("stats")
    return int(info["total_reads_processed"])
