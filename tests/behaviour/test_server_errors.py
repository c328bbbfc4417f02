"""What the server refuses: for good, a clear error at once; for now, wait and go on (SPEC 54)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace import App, AuthFailed, Delivery, ServerTooOld, WrongType
from tests.support.looking import fill, pending
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]


async def _nothing(order: Any) -> None:
    pass


def _handled(app: App, stream: str, ledger: Ledger, **options: Any) -> Any:
    orders = app.stream(stream)

    @orders.handler(group=GROUP, **{"lease": "500ms", **options})
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    return orders


# ── for good ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_of_another_type_is_a_clear_error_at_once(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 54: WRONGTYPE, for the stream and for its dead letters."""
    for key in (stream, f"{{{stream}}}:dlq"):
        server.sync().set(key, "no stream")
        app = make_app(server)
        app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)
        begun = time.monotonic()
        with pytest.raises(WrongType) as caught:
            async with app.worker():
                pass
        assert time.monotonic() - begun < 1
        assert "\n" not in str(caught.value)
        server.sync().delete(key)


async def test_a_key_that_changes_its_type_under_a_running_worker_fails_it(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54: at once, and no spinning."""
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease="400ms")(_nothing)

    async def work() -> None:
        async with app.worker() as worker:
            server.sync().delete(stream)
            server.sync().set(stream, "no stream")
            await asyncio.wait_for(worker.wait(), 5)

    with pytest.raises(WrongType):
        await work()


async def test_a_wrong_or_missing_password_is_a_clear_error_at_once(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54: WRONGPASS, NOAUTH."""
    server = own_server(server_key, config={"requirepass": "right"}, tcp=True)
    for login in (":wrong@", "", "nobody:right@"):
        app = make_app(f"redis://{login}127.0.0.1:{server.port}")
        orders = app.stream(stream)
        orders.handler(group=GROUP, lease="2s")(_nothing)
        with pytest.raises(AuthFailed):
            async with app.worker():
                pass
        with pytest.raises(AuthFailed):
            await orders.add({}, key="a")  # not repeated for half a minute
        await app.close()
    app = make_app(f"redis://:right@127.0.0.1:{server.port}")
    await app.stream(stream).add({})
    await app.close()


@pytest.mark.servers("redis8")
async def test_a_server_too_old_is_a_clear_error_at_once(stream: str, make_app: MakeApp, server: Server) -> None:
    """SPEC 54: known by what it cannot do; 6.2 is the oldest that is at hand, so an older one is played."""
    async with _old_server() as url:
        app = make_app(url)
        app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)
        with pytest.raises(ServerTooOld, match=r"6\.2"):
            async with app.worker():
                pass
        await app.close()


@asynccontextmanager
async def _old_server() -> AsyncIterator[str]:
    """Answers like Redis 5: INFO says so, and newer commands are unknown."""
    info = b"# Server\r\nredis_version:5.0.14\r\nrun_id:abc\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            word = words[0].upper()
            if word == b"INFO":
                writer.write(b"$%d\r\n%s\r\n" % (len(info), info))
            elif word == b"CLIENT":
                writer.write(b":7\r\n" if words[1].upper() == b"ID" else b"+OK\r\n")
            elif word == b"TYPE":
                writer.write(b"+none\r\n")
            else:
                writer.write(b"-ERR unknown command `%s`, with args beginning with: \r\n" % words[0])
        writer.close()

    served = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with served:
        yield f"redis://127.0.0.1:{served.sockets[0].getsockname()[1]}"


# ── for now ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(30)
async def test_a_full_server_is_emptied_by_its_workers(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54, DESIGN 2: OOM: adds are refused, every outcome of a worker goes through, also one that starts now."""
    server = own_server(server_key)
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="500ms", backoff="300ms", max_attempts=2)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["n"] % 2:
            raise RuntimeError("no")

    async with app.worker():
        pass  # makes the group
    fill(server, stream, 10)
    server.sync().config_set("maxmemory", 1)
    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 5, 10)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5, 10)
    server.sync().config_set("maxmemory", 0)
    assert len(ledger) == 15
    assert await orders.dead_letters.count() == 5
    assert pending(server, stream, GROUP) == {}
    await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_a_full_server_refuses_an_add_for_now_and_one_with_a_key_waits(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54: OOM: back off and go on."""
    server = own_server(server_key)
    app = make_app(server)
    orders = app.stream(stream)
    await orders.add({"n": 0})
    server.sync().config_set("maxmemory", 1)
    adding = asyncio.ensure_future(orders.add({"n": 1}, key="order-1"))
    await asyncio.sleep(0.3)
    assert not adding.done()
    server.sync().config_set("maxmemory", 0)
    assert (await asyncio.wait_for(adding, 5)).first
    assert server.sync().xlen(stream) == 2
    await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_waits_while_its_server_is_a_replica(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54: READONLY: back off and go on; nothing is lost, nothing runs twice."""
    server = own_server(server_key)
    app, ledger = make_app(server), Ledger()
    _handled(app, stream, ledger)
    async with app.worker() as worker:
        fill(server, stream, 5)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 5)
        server.sync().replicaof("127.0.0.1", 1)
        await asyncio.sleep(0.7)  # longer than a lease
        assert not worker._failed.done()  # type: ignore[union-attr]
        server.sync().replicaof("NO", "ONE")
        fill(server, stream, 5)
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 10, 15)
    assert ledger.attempts == [1] * 10
    await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_started_while_its_server_is_away_waits_for_it(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20, 54: no connection, LOADING: back off and go on, also at the start."""
    server = own_server(server_key, aof=True, config={"appendfsync": "always"})
    app, ledger = make_app(server), Ledger()
    _handled(app, stream, ledger)
    fill(server, stream, 1)
    server.kill()

    async def work() -> None:
        async with app.worker():
            await wait_until(lambda: len(ledger) == 1, 10)

    working = asyncio.ensure_future(work())
    await asyncio.sleep(0.3)
    assert not working.done(), working.exception()
    server.restart()
    await asyncio.wait_for(working, 15)
    await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_scripts_are_loaded_again_after_they_were_flushed(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 54, FACTS: NOSCRIPT is nobody's error."""
    app, ledger = make_app(server), Ledger()
    orders = _handled(app, stream, ledger)
    async with app.worker():
        for n in range(5):
            server.sync().script_flush()
            await orders.add({"n": n}, key=str(n))
            await wait_until(lambda: counted(app, "handled_total", outcome="ack") == n + 1)  # noqa: B023
    assert ledger.attempts == [1] * 5
