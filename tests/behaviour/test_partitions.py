"""One stream in many partitions (SPEC 51)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    App,
    Bury,
    ConfigError,
    Delivery,
    HandlerRefused,
    InPlace,
    MissingRight,
    Requeue,
    SyncDelivery,
    WrongType,
)
from headrace.names import keys_of, partition_assignments
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, pool

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]


async def test_workers_read_all_partitions_and_a_key_stays_in_its_own(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: spread over partitions, same key same partition, all of them read."""
    app = make_app(server)
    orders = app.stream(stream, partitions=4)
    seen: dict[str, set[str]] = {}

    @orders.handler(group=GROUP, concurrency=8)
    async def bill(order: dict[str, Any], delivery: Delivery) -> None:
        seen.setdefault(order["customer"], set()).add(delivery.stream)

    for number in range(60):
        await orders.add({"customer": f"c{number % 20}"}, partition_key=f"c{number % 20}")
    await orders.add_many(
        [{"customer": f"c{number % 20}"} for number in range(60)],
        partition_keys=[f"c{number % 20}" for number in range(60)],
    )
    async with app.worker() as worker:
        await asyncio.wait_for(worker.drained(), 10)
        await wait_until(lambda: len(seen) == 20)
    assert all(streams == {orders.partition_of(customer).name} for customer, streams in seen.items())
    assert len(set.union(*seen.values())) == 4
    assert await orders.backlog(GROUP) == 0


async def test_an_idempotency_key_adds_once_also_here_and_messages_without_a_key_take_turns(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    orders = make_app(server).stream(stream, partitions=4)
    first = await orders.add({"n": 1}, key="order-1")
    again = await asyncio.to_thread(orders.add_sync, {"n": 2}, key="order-1")
    assert (again.id, again.first) == (first.id, False)
    for _ in range(8):
        await orders.add({})
    lengths = sorted(server.sync().xlen(name) for name in orders.partitions.names)
    assert lengths == [2, 2, 2, 3]
    assert not server.sync().exists(stream)


async def test_dead_letters_of_all_partitions_are_listed_and_replayed_together(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 28, for a partitioned stream."""
    app = make_app(server)
    orders = app.stream(stream, partitions=3)
    dead = [orders.partition(number).keys.dead_letters for number in range(3)]
    poison, handled = True, 0

    @orders.handler(group=GROUP, concurrency=3)
    async def bill(order: dict[str, Any]) -> None:
        nonlocal handled
        if poison:
            raise Bury("not today")
        handled += 1

    await orders.add_many([{"n": number} for number in range(9)])
    async with app.worker():
        await wait_until(lambda: sum(server.sync().xlen(name) for name in dead) == 9)
        letters = await orders.dead_letters.listed()
        assert {letter.stream for letter in letters} == set(orders.partitions.names)
        assert await orders.dead_letters.count() == 9
        assert len(await orders.dead_letters.listed(limit=4)) == 4
        poison = False
        replayed = await orders.dead_letters.replay(group=GROUP)
        assert [one.kind for one in replayed] == ["same"] * 9
        await wait_until(lambda: handled == 9)
    assert await orders.dead_letters.purge() == 0


async def test_programs_that_disagree_about_the_number_are_refused(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: another number would send keys to other partitions and leave messages unread."""
    await make_app(server).stream(stream, partitions=4).add({})
    other = make_app(server)
    eight = other.stream(stream, partitions=8)
    with pytest.raises(ConfigError, match="has 4 partitions, and this program says 8"):
        await eight.add({})
    with pytest.raises(ConfigError, match="has 4 partitions"):
        await asyncio.to_thread(eight.add_sync, {})

    @eight.handler(group=GROUP)
    async def bill(order: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match="has 4 partitions"):
        async with other.worker():
            raise AssertionError("a worker started")


async def test_a_stream_that_exists_without_partitions_is_not_left_behind(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """Nothing is lost silently: what is in the unpartitioned stream would never be read."""
    app = make_app(server)
    await app.stream(stream).add({})
    with pytest.raises(WrongType, match="without partitions"):
        await app.stream(stream, partitions=4).add({})


# ── in order ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_ordered_handler_gets_the_messages_of_a_key_in_order_and_one_at_a_time(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: own some in order."""
    app = make_app(server)
    orders = app.stream(stream, partitions=4)
    seen: dict[str, list[int]] = {}
    running: set[str] = set()

    @orders.handler(group=GROUP, ordered=True, lease="1s")
    async def bill(order: dict[str, Any], delivery: Delivery) -> None:
        assert delivery.stream not in running
        running.add(delivery.stream)
        await asyncio.sleep(0.001)
        seen.setdefault(order["customer"], []).append(order["n"])
        running.discard(delivery.stream)

    await orders.add_many(
        [{"customer": f"c{number % 10}", "n": number} for number in range(200)],
        partition_keys=[f"c{number % 10}" for number in range(200)],
    )
    async with app.worker():
        await wait_until(lambda: sum(map(len, seen.values())) == 200, 15)
        await wait_until_zero(orders)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert len(seen) == 10


async def wait_until_zero(orders: Any) -> None:
    async def is_zero() -> bool:
        return bool(await orders.backlog(GROUP) == 0)

    await wait_until(is_zero)


async def test_a_failing_message_is_tried_in_place_then_set_aside_and_replayed_at_the_end(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 25, 26, 28 for an ordered partition: max_attempts starts, then a dead letter, and those behind it go on."""
    app = make_app(server)
    orders = app.stream(stream, partitions=1)
    seen: list[tuple[int, int]] = []
    healed = False

    @orders.handler(group=GROUP, ordered=True, max_attempts=3, backoff="10ms", lease="1s")
    async def bill(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((order["n"], delivery.attempt))
        if order["n"] == 1 and not healed:
            raise ValueError("not yet")
        if order["n"] == 2:
            raise Bury("never")

    await orders.add_many([{"n": number} for number in range(4)])
    async with app.worker():
        await wait_until(lambda: len(seen) == 6, 15)
        assert seen == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
        letters = await orders.dead_letters.listed(group=GROUP)
        assert [(letter.reason, letter.error, letter.attempts) for letter in letters] == [
            ("not yet", "ValueError", 3),
            ("never", "Bury", 1),
        ]
        assert letters[0].payload == b'{"n":1}'
        healed = True
        replayed = await orders.dead_letters.replay(where=lambda letter: letter.error == "ValueError")
        assert [one.kind for one in replayed] == ["copy"]
        await wait_until(lambda: seen[-1] == (1, 1))
        await wait_until_zero(orders)
    assert await orders.dead_letters.count() == 1


async def test_a_plain_def_may_be_ordered_and_end_its_delivery_itself(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    app = make_app(server)
    orders = app.stream(stream, partitions=2)
    seen: list[int] = []

    @orders.handler(group=GROUP, ordered=True, lease="1s")
    def bill(order: dict[str, Any], delivery: SyncDelivery) -> None:
        seen.append(order["n"])
        if order["n"] % 2:
            delivery.bury("odd")

    await orders.add_many([{"n": number} for number in range(10)])
    async with app.worker():
        await wait_until(lambda: len(seen) == 10, 15)
        await wait_until_zero(orders)
    assert await orders.dead_letters.count() == 5


async def test_workers_share_the_partitions_and_take_over_where_another_stopped(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 51: takeover without loss or reorder; a deploy burns nothing."""
    app = make_app(server)
    orders = app.stream(stream, partitions=4)
    seen: list[tuple[str, int, str, int]] = []

    @orders.handler(group=GROUP, ordered=True, lease="1s")
    async def bill(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((order["customer"], order["n"], delivery.owner, delivery.attempt))
        await asyncio.sleep(0.002)

    async with app.worker() as first:
        for number in range(40):
            await orders.add({"customer": f"c{number % 8}", "n": number}, partition_key=f"c{number % 8}")
        await wait_until(lambda: len(seen) >= 10, 15)
        async with app.worker() as second:
            await first.stop()
            for number in range(40, 80):
                await orders.add({"customer": f"c{number % 8}", "n": number}, partition_key=f"c{number % 8}")
            await wait_until(lambda: len(seen) >= 80, 15)
            await wait_until_zero(orders)
            owner = second.owner
    for customer in {one[0] for one in seen}:
        numbers = [n for name, n, _, _ in seen if name == customer]
        assert numbers == sorted(numbers)
        assert len(numbers) == len(set(numbers)) == 10
    assert {attempt for *_, attempt in seen} == {1}
    assert seen[-1][2] == owner


# ── announced, and kept so ───────────────────────────────────────────────────────────────────────────


def ordered_app(app: App, stream: str) -> tuple[Any, list[int]]:
    """Four ordered partitions, and the numbers their handler has seen."""
    orders, seen = app.stream(stream, partitions=4), list[int]()

    @orders.handler(group=GROUP, ordered=True, lease="1s")
    async def bill(order: dict[str, Any]) -> None:
        seen.append(order["n"])

    return orders, seen


async def test_a_worker_that_may_not_announce_its_partitions_fails_at_once(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 52: it would run, and own nothing."""
    server = own_server(server_key, tcp=True)
    server.sync().execute_command("ACL", "SETUSER", "mute", "on", ">s", "~*", "&*", "+@all", "-xadd")
    app = make_app(f"redis://mute:s@127.0.0.1:{server.port}")
    ordered_app(app, stream)
    with pytest.raises(MissingRight):
        async with app.worker():
            raise AssertionError("a worker started")


async def test_partitions_that_a_full_server_did_not_take_are_announced_when_there_is_space(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 54: OOM: back off and go on; what else the worker does need not wait for it."""
    server = own_server(server_key)
    app = make_app(server)
    orders, seen = ordered_app(app, stream)
    other, also = app.stream(f"{stream}-other"), list[int]()

    @other.handler(group=GROUP, lease="1s")
    async def note(order: dict[str, Any]) -> None:
        also.append(order["n"])

    await orders.add_many([{"n": number} for number in range(8)])
    await other.add({"n": 1})
    server.sync().config_set("maxmemory", 1)
    async with asyncio.timeout(10), app.worker():
        await wait_until(lambda: also == [1])
        assert seen == []
        server.sync().config_set("maxmemory", 0)
        await wait_until(lambda: sorted(seen) == list(range(8)), 8)


async def test_a_worker_of_known_partitions_starts_on_a_full_server(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """DESIGN 2: what is there is worked off under maxmemory, also by a worker that starts now."""
    server = own_server(server_key)
    app = make_app(server)
    orders, seen = ordered_app(app, stream)
    async with app.worker():
        await orders.add({"n": 0})
        await wait_until(lambda: seen == [0])
    await orders.add_many([{"n": number} for number in range(1, 9)])
    server.sync().config_set("maxmemory", 1)
    async with asyncio.timeout(10), app.worker():
        await wait_until(lambda: sorted(seen) == list(range(9)))
    server.sync().config_set("maxmemory", 0)


async def test_partitions_are_owned_again_after_their_announcements_were_deleted(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 3 for partitions: nobody else would announce them, so the workers do."""
    app = make_app(server)
    orders, seen = ordered_app(app, stream)
    async with pool(app, 2):
        await orders.add_many([{"n": number} for number in range(20)])
        await wait_until(lambda: sorted(seen) == list(range(20)))
        server.sync().delete(partition_assignments(stream))
        await wait_until(lambda: server.sync().xlen(partition_assignments(stream)) == 4)
        await orders.add_many([{"n": number} for number in range(20, 40)])
        await wait_until(lambda: sorted(set(seen)) == list(range(40)), 10)
        await wait_until_zero(orders)


async def test_partitions_are_owned_again_after_a_failover_lost_their_announcements(
    server: Server, stream: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FACTS: a failover loses what was just written: here the announcements, but not the group."""
    monkeypatch.setattr("headrace.announcer.ROUND_MS", 200)
    app = make_app(server)
    orders, seen = ordered_app(app, stream)
    keys = keys_of(partition_assignments(stream))
    async with pool(app, 2):
        await orders.add_many([{"n": number} for number in range(20)])
        await wait_until(lambda: sorted(seen) == list(range(20)))
        lost = server.sync().pipeline(transaction=True)
        lost.delete(keys.stream, keys.names).xgroup_create(keys.stream, GROUP, "0", mkstream=True).execute()
        await wait_until(lambda: server.sync().hlen(keys.names) == 4)
        await orders.add_many([{"n": number} for number in range(20, 40)])
        await wait_until(lambda: sorted(set(seen)) == list(range(40)), 10)


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8", "redis6")
async def test_a_new_group_may_begin_with_what_comes_next(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 3 for partitions: start is said of the messages, also where another group has had them announced before."""
    app, other = make_app(server), make_app(server)
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def serve(by: App, group: str) -> Any:
        orders = by.stream(stream, partitions=2)

        @orders.handler(group=group, ordered=True, start="$", recovery=InPlace())
        async def bill(order: dict[str, Any]) -> None:
            seen[group].append(order["n"])

        return orders

    orders = serve(app, "first")
    serve(other, "second")
    await orders.add_many([{"n": n} for n in range(4)])
    async with app.worker() as one:
        await wait_until(lambda: len(one.holdings[0].tenures) == 2)
        await orders.add_many([{"n": n} for n in range(4, 8)])
        await wait_until(lambda: len(seen["first"]) == 4)
        async with other.worker() as two:
            await wait_until(lambda: len(two.holdings[0].tenures) == 2)
            await orders.add_many([{"n": n} for n in range(8, 12)])
            await wait_until(lambda: len(seen["first"]) == 8 and len(seen["second"]) == 4)
    assert sorted(seen["first"]) == list(range(4, 12))
    assert sorted(seen["second"]) == list(range(8, 12))


@pytest.mark.parametrize(
    ("word", "value"), [("batch", 10), ("once", "1h"), ("delete_on_ack", True), ("recovery", Requeue())]
)
def test_what_makes_no_sense_in_order_is_refused(make_app: MakeApp, word: str, value: Any) -> None:
    orders = make_app("redis://localhost").stream("orders", partitions=4)
    with pytest.raises(HandlerRefused, match=word):

        @orders.handler(group=GROUP, ordered=True, **{word: value})
        async def bill(order: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match="rebalance is for ordered"):

        @orders.handler(group=GROUP, rebalance=True)
        async def other(order: dict[str, Any]) -> None: ...
