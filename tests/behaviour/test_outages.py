"""The server goes away and comes back (SPEC 20, 54)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Delivery
from headrace.board import Board
from headrace.estates import Estates
from headrace.names import keys_of
from headrace.redis.connect import Server as Address
from headrace.ward import Held, Ward
from tests.support.looking import fill, orphan, pending
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

LEASE_S = 0.4


async def _away_while_handlers_run(
    server: Server,
    stream: str,
    make_app: MakeApp,
    go: Callable[[], Any],
    come_back: Callable[[], Any],
    url: str = "",
) -> None:
    """Three workers with running handlers, and room for more, lose the server for 3 × L; a fourth comes afterwards."""
    app, ledger, done = make_app(url or server), Ledger(), asyncio.Event()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease=LEASE_S, concurrency=10)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await done.wait()

    fill(server, stream, 15)
    async with pool(app, 3):
        await wait_until(lambda: len(ledger) == 15)
        await _call(go)
        away_at = time.monotonic()
        await asyncio.sleep(3 * LEASE_S)  # the length of the outage
        await _call(come_back)
        back_at = time.monotonic()
        async with app.worker():
            await asyncio.sleep(3 * LEASE_S)  # plenty for a robber
            assert len(ledger) == 15, f"robbed {[seen.at - back_at for seen in ledger.seen[15:]]} s after"
            done.set()
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 15, 10)
        await orders.add({"n": 15})
        await wait_until(lambda: len(ledger) == 16)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 16, 10)
    assert away_at < back_at
    assert set(ledger.attempts) == {1}
    assert counted(app, "refused_total") + counted(app, "lost_total") == 0
    await app.close()


async def _call(what: Callable[[], Any]) -> None:
    answer = what()
    if asyncio.iscoroutine(answer):
        await answer


@pytest.mark.servers("redis8", "redis6")
async def test_a_killed_server_that_comes_back_after_three_leases_robs_no_live_handler(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20: killed, and restarted from its append-only file."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    await _away_while_handlers_run(server, stream, make_app, server.kill, server.restart)


@pytest.mark.servers("redis8", "redis6")
async def test_a_paused_server_robs_no_live_handler(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20: paused; what was queued meanwhile must not rescue before the renewals."""
    server = own_server(server_key)
    await _away_while_handlers_run(server, stream, make_app, server.pause, server.cont)


@pytest.mark.servers("redis8")
async def test_an_unreachable_server_robs_no_live_handler(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 20: unreachable: connections hang without a word, then go on."""
    async with Proxy(server.socket) as proxy:

        def hold() -> None:
            proxy.holding = True

        async def let_go() -> None:
            proxy.holding = False

        await _away_while_handlers_run(server, stream, make_app, hold, let_go, proxy.url)


@pytest.mark.servers("redis8", "redis6")
async def test_workers_go_on_after_an_outage_lose_nothing_and_flood_no_log(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 20: two restarts of the server under load; the log stays short."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease=LEASE_S, concurrency=10)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(0.01)

    added: list[str] = []
    async with pool(app, 2):
        with caplog.at_level(logging.INFO):
            for round_ in range(2):
                added += fill(server, stream, 300)
                await wait_until(lambda: len(ledger) >= 100 + 300 * round_)  # noqa: B023
                server.kill()
                await asyncio.sleep(0.5)  # the length of the outage
                server.restart()
            await wait_until(lambda: set(ledger.ids) >= set(added), 15, what="everything handled")
            await wait_until(lambda: pending(server, stream, GROUP) == {}, 10)
    assert len(ledger) <= 600 + 2 * 20  # what was in hand when the server died may run again, nothing else
    assert len(caplog.records) < 60
    await app.close()


@pytest.mark.servers("redis8")
async def test_an_idle_connection_that_the_server_closed_costs_no_add(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20, 37: nothing was sent over it, so nothing is unknown."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    app = make_app(server)
    orders = app.stream(stream)
    await orders.add({"n": 0})
    await asyncio.to_thread(orders.add_sync, {"n": 1})
    server.kill()
    server.restart()
    await asyncio.sleep(0.05)  # the end of the connection has arrived
    await orders.add({"n": 2})
    await orders.add_many([{"n": 3}])
    assert server.sync().xlen(stream) == 4
    await app.close()


@pytest.mark.servers("redis8")
async def test_a_command_that_took_too_long_makes_rescue_wait(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 20: nobody rescues within L/2 after a command that took L/4 too long."""
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        app.stream(stream).handler(group=GROUP, lease="800ms")(_nothing)
        async with app.worker() as worker:
            rescuer = worker.lanes[0].engine.rescue
            await wait_until(lambda: rescuer.allowed, 5)
            proxy.delay_s = 0.3
            await wait_until(lambda: not rescuer.allowed, 5)
            proxy.delay_s = 0.0
        await app.close()


@pytest.mark.servers("redis6", "valkey9")
async def test_a_rescue_that_waited_in_a_paused_server_takes_nothing(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20: the fallback's rescue carries the server time after which it does nothing."""
    server = own_server(server_key)
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease=LEASE_S)(_nothing)
    async with app.worker() as worker:
        rescuer, link = worker.lanes[0].engine.rescue, app.server.link()
        await wait_until(lambda: rescuer.allowed)
        await rescuer.take(link, 10)  # it knows the server's clock now
        worker.lanes[0].reader.stop()
        fill(server, stream, 3)
        ids = orphan(server, stream, GROUP, 3, owner="alive")
        server.pause()
        taking = asyncio.ensure_future(rescuer.take(link, 10))
        await asyncio.sleep(2 * LEASE_S)  # the length of the pause
        server.cont()
        assert await taking == []
        assert not rescuer.allowed
        assert {id_: held.owner for id_, held in pending(server, stream, GROUP).items()} == dict.fromkeys(ids, "alive")
        await link.close()
    await app.close()


async def _nothing(order: Any) -> None:
    pass


@pytest.mark.servers("redis8")
async def test_what_a_dead_child_held_is_handed_back_when_the_server_is_there_again(
    own_server: OwnServer, server_key: str, stream: str, tmp_path: Path
) -> None:
    """Lane by lane, and whoever would have the dead one's name waits for it."""
    server, told = own_server(server_key), []
    streams = [f"{stream}-{number}" for number in range(4)]
    for name in streams:
        fill(server, name, 2)
        server.sync().xgroup_create(name, GROUP, "0")
        server.sync().xreadgroup(GROUP, "fixed", {name: ">"})
    with (tmp_path / "board").open("w+b") as file:
        board = Board.create(file.fileno(), marks=1)
        lanes = [Held(keys_of(name), GROUP, 60_000, 60_000, 5) for name in streams]
        estates = Estates(Address(server.url), lambda event, about: told.append((event, about["deliveries"])))
        estates.start()
        server.pause()
        try:
            estates.take(Ward(1, "fixed", lanes, board, fixed=True))
            await asyncio.sleep(1.5)  # longer than one answer is waited for
            assert estates.of_a_name_in_use
        finally:
            server.cont()
        await wait_until(lambda: told, 3, what="it is handed back")
        assert told == [("owner.adopted", 8)]
        assert not estates.of_a_name_in_use
        estates.stop()
    assert all(pending(server, name, GROUP) == {} for name in streams)
