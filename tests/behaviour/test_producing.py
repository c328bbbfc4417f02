"""Adding messages (SPEC 35, 36, 37, 41)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace import AddUnknown, App, Delivery, DurabilityUnmet, Unavailable, WrongType
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]


async def test_the_same_key_adds_once_and_the_second_call_returns_the_first_id(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 35: also at the same moment, from two producers."""
    one, two = make_app(server).stream(stream), make_app(server).stream(stream)
    first = await one.add({"n": 1}, key="order-1")
    again = await two.add({"n": 2}, key="order-1")
    assert first.first
    assert (again.id, again.first) == (first.id, False)
    at_once = await asyncio.gather(*(orders.add({"n": 3}, key="order-2") for orders in (one, two) * 20))
    assert len({added.id for added in at_once}) == 1
    assert sum(added.first for added in at_once) == 1
    assert server.sync().xlen(stream) == 2


async def test_a_key_is_forgotten_after_its_window_and_keys_belong_to_their_stream(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 35: within its window (24 h default)."""
    app = make_app(server)
    orders, other = app.stream(f"{prefix}-orders"), app.stream(f"{prefix}-other")
    assert (await orders.add({}, key="a", window="200ms")).first
    assert (await other.add({}, key="a")).first
    assert not (await orders.add({}, key="a", window="200ms")).first

    async def forgotten() -> bool:
        return (await orders.add({}, key="a", window="200ms")).first

    await wait_until(forgotten)
    left_ms = server.sync().pttl(other.keys.added("a"))
    assert 86_300_000 < left_ms <= 86_400_000


async def test_an_add_with_a_key_whose_reply_was_lost_is_asked_again_and_adds_once(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 35: also when the first call's reply was lost, wherever in the reply the connection was cut."""
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        orders = app.stream(stream)
        await orders.add({"n": 0}, key="order-0")
        for n, cut in enumerate((0, 1, 9, 20), 1):
            cuts: list[int] = []

            def cut_once(data: bytes, cuts: list[int] = cuts, cut: int = cut) -> int | None:
                if cuts:
                    return None
                cuts.append(cut)
                return cut

            proxy.cut_reply = cut_once
            added = await orders.add({"n": n}, key=f"order-{n}")
            assert cuts
            assert not added.first  # the lost call had done it
        assert server.sync().xlen(stream) == 5
        await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_an_add_without_a_key_whose_reply_was_lost_is_unknown_and_not_sent_again(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 35, 37: no call is ever re-sent behind the caller's back."""
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        orders = app.stream(stream)
        await orders.add({"n": 0})
        proxy.cut_reply = lambda data: 0
        with pytest.raises(Unavailable):
            await orders.add({"n": 1})
        proxy.cut_reply = None
        await orders.add({"n": 2})
        payloads = [fields[b"payload"] for _, fields in server.sync().xrange(stream)]
        assert payloads == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
        await app.close()


async def test_10_000_are_added_in_pipelines_with_one_result_each_in_order(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 36."""
    app = make_app(server)
    orders = app.stream(stream)
    results = await orders.add_many({"n": n} for n in range(10_000))
    entries = server.sync().xrange(stream)
    assert [added.id for added in results] == [id_.decode() for id_, _ in entries]
    assert [json.loads(fields[b"payload"])["n"] for _, fields in entries] == list(range(10_000))
    assert counted(app, "added_total") == 10_000
    again = await orders.add_many([{"n": 0}, {"n": 1}], keys=["a", "b"])
    twice = await orders.add_many([{"n": 1}, {"n": 2}], keys=["b", "c"])
    assert [added.first for added in twice] == [False, True]
    assert twice[0].id == again[1].id


@pytest.mark.servers("redis8", "redis6")
async def test_a_failed_add_many_tells_which_are_unknown(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 36: results of the pipelines that were answered, None for the others."""
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        orders = app.stream(stream)
        await orders.add({"n": -1})
        answered = 0

        def cut_late(data: bytes) -> int | None:
            nonlocal answered
            answered += data.count(b"\r\n$") or data.count(b"$")
            return None if answered < 700 else 0

        proxy.cut_reply = cut_late
        with pytest.raises(AddUnknown, match="unknown, not failed") as caught:
            await orders.add_many([{"n": n} for n in range(3_000)], keys=[f"k{n}" for n in range(3_000)])
        proxy.cut_reply = None
        results = caught.value.results
        known = [added for added in results if added is not None]
        assert len(results) == 3_000
        assert 0 < len(known) < 3_000
        ids = {id_.decode() for id_, _ in server.sync().xrange(stream)}
        assert {added.id for added in known} <= ids
        # Adding all of them again with the same keys adds what was missing, and nothing twice.
        await orders.add_many([{"n": n} for n in range(3_000)], keys=[f"k{n}" for n in range(3_000)])
        payloads = [json.loads(fields[b"payload"])["n"] for _, fields in server.sync().xrange(stream)]
        assert sorted(payloads) == list(range(-1, 3_000))
        await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_an_add_the_server_refuses_is_an_error_of_its_kind(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 36, 54: refused is not unknown."""
    server.sync().set(stream, "no stream")
    orders = make_app(server).stream(stream)
    with pytest.raises(WrongType):
        await orders.add({})
    with pytest.raises((WrongType, AddUnknown)):
        await orders.add_many([{}, {}])


# ── durability ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8", "redis6", "valkey9")
async def test_on_disk_is_confirmed_by_an_append_only_file_and_unknown_without_one(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 37: WAITAOF, or appendfsync always where it does not exist; unmet: "unknown", with the id."""
    kept = own_server(server_key, aof=True, config={"appendfsync": "always"})
    app = make_app(kept)
    added = await app.stream(stream).add({"n": 1}, durability="disk")
    assert added.first
    await app.close()
    volatile = own_server(server_key)
    app = make_app(volatile)
    with pytest.raises(DurabilityUnmet, match="unknown, not failed") as caught:
        await app.stream(stream).add({"n": 1}, durability="disk")
    assert caught.value.id == volatile.sync().xrange(stream)[0][0].decode()
    await app.close()


@pytest.mark.servers("redis8")
async def test_a_durable_add_is_there_at_once_at_a_server_that_has_not_seen_its_script(
    server: Server, stream: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one that has just taken over: WAIT blocks there, and must not hold up what is written."""
    monkeypatch.setattr("headrace.producer.CONFIRM_MS", 1_000)
    server.sync().script_flush()
    adding = asyncio.ensure_future(make_app(server).stream(stream).add({"n": 1}, durability="replicated", key="one"))
    await wait_until(lambda: server.sync().xlen(stream) == 1, 0.5, what="it is written")
    with pytest.raises(DurabilityUnmet):
        await adding


@pytest.mark.servers("redis8", "redis6")
async def test_replicated_is_confirmed_by_a_replica_and_unknown_without_one(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC 37: WAIT 1."""
    monkeypatch.setattr("headrace.producer.CONFIRM_MS", 500)
    primary = own_server(server_key, tcp=True, config={"repl-diskless-sync-delay": 0})
    app = make_app(primary)
    orders = app.stream(stream)
    with pytest.raises(DurabilityUnmet, match="on a replica is unknown"):
        await orders.add({"n": 1}, durability="replicated", key="order-1")
    replica = own_server(server_key, tcp=True, config={"replicaof": f"127.0.0.1 {primary.port}"})
    link_up = lambda: replica.sync().info("replication")["master_link_status"] == "up"  # noqa: E731
    await wait_until(link_up, 15)
    added = await orders.add({"n": 1}, durability="replicated", key="order-1")
    assert not added.first  # the same key: the first one was there all the time
    fresh = await orders.add({"n": 2}, durability="replicated")
    assert [id_.decode() for id_, _ in replica.sync().xrange(stream)] == [added.id, fresh.id]
    await app.close()


# ── headers ──────────────────────────────────────────────────────────────────────────────────────────


async def test_headers_and_traceparent_travel_as_fields_of_their_own(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 41: never inside the payload."""
    app = make_app(server)
    orders, seen = app.stream(stream), []
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        seen.append((order, delivery.headers, delivery.traceparent, delivery.key))

    async with app.worker():
        await orders.add({"n": 1}, key="order-1", headers={"tenant": "a", "ä": ""}, traceparent=trace)
        await wait_until(lambda: seen)
    assert seen == [({"n": 1}, {"tenant": "a", "ä": ""}, trace, "order-1")]
    ((_, fields),) = server.sync().xrange(stream)
    assert fields == {
        b"payload": b'{"n":1}',
        b"_key": b"order-1",
        b"_traceparent": trace.encode(),
        b"_h:tenant": b"a",
        "_h:ä".encode(): b"",
    }
