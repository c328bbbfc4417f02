"""Leases of what has moved to another shard, while the one it came from stands still (SPEC 49)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Delivery, Room
from headrace.board import Board
from headrace.guardian import Guardian
from headrace.names import keys_of
from headrace.redis.connect import Server
from headrace.ward import Held, Ward
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until
from tests.topology.test_cluster_owned import away, move_beside

MakeApp = Callable[..., App]

pytestmark = [pytest.mark.servers(*every("redis8")), pytest.mark.timeout(120)]

LAME = 4  # streams that stay at the shard: their renewals together take longer than a lease


async def idle(room: Room[Any]) -> None:
    async for message in room:
        await room.ack(message)


async def test_what_has_moved_keeps_its_lease_while_its_old_master_stands_still(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    app = make_app(cluster)
    starts: list[str] = []
    end = asyncio.Event()

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        starts.append(delivery.owner)
        await end.wait()

    streams = cluster.names(f"{prefix}-orders", 3 * LAME + 3)
    rooms = cluster.names(f"{prefix}-rooms", 3 * LAME + 3)
    orders, owned, beside = streams[3 * LAME], rooms[3 * LAME], streams[1]
    for stream in (*streams[: 3 * LAME : 3], orders):
        app.stream(stream).handler(group="billing", lease="1s")(bill)
    for stream in (*rooms[: 3 * LAME : 3], owned):
        app.assignments(stream, lease="1s").owner()(idle)
    async with app.worker() as worker, app.worker():
        (post,) = (holding.post for holding in worker.holdings if holding.member.stream == owned)
        await app.stream(orders).add({"n": 1})
        await wait_until(lambda: starts, 10, what="the order is held")
        for name in (orders, owned):
            await asyncio.to_thread(move_beside, cluster, name, beside)
        await asyncio.sleep(1)  # a lease: each renewal has found its new master
        ages = []
        async with away(cluster, streams[0], "hung") as since:
            while time.monotonic() < since + 3:
                ages.append(time.monotonic() - post.beat_at)
                await asyncio.sleep(0.01)
        end.set()
        await asyncio.to_thread(move_beside, cluster, orders, streams[0])
        await asyncio.to_thread(move_beside, cluster, owned, streams[0])
    assert len(starts) == 1, starts
    assert max(ages) < 0.8


async def test_leases_that_come_to_one_master_are_kept_over_one_connection_and_part_again(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    app = make_app(cluster)
    mover, host = cluster.names(f"{prefix}-orders", 2)
    room_mover, room_host = cluster.names(f"{prefix}-rooms", 2)
    for stream in (mover, host):
        app.stream(stream).handler(group="billing", lease="1s")(lambda order: None)
    for stream in (room_mover, room_host):
        app.assignments(stream, lease="1s").owner()(idle)
    async with app.worker() as worker:

        def lifelines_at(stream: str) -> int:
            clients = cluster.member_of(stream).sync().client_list()
            return [row["name"] for row in clients].count(f"headrace:{worker.owner}:lifeline")

        def apart() -> bool:
            return lifelines_at(mover) == lifelines_at(host) == 1 and len(worker._keepers.heartbeats) == 2

        def together() -> bool:
            return lifelines_at(host) == 1 and len(worker._keepers.heartbeats) == 1

        await wait_until(apart, 10, what="one of each for a master")
        for name, beside in ((mover, host), (room_mover, room_host)):
            await asyncio.to_thread(move_beside, cluster, name, beside)
        await wait_until(together, 10, what="one of each for both streams of a master")
        (home,) = cluster.names(f"{prefix}-home", 1)
        for name in (mover, room_mover):
            await asyncio.to_thread(move_beside, cluster, name, home)
        await wait_until(apart, 10, what="one of each for each master")


async def test_a_parent_renews_for_its_children_at_other_shards_while_one_stands_still(
    cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    streams = cluster.names(f"{prefix}-orders", 3 * LAME)
    sound = streams[1]
    held = [Held(keys_of(stream), "billing", 1_000, 60_000, 5) for stream in (*streams[::3], sound)]
    client = cluster.sync()
    for stream in (*streams[::3], sound):
        client.xgroup_create(stream, "billing", "0", mkstream=True)
        client.xadd(stream, {"n": 1})
        client.xreadgroup("billing", "child", {stream: ">"})
    with (tmp_path / "board").open("w+b") as file:
        board = Board.create(file.fileno(), marks=1)
        guardian = Guardian(Server(cluster.url))
        guardian.watch(Ward(os.getpid(), "child", held, board))
        guardian.start()
        master = cluster.member_of(sound).sync()

        async def longest_idle_ms(until: float) -> int:
            longest = 0
            while (now := time.monotonic()) < until:
                board.stamp_loop(now)
                board.stamp_thread(now)
                (row,) = master.xpending_range(sound, "billing", "-", "+", 1)
                longest = max(longest, row["time_since_delivered"])
                await asyncio.sleep(0.02)
            return longest

        try:
            await longest_idle_ms(time.monotonic() + 1)
            async with away(cluster, streams[0], "hung") as since:
                longest = await longest_idle_ms(since + 3)
        finally:
            guardian.stop()
    assert longest < 900
