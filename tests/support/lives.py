"""Whole lives of messages, one for each of the roles (SPEC 52): whoever has the rights for these has enough."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace import App, Bury, Delivery, Effect, PartitionedStream, Release, Room
from headrace.goclient import Added, Disowned, GoClient
from headrace.names import partition_assignments
from headrace.redis import scripts
from tests.support.looking import fill, orphan, pending, waiting
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted


async def produce(app: App, stream: str) -> None:
    """Everything a producer does."""
    orders = app.stream(stream)
    await orders.add({"n": 0})
    assert (await orders.add({"n": 1}, key="order-1", headers={"tenant": "a"})).first
    assert not (await orders.add({"n": 1}, key="order-1")).first
    await orders.add_many([{"n": 2}, {"n": 3}], keys=["order-2", "order-3"])
    await asyncio.to_thread(orders.add_sync, {"n": 4})


async def _bill(order: Any, delivery: Delivery[Any]) -> None:
    if delivery.attempt == 1:
        if order["n"] == 3:
            raise RuntimeError("once more")
        if order["n"] == 4 and not delivery.level:
            raise Release
    if order["n"] == 5:
        raise Bury("never")
    await asyncio.sleep(0.3)  # a renewal or two


async def _paid(order: Any, delivery: Delivery[Any]) -> None:
    key = f"{{{delivery.stream}}}:total"
    effects = [
        Effect.xadd(key + ":log", {"n": 1}),
        Effect.set(key + ":last", 1),
        Effect.hset(key + ":of", {"a": 1}),
        Effect.hincrby(key + ":sum", "a", 1),
        Effect.zadd(key + ":rank", {"a": 1}),
    ]
    await delivery.ack(effects=effects, result="done")


async def _nothing(order: Any) -> None:
    pass


async def work(server: Server, app: App, stream: str) -> None:
    """Everything a worker does: read, renew, ack, retry, release, bury, rescue, effects, markers, deleting, leaving."""
    for name in (stream, f"{stream}-once", f"{stream}-deleted"):
        fill(server, name, 6)
        orphan(server, name, GROUP, 2, idle_ms=60_000)

    app.stream(stream).handler(group=GROUP, lease="400ms", backoff="100ms")(_bill)
    app.stream(f"{stream}-once").handler(group=GROUP, lease="400ms", once="1h")(_paid)
    app.stream(f"{stream}-deleted").handler(group=GROUP, lease="400ms", delete_on_ack=True)(_nothing)
    async with app.worker() as worker:
        failed = asyncio.ensure_future(worker.wait())
        await wait_until(
            lambda: failed.done() or counted(app, "handled_total", outcome="ack") == 17, 10, what="17 acks"
        )
        failed.cancel()
        if failed.done() and not failed.cancelled():
            return  # leaving the worker raises what failed it
        for lane in worker.lanes:
            await lane.janitor.round()
        await worker.lanes[0].groups.again()
        worker.lanes[0].reader._mistrust()
        await wait_until(lambda: worker.lanes[0].reader.blocked)
    assert pending(server, stream, GROUP) == {} == waiting(server, stream, GROUP)
    assert server.sync().exists(f"{{{stream}-once}}:total:sum") == 1
    assert server.sync().xlen(f"{stream}-deleted") == 0


async def operate(server: Server, app: App, stream: str) -> None:
    """Everything an operator does with dead letters and parked messages, and the looks around."""
    orders = app.stream(stream)
    letters = orders.dead_letters
    assert [letter.reason for letter in await letters.listed(group=GROUP)] == ["never"]
    (letter,) = await letters.listed()
    assert await letters.show(letter.id) == letter
    assert await letters.count() == 1
    (replayed,) = await letters.replay(letter.id)
    assert replayed.kind == "same"
    assert await orders.backlog(GROUP) == 1
    assert (await app.link.call(scripts.levels(orders.keys, GROUP))).waiting == 1
    assert await letters.purge() == 0


async def own(server: Server, app: App, stream: str) -> None:
    """Everything an owner does: announce, take, read, ack, inherit, fail, hand back, finish, look around."""
    rooms = app.assignments(stream, lease="400ms")
    names = [f"{stream}-room-{number}" for number in range(3)]
    for name in names:
        await rooms.announce(name, {"of": name})
    orphan(server, stream, "owners", 1, idle_ms=60_000)
    server.sync().xadd(stream, {"no": "name"})
    failed: list[str] = []

    @rooms.owner(backoff="50ms")
    async def handle(room: Room[Any]) -> None:
        async for message in room:
            if message.payload["n"] == 0 and room.name not in failed:
                failed.append(room.name)
                raise RuntimeError("once more")
            await room.ack(message)
            if message.payload["n"] == 2:
                await room.finish(delete=room.name != names[0])

    async with app.worker() as worker:
        for name in names:
            server.sync().xadd(name, {"payload": '{"n": 0}'})
        await wait_until(lambda: len(failed) == 3 and counted(app, "acked_total") >= 3, 10, what="three acks")
        assert len(await rooms.listed()) == 3
        for name in names:
            server.sync().xadd(name, {"payload": '{"n": 2}'})
        await wait_until(lambda: not worker.holdings[0].tenures, 10, what="all finished")
    async with rooms.events():
        pass
    assert await rooms.listed() == []
    assert server.sync().exists(*names) == 1


async def produce_parts(app: App, stream: str) -> None:
    """Everything a producer of a partitioned stream does."""
    orders = app.stream(stream, partitions=3)
    await orders.add({"n": 0})
    assert (await orders.add({"n": 1}, key="order-1", partition_key="c")).first
    assert not (await orders.add({"n": 1}, key="order-1", partition_key="c")).first
    await orders.add_many([{"n": 2}, {"n": 3}], keys=["order-2", "order-3"])
    await asyncio.to_thread(orders.add_sync, {"n": 4})


def _filled(server: Server, app: App, stream: str) -> PartitionedStream[Any]:
    """Three partitions with n = 0 to 5 in each."""
    orders = app.stream(stream, partitions=3)
    for name in orders.partitions.names:
        fill(server, name, 6)
    return orders


async def work_parts(server: Server, app: App, stream: str) -> None:
    """Everything a worker does that reads all partitions at once."""
    orders = _filled(server, app, stream)
    orphan(server, orders.partitions.names[0], GROUP, 2, idle_ms=60_000)
    orders.handler(group=GROUP, lease="400ms", backoff="100ms", concurrency=9)(_bill)
    async with app.worker() as worker:
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 15, 10, what="15 acks")
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 3)
        for lane in worker.lanes:
            await lane.janitor.round()


async def own_parts(server: Server, app: App, stream: str) -> None:
    """Everything a worker with an ordered handler does: announce, own, retry, bury, hand on, inherit, begin anew."""
    orders, failed, seen = _filled(server, app, stream), set[str](), list[int]()

    @orders.handler(group=GROUP, ordered=True, lease="400ms", backoff="10ms")
    async def handle(order: dict[str, Any], delivery: Delivery[Any]) -> None:
        if order["n"] == 3 and delivery.stream not in failed:
            failed.add(delivery.stream)
            raise RuntimeError("once more")
        if order["n"] == 5:
            raise Bury("never")
        seen.append(order["n"])

    announcements = partition_assignments(stream)
    async with app.worker() as first:
        await wait_until(lambda: counted(app, "buried_total") == 3, 10, what="three buried")
        async with app.worker() as second:
            await first.stop()
            await wait_until(lambda: len(second.holdings[0].tenures) == 3, 10, what="all of them taken over")
            server.sync().delete(announcements)
            await wait_until(lambda: server.sync().xlen(announcements) == 3, what="announced again")
            fill(server, orders.partitions.names[0], 1)
            await wait_until(lambda: len(seen) == 16, 10, what="the last one")
            await second.holdings[0].janitor.round()
            for tenure in list(second.holdings[0].tenures.values()):
                await second.holdings[0].gaps._look(tenure.room)
    assert len(failed) == 3


async def operate_parts(app: App, stream: str) -> None:
    """What was buried in the life before, looked at and replayed."""
    letters = app.stream(stream, partitions=3).dead_letters
    assert await letters.count() == 3
    assert {one.kind for one in await letters.replay()} == {"copy"}
    assert await letters.purge() == 0
    assert await app.stream(stream, partitions=3).backlog(GROUP) >= 3


async def speak_go(server: Server, app: App, service: str) -> None:
    """Everything a GoClient does: announce, hold, recover, bury, finish, hand back, hear that one was taken."""
    seen: list[Any] = []
    client = GoClient(app, service, consumer="py-1", lock="300ms", interval="100ms", min_idle="100ms", max_retries=0)
    stream, group = client.names.stream, client.names.group
    names = [f"{service}-room-{number}" for number in range(3)]
    fill(server, stream, 1)  # names no data stream
    orphan(server, stream, group, 1, idle_ms=60_000)

    async def collect() -> None:
        async for event in client.events():
            seen.append(event)

    async with client:
        collecting = asyncio.ensure_future(collect())
        for name in names:
            await client.announce(name, {"of": name})
        await wait_until(lambda: client.streams == names, 10, what="three held")
        await client.done_stream(names[0])
        taken = next(event for event in seen if isinstance(event, Added) and event.stream == names[1])
        server.sync().xclaim(stream, group, "thief", 0, [taken.id])
        await wait_until(lambda: any(isinstance(event, Disowned) for event in seen), what="one taken")
        await wait_until(lambda: server.sync().xlen(client.names.dead_letters) == 2, what="two buried")
    await collecting
    assert server.sync().keys(f"{names[2]}*") == []  # no lock is left of what was handed back
