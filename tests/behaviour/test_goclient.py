"""The protocol of redis-stream-client-go, spoken beside a peer that behaves as the Go client does (SPEC 44, 47).

No Go program runs here: the frames (go_frames.json) were recorded from one, and the peer (tests/support/gopeer.py) is
written from the Go client's sources and held against the recording.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import hiredis
import pytest

from headrace import App
from headrace.errors import Unavailable
from headrace.goclient import (
    Added,
    AlreadyClaimed,
    Announcement,
    Disowned,
    Event,
    Expired,
    GoClient,
    NotOwned,
    PodNameMissing,
    Terminated,
)
from headrace.goclient.calls import Said
from headrace.goclient.protocol import consumer_name, read_lock
from tests.support.gopeer import FRAMES
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.stays import stays
from tests.support.wait import wait_until

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]
ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, Any] = {"lock": "1s", "interval": "300ms", "min_idle": "1500ms"}
ROOM = "room:42"


class Peer:
    """A Go pod as a process."""

    def __init__(self, folder: Path, url: str, service: str, pod: str, **settings: Any) -> None:
        told = {"url": url, "service": service, "hb_ms": 1_000, "interval_ms": 300, "min_idle_ms": 1_500, **settings}
        self.out = folder / f"{pod}.jsonl"
        with self.out.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.gopeer", json.dumps(told)],
                cwd=ROOT,
                env={**os.environ, "POD_NAME": pod},
                stdin=subprocess.PIPE,
                stdout=sink,
            )

    def events(self, kind: str, **about: Any) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind and about.items() <= line.items()]

    async def until(self, kind: str, timeout: float = 10.0, **about: Any) -> dict[str, Any]:
        found = await wait_until(lambda: self.events(kind, **about), timeout, what=f"the peer's {kind} {about}")
        return found[0]

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(where: Server | Proxy, service: str, pod: str = "go-1", **settings: Any) -> Peer:
        peers.append(Peer(tmp_path, where.url, service, pod, **settings))
        return peers[-1]

    yield start
    for one in peers:
        one.end()


class Ours:
    """A client of ours and what it told."""

    def __init__(self, client: GoClient) -> None:
        self.client = client
        self.seen: list[Event] = []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def until(self, kind: type, n: int = 1, timeout: float = 10.0) -> Any:
        await wait_until(lambda: len(self.of(kind)) >= n, timeout, what=f"{n} × {kind.__name__}")
        return self.of(kind)[n - 1]


@asynccontextmanager
async def ours(app: App, service: str, pod: str = "py-1", **other: Any) -> AsyncIterator[Ours]:
    client = GoClient(app, service, consumer=f"redis-consumer-{pod}", **{**QUICK, **other})
    told = Ours(client)

    async def collect() -> None:
        async for event in client.events():
            told.seen.append(event)

    async with client:
        task = asyncio.create_task(collect())
        yield told
    await asyncio.wait_for(task, 5)


async def die(client: GoClient) -> None:
    """As after SIGKILL: nothing is said any more, and nothing handed back."""
    for task in client._tasks:
        task.cancel()
    await client._holder.stop()
    await client._read_link.close()


def pending(server: Server, service: str) -> int:
    return server.sync().xpending(f"{service}-input", f"{service}-group")["pending"]


# ── the two together ──


async def test_what_go_announced_is_owned_and_finished_by_us_and_nothing_is_left(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 47: the bytes of the Go client's producer; ack, delete and unlock as its DoneStream."""
    redis = server.sync()
    payload = '{"DataStreamName":"%s:room:42","Info":{"tenant":"a"}}' % prefix  # noqa: UP031 - braces
    redis.execute_command("xadd", f"{prefix}-input", "*", "lbs-input", payload)
    async with ours(make_app(server), prefix) as mine:
        added = await mine.until(Added)
        assert (added.stream, added.info, added.attempt) == (f"{prefix}:room:42", {"tenant": "a"}, 1)
        lock = f"{prefix}:room:42<MUTEX_KEY_SEP>{added.id}"
        assert redis.get(lock).startswith(b"redis-consumer-py-1")
        assert 0 < redis.pttl(lock) <= 1_000
        assert mine.client.streams == [f"{prefix}:room:42"]
        await mine.client.done_stream(f"{prefix}:room:42")
        assert redis.exists(lock) == 0
        with pytest.raises(NotOwned):
            await mine.client.done_stream(f"{prefix}:room:42")
    assert isinstance(mine.seen[-1], Terminated)
    assert pending(server, prefix) == 0
    assert redis.xlen(f"{prefix}-input") == 0


async def test_what_we_announced_is_owned_and_finished_by_a_go_pod(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    server = own_server(server_key)
    go = peer(server, "rooms")
    await go.until("ready")
    client = GoClient(make_app(server), "rooms", consumer="redis-consumer-py-1", **QUICK)
    await client.announce(ROOM, {"tenant": "a"})
    added = await go.until("added", stream=ROOM)
    assert added["info"] == {"tenant": "a"}
    go.say(f"done {ROOM}")
    await go.until("done", stream=ROOM)
    assert pending(server, "rooms") == 0
    assert server.sync().xlen("rooms-input") == 0


async def test_a_killed_go_pods_stream_goes_to_us_by_its_hint(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    """SPEC 44, 47: Expired names who had it; claim() puts it back; Added comes to the one that reads it."""
    server = own_server(server_key)
    go = peer(server, "rooms")
    await go.until("ready")
    app = make_app(server)
    await GoClient(app, "rooms", consumer="x", **QUICK).announce(ROOM, {"n": 1})
    await go.until("added", stream=ROOM)
    async with ours(app, "rooms", interval="60s") as mine:
        await asyncio.sleep(1.5)
        assert mine.seen == []
        go.process.kill()
        expired = await mine.until(Expired)
        assert (expired.stream, expired.owner) == (ROOM, "redis-consumer-go-1")
        await mine.client.claim(expired)
        with pytest.raises(AlreadyClaimed):
            await mine.client.claim(expired)
        added = await mine.until(Added)
        assert (added.stream, added.info, added.attempt) == (ROOM, {"n": 1}, 2)
        await mine.client.done_stream(ROOM)
    assert pending(server, "rooms") == 0


async def test_a_killed_go_pods_stream_goes_to_us_without_notifications(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    """SPEC 21: the scan alone does it."""
    server = own_server(server_key)
    go = peer(server, "rooms")
    await go.until("ready")
    app = make_app(server)
    await GoClient(app, "rooms", consumer="x", **QUICK).announce(ROOM)
    await go.until("added", stream=ROOM)
    server.sync().config_set("notify-keyspace-events", "")
    async with ours(app, "rooms") as mine:
        await asyncio.sleep(2)
        assert mine.seen == []  # far beyond the minimal idle time, and alive: skipped
        assert app.recorder.total("recovery_scan_skipped_alive_total") > 0  # type: ignore[attr-defined]
        go.process.kill()
        added = await mine.until(Added)
        assert (added.stream, added.attempt) == (ROOM, 2)
        await mine.client.done_stream(ROOM)


async def test_a_go_pod_takes_over_what_our_dead_process_held(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    server = own_server(server_key)
    app = make_app(server)
    client = GoClient(app, "rooms", consumer="redis-consumer-py-1", **QUICK)
    await client.start()
    await client.announce(ROOM, {"n": 1})
    await wait_until(lambda: client.streams == [ROOM])
    go = peer(server, "rooms")
    await go.until("ready")
    await asyncio.sleep(2)
    assert go.events("added") == []
    await die(client)
    added = await go.until("added", stream=ROOM)
    assert (added["info"], added["retries"]) == ({"n": 1}, "1")
    go.say(f"done {ROOM}")
    await go.until("done", stream=ROOM)
    with pytest.raises(NotOwned):
        await client.done_stream(ROOM)
    await client.done()
    assert pending(server, "rooms") == 0


async def test_a_slow_owner_of_ours_is_never_robbed_by_a_go_pod(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    """Also while its event loop is blocked for several lives of its lock: a thread keeps it."""
    server = own_server(server_key)
    app = make_app(server)
    async with ours(app, "rooms") as mine:
        await mine.client.announce(ROOM)
        await mine.until(Added)
        go = peer(server, "rooms", min_idle_ms=500)
        await go.until("ready")
        await asyncio.to_thread(signal.sigtimedwait, [], 1)  # the loop turns
        signal.sigtimedwait([], 3)  # the loop stands still
        await asyncio.sleep(0.5)
        assert go.events("added") == go.events("requeued") == []
        await mine.client.done_stream(ROOM)


async def test_an_owner_that_lost_its_entry_hears_it_although_its_lock_key_is_free(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """The Go client's worst race: a requeued entry has a new id, so a paused owner's old lock can always be retaken."""
    redis, app = server.sync(), make_app(server)
    async with ours(app, prefix) as mine:
        await mine.client.announce(f"{prefix}:room")
        added = await mine.until(Added)
        # What a Go pod does with an entry whose lock it finds gone:
        redis.delete(f"{prefix}:room<MUTEX_KEY_SEP>{added.id}")
        redis.xack(f"{prefix}-input", f"{prefix}-group", added.id)
        redis.xadd(f"{prefix}-input", {"lbs-input": Announcement(f"{prefix}:room").json(), "_retry_count": "1"})
        redis.xdel(f"{prefix}-input", added.id)
        disowned = await mine.until(Disowned)
        assert (disowned.stream, disowned.id) == (f"{prefix}:room", added.id)
        again = await mine.until(Added, 2)
        assert again.attempt == 2
        await mine.client.done_stream(f"{prefix}:room")


async def test_done_hands_back_what_is_unfinished_at_once_and_burns_no_retry(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 44: the Go client's Done acknowledges and deletes it."""
    app = make_app(server)
    async with ours(app, prefix, "py-1") as leaving:
        await leaving.client.announce(f"{prefix}:room", {"n": 1})
        await leaving.until(Added)
    async with ours(app, prefix, "py-2", interval="60s") as staying:
        added = await staying.until(Added)
        assert (added.info, added.attempt) == ({"n": 1}, 1)
        await staying.client.done_stream(f"{prefix}:room")


async def test_two_that_claim_the_same_stream_one_wins(server: Server, prefix: str, make_app: MakeApp) -> None:
    """SPEC 44: and a live owner's stream cannot be claimed at all."""
    redis, app = server.sync(), make_app(server)
    stream, group, room = f"{prefix}-input", f"{prefix}-group", f"{prefix}:room"
    id_ = redis.xadd(stream, {"lbs-input": Announcement(room).json()})
    redis.xgroup_create(stream, group, "0")
    redis.xreadgroup(group, "redis-consumer-dead", {stream: ">"})
    redis.xclaim(stream, group, "redis-consumer-dead", 0, [id_], idle=60_000, justid=True)
    orphan = Expired(room, "redis-consumer-dead", id_.decode())
    async with ours(app, prefix, "py-1", interval="60s") as one, ours(app, prefix, "py-2", interval="60s") as two:
        clients = (one.client, two.client)
        answers = await asyncio.gather(*(client.claim(orphan) for client in clients), return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyClaimed", "NoneType"]
        await wait_until(lambda: one.of(Added) + two.of(Added))
        (added,) = one.of(Added) + two.of(Added)
        assert (added.stream, added.attempt) == (room, 2)
        with pytest.raises(AlreadyClaimed, match=r"fresh|alive"):
            await one.client.claim(Expired(room, "", added.id))


async def test_an_entry_that_nobody_can_read_is_buried_and_reading_goes_on(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """It ends the reading of every Go pod that it comes to."""
    redis = server.sync()
    redis.xadd(f"{prefix}-input", {"lbs-input": "no json"})
    redis.xadd(f"{prefix}-input", {"something": "else"})
    deep = '{"DataStreamName":"deep","Info":%s}' % ('{"a":' * 200_000 + "1" + "}" * 200_000)
    redis.xadd(f"{prefix}-input", {"lbs-input": deep})
    redis.xadd(f"{prefix}-input", {"lbs-input": '{"DataStreamName":"digits","Info":{"n":%s}}' % ("9" * 5_000)})
    redis.xadd(f"{prefix}-input", {"lbs-input": Announcement(f"{prefix}:room").json()})
    async with ours(make_app(server), prefix) as mine:
        added = await mine.until(Added)
        assert added.stream == f"{prefix}:room"
        await mine.client.done_stream(f"{prefix}:room")
    dead = redis.xrange(f"{prefix}-input-dlq")
    assert [fields[b"_dlq_reason"] for _, fields in dead] == [b"unparseable"] * 4
    assert pending(server, prefix) == 0


async def test_a_name_that_is_no_text_is_read_as_go_reads_it(server: Server, prefix: str, make_app: MakeApp) -> None:
    """Go's encoding/json puts U+FFFD for a lone surrogate and for each byte that is no UTF-8: a Go pod locks that."""
    redis, stream = server.sync(), f"{prefix}-input"
    redis.xadd(stream, {"lbs-input": '{"DataStreamName":"%s:\\ud800","Info":{}}' % prefix})  # noqa: UP031 - braces
    redis.xadd(stream, {"lbs-input": b'{"DataStreamName":"%s:\xe2\x82","Info":{}}' % prefix.encode()})
    names = [f"{prefix}:\ufffd", f"{prefix}:\ufffd\ufffd"]
    async with ours(make_app(server), prefix) as mine:
        await mine.until(Added, 2)
        assert [added.stream for added in mine.of(Added)] == names
        locks = [f"{added.stream}<MUTEX_KEY_SEP>{added.id}" for added in mine.of(Added)]
        assert redis.exists(*locks) == 2
        for name in names:
            await mine.client.done_stream(name)
    assert pending(server, prefix) == 0
    assert redis.exists(f"{stream}-dlq") == 0


async def test_an_error_in_the_middle_of_a_batch_leaves_nothing_read_and_unlocked(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """The connection breaks at the second of four locks: all are added, at once and without a retry."""
    redis, cut = server.sync(), []

    def once(data: bytes) -> bool:
        if b":1<MUTEX_KEY_SEP>" not in data or cut:
            return True
        cut.append(data)
        return False

    for n in range(4):
        redis.xadd(f"{prefix}-input", {"lbs-input": Announcement(f"{prefix}:{n}").json()})
    async with Proxy(server.socket) as way:
        way.on_request = once
        async with ours(make_app(way.url), prefix, min_idle="60s", interval="60s") as mine:
            await mine.until(Added, 4)
            assert cut
            assert {(added.stream, added.attempt) for added in mine.of(Added)} == {
                (f"{prefix}:{n}", 1) for n in range(4)
            }
            for stream in mine.client.streams:
                await mine.client.done_stream(stream)
    assert pending(server, prefix) == 0


async def test_what_was_read_is_locked_soon_after_the_server_is_back(
    server: Server, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the lock's life for which nobody scans (SPEC 20), however long the server was away."""
    async with ours(make_app(server), prefix) as mine:
        fails, hold = list(range(10)), mine.client._ways.hold

        async def away(stream: str, id_: str) -> Said:
            if fails:
                fails.pop()
                raise Unavailable("away")
            return await hold(stream, id_)

        monkeypatch.setattr(mine.client._ways, "hold", away)
        await mine.client.announce(f"{prefix}:room")
        assert (await mine.until(Added, timeout=5)).attempt == 1  # doubling, ten waits are 25 s at least


async def test_done_hands_back_what_was_read_and_never_locked(
    server: Server, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = server.sync()
    for n in range(3):
        redis.xadd(f"{prefix}-input", {"lbs-input": Announcement(f"{prefix}:{n}").json()})
    redis.xadd(f"{prefix}-input", {"lbs-input": "no json"})

    async def away(*_: object) -> None:
        raise Unavailable("away")

    async with ours(make_app(server), prefix, interval="60s") as leaving:
        monkeypatch.setattr(leaving.client._ways, "hold", away)
        monkeypatch.setattr(leaving.client._reader, "_bury", away)
        await wait_until(lambda: pending(server, prefix) == 4)
    async with ours(make_app(server), prefix, "py-2", interval="60s") as staying:
        await staying.until(Added, 3)
        assert {added.attempt for added in staying.of(Added)} == {1}


@pytest.mark.parametrize("task", ["_reader._take", "_scanner.scan", "_expired.get"])
async def test_whatever_ends_a_task_of_ours_is_the_last_event(
    server: Server, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """A client that no longer reads, scans or listens must not keep its locks and say nothing."""

    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with ours(make_app(server), prefix) as mine:
        owner, _, name = f"client.{task}".rpartition(".")
        monkeypatch.setattr(operator.attrgetter(owner)(mine), name, fail)
        await mine.client.announce(f"{prefix}:room")
        await mine.client.announce(f"{prefix}:other")
        mine.client._expired.put_nowait(("x", "1-1"))
        assert (await mine.until(Terminated)).reason == "RuntimeError: a bug"


async def test_whatever_ends_the_thread_that_locks_is_the_last_event(
    server: Server, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with ours(make_app(server), prefix) as mine:
        monkeypatch.setattr(mine.client._holder, "_extend", fail)
        await mine.client.announce(f"{prefix}:room")
        await mine.until(Added)
        assert (await mine.until(Terminated)).reason == "RuntimeError: a bug"


async def test_what_we_own_is_never_old_to_who_goes_by_idle_time_alone(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """Older releases of the Go client take over with XAUTOCLAIM, whatever the lock says."""
    redis = server.sync()
    async with ours(make_app(server), prefix) as mine:
        await mine.client.announce(f"{prefix}:room")
        await mine.until(Added)
        await asyncio.sleep(1.5)
        (row,) = redis.xpending_range(f"{prefix}-input", f"{prefix}-group", "-", "+", 10)
        assert row["time_since_delivered"] < 1_000
        assert row["times_delivered"] == 1


async def test_orphans_behind_a_page_of_live_owners_are_recovered(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    redis = server.sync()
    stream, group = f"{prefix}-input", f"{prefix}-group"
    ids = [redis.xadd(stream, {"lbs-input": Announcement(f"{prefix}:{n}").json()}) for n in range(8)]
    redis.xgroup_create(stream, group, "0")
    redis.xreadgroup(group, "redis-consumer-go", {stream: ">"})
    redis.xclaim(stream, group, "redis-consumer-go", 0, ids, idle=60_000, justid=True)
    for n, id_ in enumerate(ids[:6]):
        redis.set(f"{prefix}:{n}<MUTEX_KEY_SEP>{id_.decode()}", "redis-consumer-go")
    async with ours(make_app(server), prefix, batch=2, interval="60s") as mine:
        await mine.until(Added, 2)
        assert mine.client.streams == [f"{prefix}:6", f"{prefix}:7"]


async def test_a_cut_connection_shorter_than_a_lock_costs_no_stream(
    server_key: str, own_server: OwnServer, make_app: MakeApp
) -> None:
    """The Go client gives a stream up at the first extension that fails."""
    server = own_server(server_key)
    redis = server.sync()
    async with ours(make_app(server), "rooms", lock="2s") as mine:
        redis.xadd("rooms-input", {"lbs-input": Announcement(ROOM).json()})
        await mine.until(Added)
        for _ in range(3):
            redis.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.7)
        assert mine.of(Disowned) == []
        await mine.client.done_stream(ROOM)
    assert pending(server, "rooms") == 0


async def test_what_a_cut_reply_brought_is_found_again_and_costs_no_retry(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    """SPEC 5 for this protocol: scans, which would cost a retry, are a minute away."""

    def cut(reply: bytes) -> int | None:
        at = reply.find(b"DataStreamName")
        if at >= 0:
            proxy.cut_reply = None
            return at
        return None

    async with Proxy(server.socket) as proxy, ours(make_app(proxy.url), prefix, interval="60s") as mine:
        for number in range(2):
            proxy.cut_reply = cut
            server.sync().xadd(f"{prefix}-input", {"lbs-input": Announcement(f"{prefix}:{number}").json()})
            added = await mine.until(Added, number + 1)
            assert proxy.cut_reply is None
            assert added.stream == f"{prefix}:{number}"
        assert server.sync().xlen(f"{prefix}-input") == 2  # none was appended again


@pytest.mark.servers("redis6")
@pytest.mark.parametrize("how", ["paused", "killed"])
async def test_after_an_outage_nothing_of_a_live_owner_is_requeued_or_told_as_expired(
    own_server: OwnServer, server_key: str, make_app: MakeApp, how: str
) -> None:
    """SPEC 20: away for longer than lock and min_idle; the owner locks 200 ms after everybody else's words."""
    config = {"appendfsync": "always", "notify-keyspace-events": "Ex"}
    server = own_server(server_key, aof=True, config=config)
    slow: dict[str, Any] = {"lock": "2s", "min_idle": "2s", "interval": "100ms"}
    app = make_app(server)
    async with (
        Proxy(server.socket) as way,
        ours(make_app(way.url), "rooms", **{**slow, "interval": "60s"}) as owner,
    ):
        await owner.client.announce(ROOM)
        added = await owner.until(Added)
        async with ours(app, "rooms", "py-2", **slow) as heir:
            orphan = Expired(ROOM, owner.client.consumer, added.id)
            await asyncio.to_thread(server.pause if how == "paused" else server.kill)
            await asyncio.sleep(4)  # the length of the outage
            early = asyncio.create_task(claimed(heir.client, orphan))  # on its way when the server is back
            way.holding = True
            await asyncio.to_thread(server.cont if how == "paused" else server.restart)
            await asyncio.sleep(0.2)
            way.holding = False
            assert await asyncio.wait_for(early, 10) == "AlreadyClaimed"
            assert await claimed(heir.client, orphan) == "AlreadyClaimed"
            await stays(lambda: not heir.seen and not owner.of(Disowned), 3)
            assert heir.client.streams == []
            # the rule delays, and does not forbid
            await die(owner.client)
            assert (await heir.until(Added)).attempt == 2
            await heir.client.done_stream(ROOM)
    assert pending(server, "rooms") == 0


async def test_a_claim_that_waits_for_the_owners_to_lock_ends_with_its_client(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    redis = server.sync()
    stream, group, room = f"{prefix}-input", f"{prefix}-group", f"{prefix}:room"
    id_ = redis.xadd(stream, {"lbs-input": Announcement(room).json()})
    redis.xgroup_create(stream, group, "0")
    redis.xreadgroup(group, "redis-consumer-go", {stream: ">"})
    redis.xclaim(stream, group, "redis-consumer-go", 0, [id_], idle=60_000, justid=True)
    async with ours(make_app(server), prefix, lock="2s", interval="60s") as mine:
        claim = asyncio.create_task(mine.client.claim(Expired(room, "", id_.decode())))
        await stays(lambda: not claim.done(), 0.5)  # just connected: its owner may be alive
        assert pending(server, prefix) == 1
    with pytest.raises(Unavailable, match="ended"):
        await asyncio.wait_for(claim, 5)
    assert pending(server, prefix) == 1


async def claimed(client: GoClient, expired: Expired) -> str:
    """What a claim answers, if the server can be asked."""
    while True:
        try:
            await client.claim(expired)
        except Unavailable:
            await asyncio.sleep(0.01)
        except AlreadyClaimed as refused:
            return type(refused).__name__
        else:
            return "claimed"


async def test_done_before_start_and_done_twice_are_fine(server: Server, prefix: str, make_app: MakeApp) -> None:
    client = GoClient(make_app(server), prefix, consumer="redis-consumer-x", **QUICK)
    await client.done()
    await client.done()
    assert [event async for event in client.events()] == [Terminated("done")]


async def test_after_its_retries_an_entry_goes_to_the_go_clients_dead_letters(
    server: Server, prefix: str, make_app: MakeApp
) -> None:
    redis = server.sync()
    stream, group = f"{prefix}-input", f"{prefix}-group"
    id_ = redis.xadd(stream, {"lbs-input": Announcement(f"{prefix}:room").json(), "_retry_count": "3"})
    redis.xgroup_create(stream, group, "0")
    redis.xreadgroup(group, "redis-consumer-dead", {stream: ">"})
    redis.xclaim(stream, group, "redis-consumer-dead", 0, [id_], idle=60_000, justid=True)
    async with ours(make_app(server), prefix):
        await wait_until(lambda: redis.xlen(f"{stream}-dlq") == 1, 10)
    ((_, fields),) = redis.xrange(f"{stream}-dlq")
    assert (fields[b"_retry_count"], fields[b"_dlq_reason"]) == (b"4", b"max_retries_exceeded")
    assert pending(server, prefix) == 0


async def test_a_fleet_moves_over_pod_by_pod_and_every_stream_is_finished_once(
    server_key: str, own_server: OwnServer, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    """Two Go pods with twelve streams; ours join, the Go pods die one after the other; all twelve are finished."""
    server = own_server(server_key)
    first, second = peer(server, "rooms", "go-1"), peer(server, "rooms", "go-2")
    await first.until("ready")
    await second.until("ready")
    app = make_app(server)
    announcer = GoClient(app, "rooms", consumer="x", **QUICK)
    for n in range(12):
        await announcer.announce(f"room:{n}")
    await wait_until(lambda: len(first.events("added") + second.events("added")) == 12, 10)
    async with ours(app, "rooms", "py-1") as one, ours(app, "rooms", "py-2") as two:
        first.process.kill()
        second.process.kill()
        await wait_until(lambda: len(one.client.streams + two.client.streams) == 12, 20)
        assert sorted(one.client.streams + two.client.streams) == sorted(f"room:{n}" for n in range(12))
        for mine in (one, two):
            for stream in mine.client.streams:
                await mine.client.done_stream(stream)
    assert pending(server, "rooms") == 0
    assert server.sync().xlen("rooms-input") == 0


# ── frames ──

Words = list[str]
ID = re.compile(r"\{([\w ]{13})\}")  # an id in the recording: its name, filled up with _ to the length of an id
OWN_WORDS = {"hello", "client", "config"}  # what a server says to these differs from version to version


def words_of(frame: str | bytes) -> list[Words]:
    """The commands in a piece of what was sent."""
    parser = hiredis.Reader(encoding="utf-8")
    parser.feed(frame.encode() if isinstance(frame, str) else frame)
    return list(iter(parser.gets, False))


class Replay:
    """A Go pod made of the bytes that one sent: `play` goes on as recorded, `say` sends one frame of it out of turn."""

    def __init__(self, server: Server, life: str) -> None:
        self._socket = server.socket
        self._frames = FRAMES[life]
        self._at = 0
        self._ways: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._unread: dict[int, str] = {}  # connection -> the recorded answer of a read that blocks there
        self.ids: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._ways.values():
            writer.close()
            await writer.wait_closed()

    async def play(self, to: str) -> None:
        """Send what was recorded, up to the next `to`; the answers have to be the recorded ones."""
        command = ""
        while command != to:
            frame = self._frames[self._at]
            self._at += 1
            way, command = frame["connection"], words_of(frame["send"])[0][0]
            if way in self._unread:
                self._check(self._unread.pop(way), await self._heard(way))
            await self._send(way, self._filled(frame["send"]))
            if command == "xreadgroup":
                self._unread[way] = frame.get("reply", "")
            elif command in OWN_WORDS:
                await self._heard(way)
            else:
                self._check(frame["reply"], await self._heard(way))

    async def hang_up(self) -> None:
        """End the read that blocks: what is added from here on is not given to this pod."""
        for way in list(self._unread):
            del self._unread[way]
            _, writer = self._ways.pop(way)
            writer.close()
            await writer.wait_closed()

    async def say(self, command: str, id_: str = "") -> bytes:
        """The first recorded frame with this command, about another entry, on a connection of its own."""
        first = next(one["send"] for one in self._frames if words_of(one["send"])[0][0] == command)
        await self._send(0, ID.sub(id_, first))
        return await self._heard(0)

    def _filled(self, text: str) -> str:
        return ID.sub(lambda found: self.ids[found[1].strip("_")], text)

    def _check(self, recorded: str, heard: bytes) -> None:
        """Equal, but for the text of an error, and for ids that are new: these are learnt."""
        if recorded.startswith("-"):
            assert heard.decode().split()[0] == recorded.split()[0]
            return
        known = ID.sub(lambda found: self.ids.get(found[1].strip("_"), found[0]), recorded)
        texts, names = ID.split(known)[::2], ID.split(known)[1::2]
        found = re.fullmatch(r"(\d+-\d+)".join(map(re.escape, texts)), heard.decode())
        assert found, (recorded, heard)
        self.ids |= zip((name.strip("_") for name in names), found.groups(), strict=True)

    async def _send(self, way: int, text: str) -> None:
        if way not in self._ways:
            self._ways[way] = await asyncio.open_unix_connection(self._socket)
        writer = self._ways[way][1]
        writer.write(text.encode())
        await writer.drain()

    async def _heard(self, way: int) -> bytes:
        parser, reply = hiredis.Reader(), b""
        async with asyncio.timeout(5):
            while not reply or parser.gets() is False:  # a server may write one reply in pieces
                piece = await self._ways[way][0].read(65_536)
                assert piece, "the server closed the connection"
                parser.feed(piece)
                reply += piece
        return reply


async def test_what_a_go_pod_sent_is_understood_by_us_and_what_we_do_by_it(
    server_key: str, own_server: OwnServer, make_app: MakeApp
) -> None:
    """SPEC 47: recorded bytes, without our encoder or decoder in between. It stops; we take over; it comes back."""
    server = own_server(server_key)
    async with Replay(server, "finishes") as pod:
        await pod.play(to="eval")  # Init, announced, read, locked, extended
        await pod.hang_up()
        app = make_app(server)
        async with ours(app, "rooms", min_idle="300ms") as mine:
            await wait_until(lambda: app.recorder.total("recovery_scan_skipped_alive_total") > 0)  # type: ignore[attr-defined]
            taken = await mine.until(Added)  # the frames stop: its lock runs out after 2 s
            assert (taken.stream, taken.attempt) == (ROOM, 2)
            entry = server.sync().xrange("rooms-input", taken.id, taken.id)[0][1]
            assert entry == {b"lbs-input": b'{"DataStreamName":"room:42","Info":null}', b"_retry_count": b"1"}
            # The Go pod comes back from its pause, takes its old lock again, for it is free, and says that it is done:
            await pod.play(to="evalsha")
            assert await pod.say("xack", pod.ids["42"]) == b":0\r\n"
            assert await pod.say("xdel", pod.ids["42"]) == b":0\r\n"
            assert mine.client.streams == [ROOM]  # it was about the old entry, which nobody misses
            # A Go pod that finishes ours: its ack has no fence, and we hear that it is gone.
            assert await pod.say("xack", taken.id) == b":1\r\n"
            assert (await mine.until(Disowned)).stream == ROOM


async def test_what_a_go_pod_sent_takes_over_what_our_dead_process_held_and_is_left_alone_with_it(
    server_key: str, own_server: OwnServer, make_app: MakeApp
) -> None:
    """SPEC 47: the other way round. What its scan asked for is answered as it was when a Go pod asked."""
    server = own_server(server_key)
    app, redis, room = make_app(server), server.sync(), "room:1"
    client = GoClient(app, "rooms", consumer="redis-consumer-py-1", **QUICK)
    await client.start()
    id_ = await client.announce(room)
    await wait_until(lambda: client.streams == [room])
    async with Replay(server, "scans") as pod:
        assert await pod.say("exists", id_) == b":1\r\n"  # its scan skips what we hold
        await die(client)
        assert (await pod.say("xgroup")).startswith(b"-BUSYGROUP")
        await wait_until(lambda: not redis.exists(f"{room}<MUTEX_KEY_SEP>{id_}"))
        redis.xclaim("rooms-input", "rooms-group", client.consumer, 0, [id_], idle=60_000, justid=True)
        assert id_.encode() in await pod.say("xpending")
        (recorded, *_) = [one["reply"] for one in FRAMES["scans"] if "xrange" in one["send"]]
        pairs = (await pod.say("xrange", id_)).decode()
        assert pairs == ID.sub(id_, recorded)  # our announcement, byte for byte as a Go producer's
        for command, reply in (("exists", b":0"), ("xack", b":1"), ("xadd", b"$15"), ("xdel", b":1")):
            assert (await pod.say(command, id_)).startswith(reply + b"\r\n")
        ((copy, _),) = redis.xrange("rooms-input")
        assert copy in await pod.say("xreadgroup")
        assert await pod.say("set", copy.decode()) == b"+OK\r\n"
        assert await pod.say("eval", copy.decode()) == b":1\r\n"
        async with ours(app, "rooms", "py-2", min_idle="300ms") as heir:
            for _ in range(4):
                await stays(lambda: not heir.of(Added), 0.8)
                assert await pod.say("evalsha", copy.decode()) == b":1\r\n"
            taken = await heir.until(Added)  # the frames stop
            assert (taken.stream, taken.attempt) == (room, 3)
            await heir.client.done_stream(room)
    assert pending(server, "rooms") == 0
    await client.done()


async def finishes(server: Server, pod: Peer) -> dict[str, str]:
    """What happened to the Go pod when it was recorded; the ids by their names in the recording."""
    ids = {}
    await pod.until("ready")
    (first, second) = (words for words in map(one_command, FRAMES["finishes"]) if words[0] == "xadd")
    ids["42"] = server.sync().execute_command(*first).decode()
    await pod.until("added", stream=ROOM)
    await asyncio.sleep(1.5)
    pod.say(f"done {ROOM}")
    await pod.until("done", stream=ROOM)
    ids["43"] = server.sync().execute_command(*second).decode()
    await pod.until("added", stream="room:43")
    await asyncio.sleep(0.3)
    pod.say("quit")
    await pod.until("done", stream="room:43")
    return ids


def leave_orphans(server: Server) -> dict[str, str]:
    redis, stream, group = server.sync(), "rooms-input", "rooms-group"
    redis.xgroup_create(stream, group, "0", mkstream=True)
    redis.config_set("notify-keyspace-events", "KEx")
    ids = {}
    for name, told, more in (
        ("orphan", Announcement("room:1").json(), {}),
        ("alive", Announcement("room:2").json(), {}),
        ("exhausted", Announcement("room:3").json(), {"_retry_count": "3"}),
        ("unreadable", "no json", {}),
        ("deleted", Announcement("room:5").json(), {}),
    ):
        ids[name] = redis.xadd(stream, {"lbs-input": told, **more}).decode()
    redis.xreadgroup(group, "redis-consumer-dead", {stream: ">"})
    redis.xclaim(stream, group, "redis-consumer-dead", 0, list(ids.values()), idle=60_000, justid=True)
    redis.xdel(stream, ids["deleted"])
    redis.set(f"room:2<MUTEX_KEY_SEP>{ids['alive']}", "redis-consumer-slow", ex=60)
    return ids


async def scans_and_claims(server: Server, pod: Peer, ids: dict[str, str]) -> dict[str, str]:
    ids["copy"] = (await pod.until("added", stream="room:1"))["id"]
    await wait_until(lambda: pending(server, "rooms") == 2)
    pod.say(f"claim {ids['alive']}")
    await pod.until("claimed", outcome="skipped")
    server.sync().delete(f"room:2<MUTEX_KEY_SEP>{ids['alive']}")
    pod.say(f"claim {ids['alive']}")
    ids["copy of alive"] = (await pod.until("added", stream="room:2"))["id"]
    await pod.until("claimed", outcome="requeued")
    pod.say(f"claim {ids['alive']}")
    await pod.until("claimed", outcome="lost race")
    return ids


async def finds_a_lock(server: Server, pod: Peer) -> dict[str, str]:
    await pod.until("ready")
    id_ = "1999999999999-0"
    server.sync().set(f"room:9<MUTEX_KEY_SEP>{id_}", "somebody")
    server.sync().execute_command("XADD", "rooms-input", id_, "lbs-input", Announcement("room:9").json())
    await pod.until("terminated")
    return {"9": id_}


def one_command(frame: dict[str, str]) -> Words:
    return words_of(frame["send"])[0] if "send" in frame else [""]


def threads(sent: list[Words], ids: dict[str, str]) -> dict[str, list[Words]]:
    """What was sent, in orders that do not depend on how threads and connections took turns.

    In order: what sets up; what scans, acks and deletes; and all that names one entry. Without the handshakes of
    connections, what a producer says, and an extension's repetitions. The fields of a copy are sorted: in Go, they
    come in any order.
    """
    of: dict[str, list[Words]] = {}
    kinds = {"config": "sets up", "xgroup": "sets up", "psubscribe": "listens", "xreadgroup": "reads"}
    for words in sent:
        line = list(words)
        for name, id_ in ids.items():
            line = [word.replace(id_, f"{{{name:_<13}}}") for word in line]
        if line[0] == "xadd" and "_retry_count" not in line:
            continue
        if line[0] == "xadd":
            at = line.index("*") + 1
            line[at:] = [word for pair in sorted(zip(line[at::2], line[at + 1 :: 2], strict=True)) for word in pair]
        views = {found[1] for word in line for found in ID.finditer(word)}
        views.add(kinds.get(line[0]) or ("recovers and finishes" if line[0].startswith("x") else ""))
        for view in views - {""}:
            lines = of.setdefault(view, [])
            if line not in lines or not (view == "reads" or line[-1] == "2000"):
                lines.append(line)
    return of


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("lives", [["finishes"], ["scans", "claims"], ["finds a lock"]], ids=" ".join)
async def test_the_peer_of_these_tests_sends_what_a_go_pod_was_recorded_to_send(
    server_key: str, own_server: OwnServer, peer: Callable[..., Peer], lives: list[str]
) -> None:
    """The same words, in the same order: what the other tests prove beside it, they prove beside a Go pod."""
    server, sent = own_server(server_key), []
    ids = leave_orphans(server) if "scans" in lives else {}

    def hear(data: bytes) -> bool:
        sent.extend(words_of(data))
        return True

    async with Proxy(server.socket) as way:
        way.on_request = hear
        pod = peer(way, "rooms", hb_ms=2_000, interval_ms=60_000, min_idle_ms=30_000, force="scans" in lives)
        if lives == ["finishes"]:
            ids = await finishes(server, pod)
        elif lives == ["finds a lock"]:
            ids = await finds_a_lock(server, pod)
        else:
            ids = await scans_and_claims(server, pod, ids)
        pod.end()
    recorded = [one_command(frame) for life in lives for frame in FRAMES[life] if "send" in frame]
    expected, found = threads(recorded, {}), threads(sent, ids)
    if lives == ["finds a lock"]:  # recorded from there on
        expected, found = ({view: lines for view, lines in of.items() if view[0] == "9"} for of in (expected, found))
    assert found == expected


# ── values ──


def test_a_consumer_is_named_after_its_pod_as_the_go_client_does() -> None:
    assert consumer_name({"POD_NAME": "web-1", "POD_IP": "10.0.0.1"}) == "redis-consumer-web-1"
    assert consumer_name({"POD_NAME": "", "POD_IP": "10.0.0.1"}) == "redis-consumer-10.0.0.1"
    with pytest.raises(PodNameMissing, match="POD_NAME"):
        consumer_name({})


@pytest.mark.parametrize(
    ("payload", "stream", "info"),
    [
        ('{"DataStreamName":"a","Info":{"x":1}}', "a", {"x": 1}),
        ('{"DataStreamName":"a","Info":null}', "a", {}),
        ('{"datastreamname":"a"}', "a", {}),  # Go reads names in any case
        ('{"DataStreamName":"ä:b<c>","Info":{},"More":1}', "ä:b<c>", {}),
    ],
)
def test_payloads_are_read_as_go_reads_them(payload: str, stream: str, info: dict[str, Any]) -> None:
    found = Announcement.read([b"lbs-input", payload.encode(), b"_retry_count", b"2"])
    assert (found.stream, found.info, found.retries) == (stream, info, 2)
    assert Announcement.read([b"lbs-input", found.json().encode()]) == Announcement(stream, info)


def test_a_lock_key_gives_stream_and_id_back() -> None:
    assert read_lock("room:42<MUTEX_KEY_SEP>5-0") == ("room:42", "5-0")
    assert read_lock("room:42:5-0") is None
    assert read_lock("<MUTEX_KEY_SEP>5-0") is None
