"""Three masters with a replica each: beside one server, with a master killed under load, with a slot moved under load.

One process adds to three streams, one at each master, at a steady pace, and handles them. When a master is killed, the
gap is the longest time in which nothing of its stream was handled, and the failover the time until its replica says it
is the master. The other shards' rate while one is away is compared with theirs just before. Lost is what was confirmed
(by a replica before the kill, by the new master afterwards) and never handled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, highest
from headrace import App, Delivery, HeadraceError
from headrace.producer import Durability
from headrace.redis.topology import slot_of
from tests.support.topologies import Cluster, Member, start_cluster
from tests.support.wait import wait_until

GROUP: Final = "billing"
MESSAGES: Final = 30_000
PACE_PER_S: Final = 200  # adds a second to each stream, well below what one process can do
BEFORE_S: Final = 3.0
AFTER_S: Final = 3.0
LEASE_S: Final = 2.0

CRITERIA: Final = (
    Criterion("lost", "=", 0),
    Criterion("gap_past_failover_ms", "≤", 2_000, {}, " ms"),
    Criterion("other_shards_rate_ratio", "≥", 0.8),
    Criterion("move_lost", "=", 0),
    Criterion("move_twice", "=", 0),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "cluster",
        "3 masters: a master killed and a slot moved under load",
        "lost 0; gap ≤ failover + 2 s; other shards ≥ 0.8 of their rate",
        runs,
        CRITERIA,
        ("version", "msgs_per_s", "ratio", "lost", "failover_ms", "gap_ms", "other_shards_rate_ratio", "move_pause_ms"),
        highest("gap_ms"),
        _summary,
    )


def _summary(runs: Sequence[Run]) -> str:
    (run,) = runs
    gap = f"gap {run['gap_ms']:,} ms (failover {run['failover_ms']:,} ms)"
    return f"lost {run['lost']}; {gap}; other shards {run['other_shards_rate_ratio']:.2f}"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    messages = max(600, int(MESSAGES * scale))
    cluster = start_cluster("valkey9" if arena.key == "embedded" else arena.key)
    try:
        alone = asyncio.run(_throughput(arena.url, cluster.names("alone", 3), messages))
        spread = asyncio.run(_throughput(cluster.url, cluster.names("spread", 3), messages))
        say(f"{spread:,.0f} messages/s on three masters, {alone:,.0f} on one server")
        moved = asyncio.run(_move(cluster))
        say(f"a slot moved in {moved['move_ms']} ms, longest pause {moved['move_pause_ms']} ms")
        killed = asyncio.run(_kill(cluster))
        say(f"a master killed: failover {killed['failover_ms']} ms, gap {killed['gap_ms']} ms")
    finally:
        cluster.stop()
    rates = {"msgs_per_s": round(spread), "one_server_msgs_per_s": round(alone), "ratio": round(spread / alone, 3)}
    return [{**arena.words, "messages": messages, **rates, **killed, **moved}]


# ── how fast ─────────────────────────────────────────────────────────────────────────────────────────


async def _throughput(url: str, names: list[str], messages: int) -> float:
    """Add to all streams and handle everything; messages a second from the first add to the last ack."""
    app = App(url)
    for name in names:
        app.stream(name).handler(group=GROUP, concurrency=100)(_nothing)
    begun = time.perf_counter()
    await asyncio.gather(*(app.stream(name).add_many([{"n": n} for n in range(messages // 3)]) for name in names))
    async with app.worker() as worker:
        await worker.drained(every_s=0.01)
        took = time.perf_counter() - begun
    await app.close()
    return messages / 3 * len(names) / took


async def _nothing(order: Any) -> None:
    pass


# ── under load ───────────────────────────────────────────────────────────────────────────────────────


class Load:
    """A steady stream of adds, and every start of their handler."""

    def __init__(self, url: str, names: list[str]) -> None:
        self.app = App(url, grace="2s")
        self.names = names
        self.durability: Durability = "received"
        self.confirmed: dict[str, set[str]] = {name: set() for name in names}
        self.starts: dict[str, list[tuple[float, str]]] = {name: [] for name in names}
        self._on = True
        for name in names:
            self.app.stream(name).handler(group=GROUP, lease=LEASE_S, concurrency=50)(self._note)

    async def _note(self, order: Any, delivery: Delivery[Any]) -> None:
        self.starts[delivery.stream].append((time.monotonic(), order["key"]))

    async def produce(self, name: str) -> None:
        """Not the next one when the last is done, but at its time: a slow answer does not thin the load out."""
        stream, number, begun, tasks = self.app.stream(name), 0, time.monotonic(), set[asyncio.Task[None]]()
        while self._on:
            number += 1
            task = asyncio.ensure_future(self._add(stream, f"{name}:{number}"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(max(0.0, begun + number / PACE_PER_S - time.monotonic()))
        await asyncio.gather(*tasks)

    async def _add(self, stream: Any, key: str) -> None:
        with suppress(HeadraceError):  # unknown, not failed: nothing is claimed about it
            await stream.add({"key": key}, key=key, durability=self.durability)
            self.confirmed[stream.name].add(key)

    async def end(self, producing: Sequence[asyncio.Future[None]]) -> int:
        """No more adds; wait until all is handled. Answers how many confirmed ones never were."""
        self._on = False
        await asyncio.gather(*producing)
        with suppress(AssertionError):
            await wait_until(lambda: not self.lost(), 15)
        return self.lost()

    def lost(self) -> int:
        return sum(len(self.confirmed[name] - {key for _, key in self.starts[name]}) for name in self.names)

    def longest_pause_ms(self, name: str, since: float) -> int:
        times = [since, *(at for at, _ in self.starts[name] if at > since)]
        return round(max((later - earlier for earlier, later in pairwise(times)), default=0.0) * 1000)

    def rate(self, names: Sequence[str], since: float, until: float) -> float:
        found = sum(since <= at < until for name in names for at, _ in self.starts[name])
        return found / (until - since)


async def _kill(cluster: Cluster) -> Run:
    load = Load(cluster.url, cluster.names("kill", 3))
    victim_of, *others = load.names
    load.durability = "replicated"
    async with load.app.worker():
        producing = [asyncio.ensure_future(load.produce(name)) for name in load.names]
        await asyncio.sleep(BEFORE_S)
        victim = cluster.member_of(victim_of)
        load.durability = "received"  # nobody is left to confirm more at that shard
        await asyncio.sleep(0.2)
        killed_at = time.monotonic()
        victim.kill()
        await asyncio.to_thread(cluster.until, lambda: _taken_over(cluster, victim_of, victim), "a failover")
        failover_s = time.monotonic() - killed_at
        await wait_until(lambda: load.starts[victim_of][-1][0] > killed_at + failover_s, 30, what="work goes on")
        resumed_at = time.monotonic()
        await asyncio.sleep(AFTER_S)
        lost = await load.end(producing)
    await load.app.close()
    gap = load.longest_pause_ms(victim_of, killed_at)
    before = load.rate(others, killed_at - BEFORE_S + 1, killed_at)
    during = load.rate(others, killed_at, resumed_at)
    return {
        "lost": lost,
        "failover_ms": round(failover_s * 1000),
        "gap_ms": gap,
        "gap_past_failover_ms": max(0, gap - round(failover_s * 1000)),
        "other_shards_rate_ratio": round(during / before, 3),
    }


def _taken_over(cluster: Cluster, name: str, victim: Member) -> bool:
    with suppress(LookupError):
        return cluster.member_of(name) is not victim
    return False


async def _move(cluster: Cluster) -> Run:
    load = Load(cluster.url, cluster.names("move", 1))
    (name,) = load.names
    async with load.app.worker():
        producing = [asyncio.ensure_future(load.produce(name))]
        await asyncio.sleep(1.0)
        source = cluster.member_of(name)
        target = next(
            one for one in cluster.members if one is not source and one.info("replication")["role"] == "master"
        )
        moved_at = time.monotonic()
        await asyncio.to_thread(_migrate, cluster, name, source, target)
        took = time.monotonic() - moved_at
        await asyncio.sleep(AFTER_S)
        lost = await load.end(producing)
    await load.app.close()
    keys = [key for _, key in load.starts[name]]
    return {
        "move_ms": round(took * 1000),
        "move_pause_ms": load.longest_pause_ms(name, moved_at),
        "move_lost": lost,
        "move_twice": len(keys) - len(set(keys)),
    }


def _migrate(cluster: Cluster, name: str, source: Member, target: Member) -> None:
    """Key by key, as redis-cli --cluster reshard does it: every server knows that way."""
    slot = slot_of(name)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for member in (target, source):
        member.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(target))
