"""Reading: who reads, how much, and that nothing is stranded on the way (SPEC 1, 2, 4 to 7b)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace import App, Delivery, OwnerTaken, Release, Retry
from headrace.errors import Unavailable
from headrace.names import owner_name
from headrace.redis.calls import Call, as_is
from headrace.redis.connect import Server as Address
from headrace.redis.link import Link
from tests.support.looking import fill, orphan, pending, waiting
from tests.support.proxy import Proxy
from tests.support.servers import NATIVE, Server
from tests.support.stays import stays
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, Ledger, counted, pool

MakeApp = Callable[..., App]


# ── who ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8")
async def test_owners_are_named_after_pod_or_host_with_pid_and_a_random_suffix(
    server: Server, stream: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC 1: HEADRACE_OWNER, POD_NAME, HOSTNAME, the host name, in this order."""
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)
    names = []
    for variable in ("HOSTNAME", "POD_NAME", "HEADRACE_OWNER"):
        monkeypatch.setenv(variable, f"of-{variable.lower()}")
        async with app.worker() as worker:
            names.append(worker.owner)
            assert f"of-{variable.lower()}-{os.getpid()}-" in worker.owner
            assert worker.owner.encode() in server.sync().hkeys(f"{{{stream}}}:hr:owners:{GROUP}")
    assert len(set(names)) == 3


def test_two_processes_never_share_an_owner_name() -> None:
    """SPEC 1: also in two containers that have the same host name and the same pid."""
    words = [sys.executable, "-c", "from headrace.names import owner_name; print(owner_name('pod'))"]
    names = {subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    names |= {owner_name("pod") for _ in range(100)}
    assert len(names) == 102


async def _nothing(order: Any) -> None:
    pass


@pytest.mark.servers("redis8", "redis6")
async def test_a_fixed_name_in_use_is_refused_and_its_holder_named(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 2: while the first lives; when it has gone, or died a lease ago, the name is free."""
    first, second = (make_app(server, owner="worker-1") for _ in range(2))
    for app in (first, second):
        app.stream(stream).handler(group=GROUP, lease="300ms")(_nothing)
    async with first.worker():
        with pytest.raises(OwnerTaken, match=r"'worker-1' is in use by .*pid.*" + str(os.getpid())):
            async with second.worker():
                pass
        await stays(lambda: True, 0.4)  # longer than a lease: the first says that it lives
        with pytest.raises(OwnerTaken):
            async with second.worker():
                pass
    async with second.worker() as worker:
        assert worker.owner == "worker-1"
    # one that died without a word, longer than its lease ago
    entry = '{"seen_ms":1,"lease_ms":300,"token":"old"}'
    server.sync().hset(f"{{{stream}}}:hr:owners:{GROUP}", "worker-1", entry)
    async with first.worker() as worker:
        assert worker.owner == "worker-1"


@pytest.mark.servers("redis8", "redis6")
async def test_a_process_that_lost_its_fixed_name_cannot_end_what_its_successor_holds(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 2, 11: the owner's name is the same, so "taken by me" must not be read as "claimed by this process"."""
    first, second, ledger, go = (
        make_app(server, owner="twin"),
        make_app(server, owner="twin"),
        Ledger(),
        asyncio.Event(),
    )

    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await (go if delivery.attempt == 1 else asyncio.Event()).wait()

    for app in (first, second):
        app.stream(stream).handler(group=GROUP, lease="300ms")(bill)
    async with first.worker() as worker:
        await first.stream(stream).add({"n": 0})
        await wait_until(lambda: len(ledger) == 1)
        worker.lanes[0].reader.stop()
        for lifeline in worker._keepers.lifelines:
            lifeline.cut()
        await asyncio.sleep(0.4)  # its name is free after a lease
        async with second.worker() as successor:
            await wait_until(lambda: len(ledger) == 2)
            go.set()
            await wait_until(lambda: counted(first, "refused_total") == 1)
            assert [(held.owner, held.count) for held in pending(server, stream, GROUP).values()] == [("twin", 2)]
            successor.hurry()


# ── how much ─────────────────────────────────────────────────────────────────────────────────────────


async def test_no_worker_holds_more_than_its_free_slots(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 4: 10,000 waiting messages, 4 workers."""
    fill(server, stream, 10_000)
    app, go_on = make_app(server), asyncio.Event()
    orders, running = app.stream(stream), 0

    @orders.handler(group=GROUP, lease="5s", concurrency=7)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        nonlocal running
        running += 1
        try:
            await go_on.wait()
        finally:
            running -= 1

    most = 0

    def held() -> dict[str, int]:
        nonlocal most
        rows = server.sync().xpending(stream, GROUP)["consumers"]
        found = {row["name"].decode(): int(row["pending"]) for row in rows}
        most = max([most, *found.values()])
        return found

    async with pool(app, 4):
        await wait_until(lambda: sorted(held().values()) == [7] * 4)
        await stays(lambda: sorted(held().values()) == [7] * 4, 0.2)
        assert running == 28
        go_on.set()
        await wait_until(lambda: counted(app, "handled_total") >= 500 or held() is None)
    assert most <= 7


# ── that nothing is stranded ─────────────────────────────────────────────────────────────────────────


async def test_a_read_that_waits_is_ended_by_shutdown_at_once(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 5: CLIENT UNBLOCK; a read blocks at most min(5 s, L/4) anyway."""
    app = make_app(server)
    app.stream(stream).handler(group=GROUP, lease="30s")(_nothing)
    loop = asyncio.get_running_loop()
    async with app.worker() as worker:
        await wait_until(lambda: worker.lanes[0].reader.blocked)
        begun = loop.time()
    assert loop.time() - begun < 1.5
    assert worker.lanes[0].member.settings.block_ms == 5_000


@pytest.mark.servers("redis8", "redis6")
async def test_adds_that_race_shutdowns_are_neither_stranded_nor_burnt(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 5: 30 adds racing 30 shutdowns. The lease is so long that whatever is stranded stays so."""
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="60s")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    adding: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    for n in range(30):
        async with app.worker() as worker:
            await wait_until(lambda: worker.lanes[0].reader.blocked, interval=0.001)
            if n % 3:
                server.sync().xadd(stream, {"payload": f'{{"n":{n}}}'})  # the reader's answer is in its socket
            else:
                adding = asyncio.ensure_future(orders.add({"n": n}))
            for _ in range(n % 7):
                await asyncio.sleep(0)
        await adding
        assert pending(server, stream, GROUP) == {}
    async with app.worker():
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 30)
    assert sorted(seen.payload["n"] for seen in ledger.seen) == list(range(30))
    assert ledger.attempts == [1] * 30
    assert waiting(server, stream, GROUP) == {}


@pytest.mark.servers("redis8", "redis6")
async def test_what_a_cut_reply_brought_is_found_again_and_burns_no_attempt(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 5: 20 replies cut at different places; the owner asks for what it holds and does not know."""
    ledger = Ledger()
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        orders = app.stream(stream)

        @orders.handler(group=GROUP, lease="60s")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)

        async with app.worker():
            for n in range(20):
                proxy.cut_reply = _cut_at(b'{"n":', 17 * n)
                server.sync().xadd(stream, {"payload": f'{{"n":{n}}}'})
                await wait_until(lambda: len(ledger) == n + 1, 10, what=f"message {n}")  # noqa: B023
            proxy.cut_reply = None
            await wait_until(lambda: pending(server, stream, GROUP) == {})
        await app.close()
    assert [seen.payload["n"] for seen in ledger.seen] == list(range(20))
    assert ledger.attempts == [1] * 20
    assert counted(app, "found_total") == 20
    assert counted(app, "refused_total") == 0


@pytest.mark.servers("redis8", "redis6")
async def test_after_a_cut_reply_only_the_own_old_connection_is_closed(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 5: a server that was started again gives the same numbers to others, who are none of our business."""
    app, redis = make_app(server), server.sync()
    app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)

    async with app.worker() as worker, AsyncExitStack() as stack:
        lane = worker.lanes[0]

        async def closed(name: str | None) -> bool:
            """Whether a connection of that name, taken for the old one, is closed when the reader asks."""
            other = Address(server.url).sync_link(name or "nobody")
            other.open()
            stack.callback(other.close)
            if name is None:
                other.call(Call(("CLIENT", "SETNAME", ""), as_is))
            lane.reader._mistrust()
            lane.reader._old_client = (lane.read_link.node, other.client_id)
            await wait_until(lambda: lane.reader._reconcile_at > 0)
            return not await asyncio.to_thread(lambda: redis.client_list(client_id=[other.client_id]))

        assert not await closed("somebody-else")
        assert not await closed("headrace:another-1-a:read:00000000")
        assert not await closed(lane.out_link.name)
        assert not await closed(None), "without a name nobody can tell"
        assert await closed(lane.read_link.name)


@pytest.mark.servers("redis8", "redis6")
async def test_more_than_fits_is_found_again_as_slots_fall_free(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 5: a cut reply may have brought more than there are slots for now, because its acks had freed some."""
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="60s", concurrency=2)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        await asyncio.sleep(0.01)

    async with app.worker() as worker:
        await wait_until(lambda: worker.lanes[0].reader.blocked)
        pipe = server.sync().pipeline(transaction=True)
        for n in range(10):
            pipe.xadd(stream, {"payload": f'{{"n":{n}}}'})
        pipe.xreadgroup(GROUP, worker.owner, {stream: ">"}, count=10)
        pipe.execute()
        worker.lanes[0].reader._mistrust()
        await wait_until(lambda: len(ledger) == 10, 10)
        await wait_until(lambda: pending(server, stream, GROUP) == {})
    assert sorted(seen.payload["n"] for seen in ledger.seen) == list(range(10))
    assert ledger.attempts == [1] * 10


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("way", ["retry", "release"])
async def test_a_handed_back_message_whose_answers_were_all_cut_burns_no_attempt(
    server: Server, stream: str, make_app: MakeApp, way: str
) -> None:
    """SPEC 5, 25: the outcome happened and its answer was cut, then it was due again here and that answer was cut too.
    The outcome that is sent again finds the message in the hands of this very process, with a count nobody started."""
    app, ledger = make_app(server), Ledger()

    @app.stream(stream).handler(group=GROUP, lease="60s", max_attempts=2, concurrency=2)
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)
        if len(ledger) == 1 and way == "retry":
            raise Retry(after=0)
        if len(ledger) == 1:
            raise Release(after=0)

    async with app.worker() as worker:
        lane = worker.lanes[0]
        due = _deaf(lane.read_link, "due")
        cut = due, _deaf(lane.out_link, "park", until=due)
        server.sync().xadd(stream, {"payload": "{}"})
        await wait_until(lambda: all(each == [1] for each in cut), 10, what="both answers to be cut")
        await wait_until(lambda: len(ledger) == 2, 10)
        await wait_until(lambda: pending(server, stream, GROUP) == {})
    assert ledger.attempts == ([1, 2] if way == "retry" else [1, 1])
    assert server.sync().xlen(f"{{{stream}}}:dlq") == 0


def _deaf(link: Link, script: str, *, until: list[int] | None = None) -> list[int]:
    """The first answer to a script that hands something over is lost on its way, and then the server cannot be reached
    over this link ``until`` the other one is lost, too. Tells when that has happened."""
    pipe, lost = link.pipe, list[int]()

    async def deaf(calls: Sequence[Call[Any]], *, wait_ms: int = 0) -> list[Any]:
        if lost and until == []:
            raise Unavailable("the server is away")
        answers = await pipe(calls, wait_ms=wait_ms)
        names = [call.script.name for call in calls if call.script is not None]
        if not lost and script in names and (script != "due" or answers[0].taken):
            lost.append(1)
            raise Unavailable("the answer was lost")
        return answers

    link.pipe = deaf  # type: ignore[method-assign]
    return lost


def _cut_at(mark: bytes, place: int) -> Callable[[bytes], int | None]:
    """Cut the first reply that brings a message, at a place that is inside of it."""
    cuts: list[int] = []

    def cut(data: bytes) -> int | None:
        if cuts or mark not in data:
            return None
        cuts.append(place % len(data))
        return cuts[0]

    return cut


@pytest.mark.servers("redis8", "redis6")
async def test_acks_whose_reply_was_cut_are_sent_again_and_nothing_runs_twice(
    server: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 5, 23: connections are cut at every tenth reply while 500 messages go through."""
    fill(server, stream, 500)
    ledger, replies = Ledger(), 0
    async with Proxy(server.socket) as proxy:
        app = make_app(proxy.url)
        orders = app.stream(stream)

        @orders.handler(group=GROUP, lease="60s", concurrency=10)
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note(order, delivery)

        def cut(data: bytes) -> int | None:
            nonlocal replies
            replies += 1
            return len(data) // 2 if replies > 20 and replies % 10 == 0 and replies < 200 else None

        async with app.worker():
            proxy.cut_reply = cut
            await wait_until(lambda: len(ledger) >= 500, 30)
            await wait_until(lambda: pending(server, stream, GROUP) == {}, 10)
        await app.close()
    assert len(ledger) == len(set(ledger.ids)) == 500
    assert set(ledger.attempts) == {1}
    assert counted(app, "refused_total") == 0


# ── both roads ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_road_is_chosen_by_what_the_server_can_do(server: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 6: one XREADGROUP with CLAIM where there is one; else the rescue script. The result is the same."""
    fill(server, stream, 3)
    ids = orphan(server, stream, GROUP, 3, idle_ms=60_000)
    app, ledger = make_app(server), Ledger()
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="400ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    async with app.worker() as worker:
        assert worker.capabilities is not None
        assert worker.capabilities.claim == (server.key in NATIVE)
        await wait_until(lambda: len(ledger) == 3)
    assert sorted(ledger.ids) == sorted(ids)
    assert ledger.attempts == [2, 2, 2]


async def test_a_slow_stream_does_not_starve_another_in_the_same_worker(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 7: per-stream concurrency, one read per stream."""
    app, done = make_app(server), []
    slow, fast = app.stream(f"{prefix}-slow"), app.stream(f"{prefix}-fast")
    fill(server, slow.name, 50)
    fill(server, fast.name, 300)

    @slow.handler(group=GROUP, lease="500ms", concurrency=2)
    async def crawl(order: Any) -> None:
        await asyncio.sleep(30)

    @fast.handler(group=GROUP, lease="2s", concurrency=10)
    async def bill(order: Any) -> None:
        done.append(order["n"])

    async with app.worker() as worker:
        await wait_until(lambda: len(done) == 300, 10)
        assert len(pending(server, slow.name, GROUP)) == 2
        worker.hurry()
    assert sorted(done) == list(range(300))


@pytest.mark.servers("redis8", "valkey9")
async def test_one_missing_group_fails_no_other_stream_of_the_worker(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 7, 3: the group of one stream vanishes; the other stream goes on, and the first comes back."""
    app, ledger = make_app(server), Ledger()
    streams = [app.stream(f"{prefix}-{name}") for name in ("a", "b")]
    for stream in streams:

        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            ledger.note((delivery.stream, order["n"]), delivery)

        stream.handler(group=GROUP, lease="400ms")(bill)
    async with app.worker():
        server.sync().delete(streams[0].name)
        for n in range(3):
            await streams[1].add({"n": n})
        await wait_until(lambda: len(ledger) == 3)
        await streams[0].add({"n": 3})
        await wait_until(lambda: len(ledger) == 4)
    assert ledger.seen[-1].payload == (streams[0].name, 3)


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_with_a_shorter_lease_rescues_by_the_longer_one_and_warns(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 7b: the lease belongs to the group."""
    patient, hasty, ledger = make_app(server), make_app(server), Ledger()
    patient.stream(stream).handler(group=GROUP, lease="1500ms")(_nothing)

    @hasty.stream(stream).handler(group=GROUP, lease="300ms")
    async def bill(order: Any, delivery: Delivery[Any]) -> None:
        ledger.note(order, delivery)

    fill(server, stream, 1)
    orphan(server, stream, GROUP, 1)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with patient.worker(concurrency=1) as long:
        long.lanes[0].reader.stop()  # it lives and renews, and leaves the orphan to the other
        async with hasty.worker():
            await wait_until(lambda: len(ledger) == 1)
    assert loop.time() - begun >= 1.4
    assert "lease.differs" in caplog.text
