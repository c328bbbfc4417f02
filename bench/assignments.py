"""Streams of streams: 2,000 streams in 10 owner processes, 2 of them killed; and 10,000 assignments in one process.

takeover   how long after the kill each stream of the killed has its next owner (takeover_p99_ms, and all_owned_s
           until the last one), with messages flowing into every stream; then whether any stream's messages came
           out of order or were skipped (order_violations)
hold       what keeping 10,000 assignments costs one idle process: its CPU time over the time watched, reads and all
           (renew_cpu_percent), and that of the server
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, highest, quantile
from headrace.names import keys_of
from headrace.redis import ownership
from headrace.redis.connect import Server
from tests.support.owners import Owners
from tests.support.wait import wait_until_sync

STREAMS: Final = 2_000
OWNERS: Final = 10
KILLED: Final = 2
HELD: Final = 10_000
LEASE_S: Final = 2.0
WATCHED_S: Final = 10.0
MESSAGES: Final = 6  # of each stream: before, while and after owners are killed

CRITERIA: Final = (
    Criterion("all_owned_s", "≤", LEASE_S + 5, {"kind": "takeover"}, " s"),
    Criterion("order_violations", "=", 0, {"kind": "takeover"}),
    Criterion("renew_cpu_percent", "<", 5, {"kind": "hold"}, " %"),
)

SHOWN: Final = (
    *("version", "kind", "streams", "takeover_p99_ms", "all_owned_s", "order_violations"),
    *("renew_cpu_percent", "server_cpu_percent"),
)

HOLD: Final = """
import asyncio, json, os, sys, time
from headrace import App

url, stream, watched_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
app = App(url)
entered = 0

@app.assignments(stream).owner(lease=float(sys.argv[4]))
async def own(room):
    global entered
    entered += 1
    async for message in room:
        await room.ack(message)

async def main():
    async with app.worker():
        while entered < int(sys.argv[5]):
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        begun, cpu = time.monotonic(), time.process_time()
        print("begin", flush=True)
        await asyncio.sleep(watched_s)
        print(json.dumps({"cpu_s": time.process_time() - cpu, "s": time.monotonic() - begun}), flush=True)
        sys.stdin.readline()
        os._exit(0)

asyncio.run(main())
"""


def report(runs: list[Run]) -> Report:
    return Report(
        "assignments",
        f"{STREAMS:,} streams, {OWNERS} owner processes, {KILLED} killed, lease {LEASE_S:g} s; "
        f"{HELD:,} assignments in one process",
        f"all owned within {LEASE_S + 5:g} s, no message out of order; < 5 % of a core",
        runs,
        CRITERIA,
        SHOWN,
        highest("order_violations", kind="takeover"),
        _summary,
    )


def _summary(runs: Any) -> str:
    words = []
    for run in runs:
        if run["kind"] == "takeover":
            words.append(
                f"p99 {run['takeover_p99_ms']:,.0f} ms, all in {run['all_owned_s']:.1f} s, "
                f"{run['order_violations']} out of order"
            )
        else:
            words.append(f"{run['renew_cpu_percent']:.1f} % of a core")
    return "; ".join(words)


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    lease_s = LEASE_S if scale >= 1 else 1.0
    streams, owners = max(20, int(STREAMS * scale)), OWNERS if scale >= 1 else 3
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        found = _takeover(arena, Path(folder), streams, owners, KILLED if scale >= 1 else 1, lease_s)
    say(f"{streams:,} streams: all owned {found['all_owned_s']:.2f} s after the kill")
    runs = [{**arena.words, "kind": "takeover", "streams": streams, "lease_s": lease_s, **found}]
    held = max(20, int(HELD * scale))
    hold = _hold(arena, held, lease_s, WATCHED_S if scale >= 1 else 1.0)
    say(f"{held:,} held: {hold['renew_cpu_percent']:.2f} % of a core")
    # One object speaks for the bench: every run has every key.
    runs.append({**arena.words, "kind": "hold", "streams": held, "lease_s": lease_s, **hold})
    runs[0] = {**runs[0], "renew_cpu_percent": hold["renew_cpu_percent"]}
    runs[1] = {**runs[1], "takeover_p99_ms": found["takeover_p99_ms"], "order_violations": found["order_violations"]}
    return runs


# ── owners killed ──


def _takeover(arena: Arena, folder: Path, streams: int, count: int, killed: int, lease_s: float) -> Run:
    arena.client.flushall()
    owners = Owners(folder, _Reached(arena), "rooms", owner={"lease": lease_s})  # type: ignore[arg-type]
    try:
        names = owners.announce(streams)
        processes = [owners.start(ready=False) for _ in range(count)]
        living = [process.ready(timeout=60)[0] for process in processes]
        wait_until_sync(lambda: _owned(owners, living) == streams, 60, what="all streams owned")
        for name in names:
            owners.add(name, MESSAGES // 3)
        owners.until_acked(streams * (MESSAGES // 3), 120)
        for process in processes[:killed]:
            process.kill()
        killed_at = time.monotonic()
        for name in names:
            owners.add(name, MESSAGES // 3, first=MESSAGES // 3)
        heirs = living[killed:]
        wait_until_sync(lambda: _owned(owners, heirs) == streams, 60, what="all streams owned again")
        for name in names:
            owners.add(name, MESSAGES // 3, first=2 * (MESSAGES // 3))
        owners.until_acked(streams * MESSAGES, 120)
        entered = [event.at - killed_at for event in owners.history.events("enter") if event.at > killed_at]
        return {
            "owners": count,
            "killed": killed,
            "taken_over": len(entered),
            "takeover_p50_ms": round(quantile(entered, 0.5) * 1000, 1),
            "takeover_p99_ms": round(quantile(entered, 0.99) * 1000, 1),
            "all_owned_s": round(max(entered, default=0.0), 3),
            "order_violations": len(owners.violations(dict.fromkeys(names, MESSAGES))),
        }
    finally:
        owners.end()


class _Reached:
    """An arena as the tests' servers look."""

    def __init__(self, arena: Arena) -> None:
        self.url = arena.url
        self._arena = arena

    def sync(self) -> Any:
        return self._arena.client


def _owned(owners: Owners, by: list[str]) -> int:
    held = owners.holders()
    return sum(held.get(owner, 0) for owner in by)


# ── many held ──


def _hold(arena: Arena, count: int, lease_s: float, watched_s: float) -> Run:
    arena.client.flushall()
    link = Server(arena.url).sync_link("bench")
    calls = [ownership.announce(keys_of("rooms"), f"room-{number}", b"{}") for number in range(count)]
    for at in range(0, count, 500):
        link.pipe(calls[at : at + 500])
    link.close()
    words = [sys.executable, "-c", HOLD, arena.url, "rooms", str(watched_s), str(lease_s), str(count)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        begun, server_cpu = time.monotonic(), _cpu_s(arena.pid)
        told = json.loads(process.stdout.readline())
        server_cpu = (_cpu_s(arena.pid) - server_cpu) / (time.monotonic() - begun)
        connections = len([row for row in arena.client.client_list() if ":reel" in str(row.get("name", ""))])
        process.stdin.write("end\n")
    return {
        "renew_cpu_percent": round(told["cpu_s"] / told["s"] * 100, 2),
        "server_cpu_percent": round(server_cpu * 100, 2),
        "blocking_reads": connections,
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
