"""Rescue: taking over what dead owners left (SPEC 14 to 16, 18, 19, 21)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Delivery, Retry
from headrace.names import keys_of
from headrace.redis import scripts
from tests.support.looking import age, fill, orphan, pending
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.long  # compares times: beside other tests the cores are not its own
async def test_orphans_are_shared_by_all_workers(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 14: 4 workers start 1,000 orphans in under a third of the time one needs, 16 slots each, 40 ms a message."""
    took = {}
    for workers in (1, 4):
        name = f"{stream}-{workers}"
        fill(server, name, 1_000)
        orphan(server, name, GROUP, 1_000, idle_ms=60_000)
        app, ledger = make_app(server), Ledger()

        @app.stream(name).handler(group=GROUP, lease="400ms", concurrency=16)
        async def bill(order: Any, delivery: Delivery[Any], ledger: Ledger = ledger) -> None:
            ledger.note(order, delivery)
            await asyncio.sleep(0.04)

        async with pool(app, workers):
            await wait_until(lambda: len(ledger) >= 1_000, 20)  # noqa: B023
        assert len(set(ledger.ids)) == len(ledger) == 1_000
        assert set(ledger.attempts) == {2}
        took[workers] = ledger.seen[-1].at - ledger.seen[0].at
    assert took[4] < took[1] / 3


async def test_orphans_are_rescued_while_there_is_a_backlog(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 8, 24: every slot is taken again by the read that carries its ack; what is orphaned or due gets its turn."""
    fill(server, stream, 20)
    orphan(server, stream, GROUP, 20, idle_ms=60_000)
    backlog = 400
    fill(server, stream, backlog)
    app, ledger = make_app(server), Ledger()
    again: list[tuple[str, int]] = []  # one that fails: its id, and how many had been started before it came again

    @app.stream(stream).handler(group=GROUP, lease="500ms", concurrency=4)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if len(ledger) == 4:
            again.append((delivery.id, 0))
            raise Retry("busy", after="100ms")
        if again and delivery.id == again[0][0]:
            again.append((delivery.id, len(ledger)))
        await asyncio.sleep(0.03)

    async with app.worker():
        await wait_until(lambda: len(ledger) > backlog // 2, 20)
    rescued = [number for number, seen in enumerate(ledger.seen) if seen.attempt == 2 and seen.id != again[0][0]]
    assert len(rescued) == 20, "behind the backlog"
    assert len(again) == 2, "the retry waits behind the backlog"


@pytest.mark.servers("redis8", "valkey9")
async def test_idle_entries_behind_5_000_fresh_ones_are_rescued(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 15: in one cycle of the scan; the fresh ones are left alone."""
    ids = fill(server, stream, 5_005)
    orphan(server, stream, GROUP, 5_005, owner="alive")
    age(server, stream, GROUP, ids[5_000:], 60_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="10s", concurrency=10)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        _trust_the_clock(worker)
        await wait_until(lambda: len(ledger) == 5, 10)
        await stays(lambda: len(ledger) == 5, 0.3)
    assert sorted(ledger.ids) == sorted(ids[5_000:])
    assert len(pending(server, stream, GROUP)) == 5_000


def _trust_the_clock(worker: Any) -> None:
    """Skip the half lease in which nobody rescues after a connect, and the wait for the first scan: no outage here."""
    rescuer = worker.lanes[0].engine.rescue
    rescuer._epoch = worker.lanes[0].read_link.epoch
    rescuer._quiet_until = 0.0
    rescuer.hint()


@pytest.mark.servers("redis8", "redis6")
async def test_twenty_workers_take_each_orphan_once_and_attempts_rise_by_one(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 16."""
    fill(server, stream, 300)
    ids = orphan(server, stream, GROUP, 300, idle_ms=60_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="400ms", concurrency=20)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(0.6)  # longer than the lease: a second rescue would show

    async with pool(app, 20):
        await wait_until(lambda: len(ledger) >= 300, 10)
        await wait_until(lambda: pending(server, stream, GROUP) == {}, 10)
    assert sorted(ledger.ids) == sorted(ids)
    assert set(ledger.attempts) == {2}
    assert counted(app, "refused_total") == 0


@pytest.mark.servers("redis8", "redis6")
async def test_a_fresh_worker_takes_nothing_over_within_half_a_lease(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20: nobody rescues within L/2 after a connect, fresh workers too."""
    fill(server, stream, 5)
    orphan(server, stream, GROUP, 5, idle_ms=60_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="1s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        connected_at = worker.lanes[0].read_link.connected_at
        await wait_until(lambda: len(ledger) == 5)
    assert ledger.seen[0].at - connected_at >= 0.5


async def test_a_trimmed_pending_entry_is_counted_logged_and_removed(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 18: lost, said so with its id, and not pending for ever."""
    fill(server, stream, 3)
    ids = orphan(server, stream, GROUP, 3, idle_ms=60_000)
    server.sync().xdel(stream, ids[0], ids[2])
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        await wait_until(lambda: len(ledger) == 1)
        worker.lanes[0].engine.rescue.hint()  # where CLAIM does the rescuing the scan for these is rare
        await wait_until(lambda: pending(server, stream, GROUP) == {})
        await wait_until(lambda: counted(app, "trimmed_total") == 2)
    assert ledger.ids == [ids[1]]
    assert "message.trimmed" in caplog.text
    assert ids[0] in caplog.text
    assert ids[2] in caplog.text


@pytest.mark.servers("redis8", "redis6")
async def test_a_message_trimmed_under_its_running_handler_is_counted_once(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 18: the handler finishes; nothing stays pending; the ack is no zombie's."""
    app, go_on = make_app(server), asyncio.Event()
    orders, started = app.stream(stream), []

    @orders.handler(group=GROUP, lease="300ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        started.append(delivery.id)
        await go_on.wait()

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: started)
        server.sync().xtrim(stream, maxlen=0)
        await asyncio.sleep(0.5)  # several renewals
        go_on.set()
        await wait_until(lambda: pending(server, stream, GROUP) == {})
    assert len(started) == 1
    if server.key != "redis6":  # there a renewal cannot tell, and the ack is as good as any
        assert counted(app, "trimmed_total") == 1
        assert started[0] in caplog.text


async def test_an_owner_that_is_gone_is_removed_after_its_retention_and_never_with_pending_entries(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 19."""
    fill(server, stream, 1)
    orphan(server, stream, GROUP, 1, owner="holds-something")
    server.sync().xgroup_createconsumer(stream, GROUP, "gone")
    app = make_app(server)

    @app.stream(stream).handler(group=GROUP, lease="10s", owner_retention="300ms")
    async def bill(order: Any) -> None:
        pass

    def names() -> set[str]:
        return {row["name"].decode() for row in server.sync().xinfo_consumers(stream, GROUP)}

    async with app.worker() as worker:
        janitor = worker.lanes[0].janitor
        await janitor.round()
        assert "gone" in names()  # heard of a moment ago
        await asyncio.sleep(0.35)  # its retention

        async def removed() -> bool:
            await janitor.round()
            return "gone" not in names()

        await wait_until(removed)
        assert "holds-something" in names()
        assert worker.owner in names() | {worker.owner}
    assert counted(app, "owner_removed_total") == 1
    assert len(pending(server, stream, GROUP)) == 1


async def test_an_owner_that_joined_and_never_read_is_removed_after_its_retention(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 19: killed before its first read it is no consumer, and only its entry tells of it."""
    app, keys = make_app(server), keys_of(stream)

    @app.stream(stream).handler(group=GROUP, lease="10s", owner_retention="300ms")
    async def bill(order: Any) -> None:
        pass

    def names() -> set[str]:
        return {field.decode() for field in server.sync().hkeys(keys.owners(GROUP))} - {""}

    async with app.worker() as worker:
        lane = worker.lanes[0]
        for owner in ('gone "for" good', "here"):
            await lane.out_link.call(scripts.join(keys, GROUP, owner, owner[:4], 10_000, "{}"))
        await lane.janitor.round()
        assert names() == {worker.owner, 'gone "for" good', "here"}  # heard of a moment ago
        await asyncio.sleep(0.35)  # its retention
        await lane.out_link.call(scripts.stay(keys, GROUP, "here", "here"))
        await lane.janitor.round()
        assert names() == {worker.owner, "here"}
        assert counted(app, "owner_removed_total") == 1
        await lane.out_link.call(scripts.remove_owner(keys, GROUP, "here"))


async def test_a_worker_that_stops_leaves_no_owner_behind(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 19, 22."""
    app = make_app(server)
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        pass

    async with app.worker():
        await orders.add({})
        await wait_until(lambda: counted(app, "handled_total") == 1)
    assert server.sync().xinfo_consumers(stream, GROUP) == []
    assert server.sync().hlen(orders.keys.owners(GROUP)) == 0


@pytest.mark.servers("redis8", "redis6")
async def test_rescue_needs_neither_keyspace_events_nor_config(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 21: notifications off and CONFIG forbidden: same results."""
    server = own_server(server_key, config={"notify-keyspace-events": '""', "rename-command": "CONFIG nobody"})
    fill(server, stream, 3)
    orphan(server, stream, GROUP, 3, idle_ms=60_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    begun = time.monotonic()
    async with app.worker():
        await wait_until(lambda: len(ledger) == 3)
    assert time.monotonic() - begun < 2
    assert ledger.attempts == [2] * 3
    await app.close()
