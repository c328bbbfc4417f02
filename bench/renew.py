"""1,000 and 10,000 deliveries in the hands of one live worker: what keeping their leases costs the server.

The server's slow log says how long each script took, and its statistics what all of them took; the share is that over
the time watched. The log leaves out what is quicker than ``WORTH_A_LOOK_US``: each of the thousands of commands inside
the scripts would be an entry, and freeing 100,000 entries costs the server 4 to 14 ms in whatever it does next.
All this is wall time: where the server lost its core half-way, the loss is in it. So the time is watched in parts, and
the longest script is the median over the parts; ``longest_seen_ms`` is the longest of all. Beside it what the
supervising parent sends: one look where nothing has to be renewed, and the longest script where everything has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from statistics import median
from typing import Any, Final

from bench.arena import Arena, Calls
from bench.report import Criterion, Report, Run, highest
from headrace import App
from headrace.redis import scripts
from headrace.redis.calls import load
from headrace.redis.connect import Server
from headrace.worker import Worker

IN_FLIGHT: Final = (1_000, 10_000)
LEASE_S: Final = 10.0
PARTS: Final = 5  # of half a lease each, so that every delivery is renewed in every part
GROUP: Final = "billing"
CHUNK: Final = 200
WORTH_A_LOOK_US: Final = 50

CRITERIA: Final = (
    *(Criterion("longest_script_ms", "≤", 5, {"in_flight": number}, " ms") for number in IN_FLIGHT),
    Criterion("server_percent", "≤", 2, {"in_flight": 1_000}, " %"),
)

SHOWN: Final = (
    *("version", "in_flight", "longest_script_ms", "longest_script"),
    *("server_percent", "renewals_per_s", "by_owner_longest_ms"),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "renew",
        f"1,000 and 10,000 in flight at a lease of {LEASE_S:g} s: what renewing costs the server",
        "longest script ≤ 5 ms; ≤ 2 % of the server for 1,000",
        runs,
        CRITERIA,
        SHOWN,
        highest("longest_script_ms"),
        lambda runs: "; ".join(
            f"{run['in_flight']:,}: {run['longest_script_ms']:.1f} ms, {run['server_percent']:.2f} %" for run in runs
        ),
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    lease_s = LEASE_S if scale >= 1 else 1.0
    runs = []
    for in_flight in IN_FLIGHT:
        found = asyncio.run(_hold(arena, in_flight, lease_s))
        say(f"{in_flight:,} in flight: longest script {found['longest_script_ms']:.2f} ms")
        runs.append({**arena.words, "in_flight": in_flight, "lease_s": lease_s, **found})
    return runs


async def _hold(arena: Arena, in_flight: int, lease_s: float) -> Run:
    """Let one worker hold so many deliveries, and watch the server meanwhile."""
    app, stream = App(arena.url, grace=0.1), f"orders-{in_flight}"
    arena.fill(stream, in_flight)
    started, everything, end = 0, asyncio.Event(), asyncio.Event()

    @app.stream(stream).handler(group=GROUP, concurrency=in_flight, lease=lease_s)
    async def hold(payload: dict[str, Any]) -> None:
        nonlocal started
        started += 1
        if started == in_flight:
            everything.set()
        await end.wait()

    async with app.worker() as worker:
        await everything.wait()
        await asyncio.sleep(lease_s / 3)  # until renewals come as they will for ever
        parts = [await _watch(arena, lease_s / 2) for _ in range(PARTS)]
        found = {**_middle(parts), **_by_owner(arena, worker)}
        end.set()
    await app.close()
    return found


async def _watch(arena: Arena, seconds: float) -> Run:
    log = ScriptLog(arena)
    log.begin()
    await asyncio.sleep(seconds)
    return log.figures()


def _middle(parts: list[Run]) -> Run:
    """One run out of several parts: that with the median of the longest scripts, and the medians of the rest."""
    ordered = sorted(parts, key=lambda part: float(part["longest_script_ms"]))
    numbers = [key for key, value in ordered[0].items() if isinstance(value, float)]
    medians = {key: median(part[key] for part in parts) for key in numbers}
    return {**ordered[len(ordered) // 2], **medians, "longest_seen_ms": ordered[-1]["longest_script_ms"]}


def _by_owner(arena: Arena, worker: Worker) -> Run:
    """What the supervising parent sends for a child that holds all this."""
    member = worker.lanes[0].member
    link, log = Server(arena.url).sync_link("bench"), ScriptLog(arena)
    try:
        log.begin()
        link.call(scripts.renew_owner(member.keys, member.group, member.owner, 3_600_000, "-", CHUNK))
        look_ms = log.longest_ms()
        log.begin()
        start = "-"
        while start:
            answer = link.call(scripts.renew_owner(member.keys, member.group, member.owner, 0, start, CHUNK))
            start = answer.start
        return {"by_owner_look_ms": round(look_ms, 3), "by_owner_longest_ms": round(log.longest_ms(), 3)}
    finally:
        link.close()


@dataclass(slots=True)
class ScriptLog:
    """The scripts that the server ran since begin()."""

    arena: Arena
    _begun: float = 0.0
    _before: Calls = field(default_factory=lambda: Calls({}))

    def begin(self) -> None:
        client = self.arena.client
        client.config_set("slowlog-log-slower-than", WORTH_A_LOOK_US)
        client.config_set("slowlog-max-len", 1_000_000)
        client.slowlog_reset()
        self._before = self.arena.calls()
        self._begun = time.monotonic()

    def figures(self) -> Run:
        watched_us = (time.monotonic() - self._begun) * 1e6
        in_scripts_us = self.arena.calls().usec_since(self._before, "evalsha")
        took = self._took()
        longest_us, longest = max((max(times), name) for name, times in took.items())
        renewals = took.get("renew", [])
        return {
            "longest_script_ms": round(longest_us / 1000, 3),
            "longest_script": longest,
            "longest_renew_ms": round(max(renewals, default=0) / 1000, 3),
            "renew_percent": round(sum(renewals) / watched_us * 100, 3),
            "server_percent": round(in_scripts_us / watched_us * 100, 3),
            "renewals_per_s": round(len(renewals) / watched_us * 1e6, 2),
        }

    def longest_ms(self) -> float:
        return max(map(max, self._took().values()), default=0) / 1000

    def _took(self) -> dict[str, list[int]]:
        """µs of each run that is worth a look, by the script's name."""
        names = {load(name).sha: name for name in _script_names()}
        took: dict[str, list[int]] = {}
        for entry in self.arena.client.slowlog_get(1_000_000):
            words = entry["command"].decode(errors="replace").split(" ", 2)
            if words[0].upper() == "EVALSHA":
                took.setdefault(names.get(words[1], words[1]), []).append(entry["duration"])
        return took


def _script_names() -> list[str]:
    files = resources.files("headrace.redis").joinpath("lua").iterdir()
    return [file.name.removesuffix(".lua") for file in files if file.name.endswith(".lua")]
