"""Recovery by requeue: the founding RFC's strategy, chosen for one handler (SPEC 46, ADR 13)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ResponseError

from headrace import App, Backoff, Bury, ConfigError, Delivery, Requeue
from headrace.names import keys_of
from headrace.testing import crash
from tests.support.looking import fill, pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

NOISE_S = 1.5
LOCK_S = 0.4
QUICK: dict[str, Any] = {"interval": "200ms", "min_idle": "400ms", "hints": False}


def quick(**other: Any) -> dict[str, Any]:
    """A handler's options: short locks, frequent scans."""
    return {"group": GROUP, "lease": LOCK_S, "recovery": Requeue(**{**QUICK, **other})}


def locks(server: Server, stream: str) -> list[str]:
    found = server.sync().keys("lock:*")
    return [key.decode() for key in found if keys_of(stream).locked_id(key.decode())]


def orphan(server: Server, stream: str, n: int = 1, *, idle_ms: int = 60_000, **fields: str) -> list[str]:
    """Messages that a consumer of this protocol read and died with: pending, and no lock."""
    redis = server.sync()
    with suppress(ResponseError):  # it is there
        redis.xgroup_create(stream, GROUP, "0", mkstream=True)
    both = redis.pipeline(transaction=True)  # or a worker that waits for messages would have them first
    for at in range(n):
        both.xadd(stream, {"payload": json.dumps({"n": at}), **fields})
    both.xreadgroup(GROUP, "dead-peer", {stream: ">"}, count=n)
    ids = both.execute()[:n]
    redis.xclaim(stream, GROUP, "dead-peer", 0, ids, idle=idle_ms, justid=True)
    return [id_.decode() for id_ in ids]


# ── taking over ──


async def test_what_a_dead_owner_left_is_requeued_once_and_handled(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 46: a copy with its retry count and first id; the handler sees neither, but the attempt."""
    (first,) = orphan(server, stream, extra="kept")
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick())
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        seen.append(delivery)

    seen: list[Delivery[Any]] = []
    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 1)
    (delivery,) = seen
    assert (delivery.attempt, delivery.original_id) == (2, first)
    assert delivery.id != first
    assert set(delivery.fields) == {"payload", "extra"}
    assert counted(app, "recovery_scan_requeued_total") == 1
    assert pending(server, stream, GROUP) == {}
    entries = server.sync().xrange(stream)
    assert len(entries) == 2
    assert entries[-1][1][b"_retry_count"] == b"1"
    assert entries[-1][1][b"_original_id"].decode() == first


async def test_a_killed_workers_message_is_handled_elsewhere_within_its_lock_and_an_interval(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    dying, living, ledger = make_app(server), make_app(server), Ledger()

    def register(app: App) -> None:
        @app.stream(stream).handler(**quick())
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)
            if delivery.attempt == 1:
                await asyncio.sleep(60)

    register(dying)
    register(living)
    async with dying.worker() as worker:
        await dying.stream(stream).add({})
        await wait_until(lambda: len(ledger.seen) == 1)
        assert len(locks(server, stream)) == 1
        async with living.worker():
            await stays(lambda: len(ledger.seen) == 1, 2 * LOCK_S)
            died = time.monotonic()
            await crash(worker)
            await wait_until(lambda: len(ledger.seen) == 2)
            assert ledger.seen[1].at - died < LOCK_S + 0.2 * 1.1 + NOISE_S
            await wait_until(lambda: counted(living, "acked_total") == 1)
    assert ledger.attempts == [1, 2]


async def test_a_slow_owner_whose_lock_lives_is_skipped_and_counted(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 9, 46: ten times its lock's life, far beyond the minimal idle time; started once."""
    slow, sibling, ledger = make_app(server), make_app(server), Ledger()

    def register(app: App) -> None:
        @app.stream(stream).handler(**quick())
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)
            await asyncio.sleep(5 * LOCK_S)

    register(slow)
    register(sibling)
    async with slow.worker():
        await slow.stream(stream).add({})
        await wait_until(lambda: len(ledger.seen) == 1)
        async with sibling.worker():
            await wait_until(lambda: counted(slow, "acked_total") == 1)
    assert len(ledger.seen) == 1
    assert counted(sibling, "recovery_scan_skipped_alive_total") >= 2
    assert counted(sibling, "recovery_scan_requeued_total") == 0


async def test_orphans_behind_many_live_ones_are_reached(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 15: the scan goes on where it stopped; a first page full of live owners hides nothing."""
    ids = orphan(server, stream, 60)
    redis = server.sync()
    for id_ in ids[:50]:
        redis.set(keys_of(stream).lock(id_), "alive")
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick(interval="30s", batch=10))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 10)
    assert sorted(seen.payload["n"] for seen in ledger.seen) == list(range(50, 60))
    assert counted(app, "recovery_scan_skipped_alive_total") == 50
    redis.delete(*(keys_of(stream).lock(id_) for id_ in ids))


async def test_a_hint_recovers_at_once_what_a_scan_would_find_in_a_minute(
    stream: str, make_app: MakeApp, own_server: OwnServer
) -> None:
    server = own_server("redis8")
    redis = server.sync()
    redis.config_set("notify-keyspace-events", "Ex")
    (id_,) = orphan(server, stream)
    redis.set(keys_of(stream).lock(id_), "dead-peer", px=1_000)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick(interval="60s", min_idle="120s", hints=True))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 1, 8)
        assert counted(app, "recovery_keyspace_requeued_total") == 1
        # The listener comes back after its connection was lost.
        redis.client_kill_filter(_type="pubsub")
        await wait_until(lambda: redis.client_list(_type="pubsub"), 5)
        (again,) = orphan(server, stream)
        redis.set(keys_of(stream).lock(again), "dead-peer", px=300)
        await wait_until(lambda: counted(app, "acked_total") == 2, 8)
    assert counted(app, "recovery_keyspace_requeued_total") == 2


async def test_a_failed_check_is_unknown_and_never_dead(stream: str, make_app: MakeApp, own_server: OwnServer) -> None:
    """SPEC 46: while the server cannot answer, the message stays where it is."""
    server = own_server("redis8")
    orphan(server, stream)
    redis = server.sync()
    redis.execute_command("ACL", "SETUSER", "default", "-exists")
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick())
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    with pytest.raises(Exception, match=r"exists|EXISTS"):
        async with app.worker() as worker:
            await asyncio.wait_for(worker.wait(), 5)
    assert len(pending(server, stream, GROUP)) == 1
    assert redis.xlen(stream) == 1


# ── outcomes ──


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_that_is_back_before_the_others_requeues_none_of_their_messages(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 20: after an answer that took too long live owners' locks come first."""
    async with Proxy(server.socket) as early, Proxy(server.socket) as late:
        apps, starts, done = [make_app(early.url), make_app(late.url)], list[int](), asyncio.Event()
        for app in apps:

            @app.stream(stream).handler(
                group=GROUP, lease="1s", recovery=Requeue(interval="300ms", min_idle="1s", hints=False)
            )
            async def bill(order: Any) -> None:
                starts.append(order["n"])
                await done.wait()

        fill(server, stream, 10)
        async with apps[1].worker():
            await wait_until(lambda: len(starts) == 10)
            async with apps[0].worker():
                await asyncio.sleep(1.5)  # it has scanned, and trusts the server's clock
                early.holding = late.holding = True
                await asyncio.sleep(2.5)  # longer than a lock lives, shorter than anybody waits for an answer
                early.holding = False
                await asyncio.sleep(0.2)
                late.holding = False
                await stays(lambda: len(starts) == 10, 1.0)
                done.set()
                await wait_until(lambda: not pending(server, stream, GROUP))
        assert counted(apps[0], "recovery_scan_requeued_total") == 0


async def test_max_retries_3_means_four_starts_then_a_dead_letter(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 25, 46, DESIGN 6: the message and three copies; each waits for its backoff."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**quick(interval="30s"), backoff=Backoff(first_ms=150, factor=2, jitter=0))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        raise RuntimeError("no")

    async with app.worker():
        added = await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "buried_total") == 1, 10)
    assert ledger.attempts == [1, 2, 3, 4]
    waits = [later.at - sooner.at for sooner, later in zip(ledger.seen, ledger.seen[1:], strict=False)]
    for wait_s, due_s in zip(waits, (0.15, 0.3, 0.6), strict=True):
        assert due_s <= wait_s < due_s + NOISE_S
    (letter,) = [letter async for letter in orders.dead_letters.each()]
    assert (letter.original_id, letter.attempts) == (added.id, 4)
    assert pending(server, stream, GROUP) == {}
    assert locks(server, stream) == []


async def test_a_buried_message_is_replayed_as_attempt_1(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 28: a dead letter of a copy holds the message as it was added."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(**quick(max_retries=1), backoff="50ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if len(ledger.seen) == 1:
            raise RuntimeError("no")
        if len(ledger.seen) == 2:
            raise Bury("never")

    async with app.worker():
        await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "buried_total") == 1)
        (letter,) = [letter async for letter in orders.dead_letters.each()]
        await orders.dead_letters.replay(letter.id)
        await wait_until(lambda: counted(app, "acked_total") == 1)
    assert ledger.attempts == [1, 2, 1]


async def test_a_failed_message_waits_behind_its_lock_also_when_its_worker_is_gone(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 24: never before its backoff, whoever scans; and no waiting place that only Headrace knows."""
    failing, other, ledger = make_app(server), make_app(server), Ledger()

    def register(app: App) -> None:
        @app.stream(stream).handler(**quick(min_idle="1ms"), backoff="1500ms")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)
            if delivery.attempt == 1:
                raise RuntimeError("no")

    register(failing)
    register(other)
    async with failing.worker():
        await failing.stream(stream).add({})
        await wait_until(lambda: counted(failing, "retried_total") == 1)
    assert waiting(server, stream, GROUP) == {}
    assert len(pending(server, stream, GROUP)) == 1
    async with other.worker():
        await wait_until(lambda: counted(other, "acked_total") == 1, 8)
    assert ledger.attempts == [1, 2]
    assert ledger.seen[1].at - ledger.seen[0].at >= 1.5


async def test_a_stopping_worker_hands_back_what_it_has_not_finished_and_burns_no_retry(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 22: copies with the same retry count, unlocked, at once."""
    fill(server, stream, 6)
    stopping, other, ledger = make_app(server), make_app(server), Ledger()

    @stopping.stream(stream).handler(**quick(interval="60s"), concurrency=4)
    async def stuck(order: Any, delivery: Delivery[Any]) -> None:
        await asyncio.sleep(60)

    @other.stream(stream).handler(**quick(interval="60s"))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with stopping.worker() as worker:
        await wait_until(lambda: len(locks(server, stream)) == 4)
        await worker.stop(0.1)
    assert pending(server, stream, GROUP) == {}
    assert locks(server, stream) == []
    async with other.worker():
        await wait_until(lambda: counted(other, "acked_total") == 6)
    assert ledger.attempts == [1] * 6
    assert sorted(seen.payload["n"] for seen in ledger.seen) == list(range(6))


async def test_a_zombies_ack_of_a_requeued_message_is_refused_and_counted(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 11, 46: its lock was taken away and a peer requeued the message while it worked."""
    app, ledger = make_app(server), Ledger()
    go_on = asyncio.Event()

    @app.stream(stream).handler(**quick(interval="60s"))
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if delivery.attempt == 1:
            await go_on.wait()

    async with app.worker():
        added = await app.stream(stream).add({})
        await wait_until(lambda: len(ledger.seen) == 1)
        redis = server.sync()
        redis.xadd(stream, {"payload": "{}", "_retry_count": "1", "_original_id": added.id})
        redis.xack(stream, GROUP, added.id)
        await wait_until(lambda: len(ledger.seen) == 2)
        go_on.set()
        await wait_until(lambda: counted(app, "recovery_duplicate_ack_total") == 1)
    assert counted(app, "acked_total") == 1
    assert ledger.attempts == [1, 2]


async def test_no_handler_starts_without_its_lock(server: Server, stream: str, make_app: MakeApp) -> None:
    fill(server, stream, 100)
    app = make_app(server)
    unlocked: list[str] = []

    @app.stream(stream).handler(**quick(), concurrency=20)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        if not server.sync().exists(keys_of(stream).lock(delivery.id)):
            unlocked.append(delivery.id)

    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 100)
        await wait_until(lambda: locks(server, stream) == [])
    assert unlocked == []


# ── beside others ──


async def test_it_works_beside_a_plain_consumer_of_the_protocol(server: Server, stream: str, make_app: MakeApp) -> None:
    """A peer of a few redis-py lines: reads, locks, acks; recovers what we leave, and we what it leaves."""
    redis, keys = server.sync(), keys_of(stream)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick(), concurrency=1)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if order["n"] == 0 and delivery.attempt == 1:
            await asyncio.sleep(60)

    async with app.worker() as worker:
        await app.stream(stream).add({"n": 0})
        await wait_until(lambda: len(ledger.seen) == 1)
        # The peer finds our lock and leaves the message alone; our worker dies; the peer's scan requeues it.
        (ours,) = pending(server, stream, GROUP)
        assert redis.exists(keys.lock(ours)) == 1
        await crash(worker)
        await wait_until(lambda: not redis.exists(keys.lock(ours)))
        body = redis.xrange(stream, ours, ours)[0][1]
        redis.xadd(stream, {**body, b"_retry_count": "1", b"_original_id": ours})
        redis.xack(stream, GROUP, ours)
    # The peer takes the copy with its own lock, and is slow: our worker skips it. Then it dies with it.
    ((_, ((copy, _),)),) = redis.xreadgroup(GROUP, "peer", {stream: ">"}, count=1)
    redis.set(keys.lock(copy.decode()), "peer", px=1_500)
    read_at = time.monotonic()
    async with app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 1, 8)
    assert time.monotonic() - read_at >= 1.5
    assert counted(app, "recovery_scan_skipped_alive_total") >= 1
    assert ledger.attempts == [1, 3]


async def test_none_is_lost_and_none_handled_twice_without_a_crash(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 10: three workers, handlers slower than a lock, twice as many messages as slots."""
    fill(server, stream, 60)
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(**quick(), concurrency=10)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(1.5 * LOCK_S)

    async with app.worker(), app.worker(), app.worker():
        await wait_until(lambda: counted(app, "acked_total") == 60, 15)
    assert sorted(seen.payload["n"] for seen in ledger.seen) == list(range(60))


@pytest.mark.servers("redis8")
async def test_what_the_strategy_cannot_do_well_is_said_at_the_start(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Other groups see every copy; workers of one group with two strategies rob each other."""
    server.sync().xgroup_create(stream, "audit", "0", mkstream=True)
    requeueing, in_place = make_app(server), make_app(server)

    @requeueing.stream(stream).handler(**quick())
    async def bill(order: Any) -> None: ...

    @in_place.stream(stream).handler(group=GROUP)
    async def bill_in_place(order: Any) -> None: ...

    with caplog.at_level("WARNING"):
        async with requeueing.worker(), in_place.worker():
            pass
    said = [record.getMessage() for record in caplog.records]
    assert any("requeue.shared" in line and "audit" in line for line in said)
    assert any("recovery.differs" in line for line in said)


# ── settings ──


def test_settings_that_contradict_are_refused_with_a_way_out(make_app: MakeApp) -> None:
    orders = make_app("redis://localhost:1").stream("orders")
    with pytest.raises(ConfigError, match="max_retries"):
        orders.handler(group=GROUP, max_attempts=3, recovery=Requeue())
    with pytest.raises(ConfigError, match=r"InPlace\(\) or Requeue"):
        orders.handler(group=GROUP, recovery="requeue")
    with pytest.raises(ConfigError, match="another slot"):
        Requeue(dead_letter_stream="elsewhere").dead_letters(keys_of("orders"))
