"""The protocol of redis-stream-client-go on a cluster, where an entry and its lock are in two slots (SPEC 47, 49)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.errors import Unavailable
from headrace.goclient import Added, Disowned, GoClient, NotOwned, holder
from headrace.goclient.protocol import GoNames
from headrace.redis.topology import slot_of
from tests.behaviour.test_goclient import QUICK, Peer, ours
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until
from tests.topology.test_cluster_owned import away

pytestmark = pytest.mark.servers(*every("redis8"))
MakeApp = Callable[..., App]


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(cluster: Cluster, service: str, pod: str = "go-1", **settings: Any) -> Peer:
        peers.append(Peer(tmp_path, cluster.url, service, pod, **settings))
        return peers[-1]

    yield start
    for one in peers:
        one.end()


def left(cluster: Cluster, prefix: str) -> set[str]:
    """Keys of the test that are still there, without empty streams."""
    redis = cluster.sync()
    keys = {key.decode() for key in redis.scan_iter(f"*{prefix}*", target_nodes="primaries")}
    return {key for key in keys if redis.type(key) != b"stream" or redis.xlen(key)}


async def test_streams_in_every_slot_are_owned_by_one_and_nothing_is_left_when_they_are_done(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    app = make_app(cluster)
    streams = [*cluster.names(f"{prefix}-room", 6), f"{{{prefix}-input}}-near"]  # one is in the entries' own slot
    async with ours(app, prefix) as first, ours(app, prefix, "py-2") as second:
        for stream in streams:
            await first.client.announce(stream, {"of": stream})
        await wait_until(lambda: len(first.of(Added)) + len(second.of(Added)) == len(streams), 10)
        await asyncio.sleep(3)  # two locks' lives and more: nobody is robbed
        added = [*first.of(Added), *second.of(Added)]
        assert sorted(event.stream for event in added) == sorted(streams)
        assert not first.of(Disowned) + second.of(Disowned)
        for told in (first, second):
            for stream in told.client.streams:
                await told.client.done_stream(stream)
        with pytest.raises(NotOwned):
            await first.client.done_stream(streams[0])
        await wait_until(lambda: left(cluster, prefix) == set(), 5)


async def test_a_killed_go_pods_stream_comes_to_us_and_a_live_ones_does_not(
    cluster: Cluster, prefix: str, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    """SPEC 47: its lock says that it lives; when that has run out, a scan requeues."""
    app, stream = make_app(cluster), cluster.names(f"{prefix}-room", 1)[0]
    pod = peer(cluster, prefix)
    await pod.until("ready")
    await GoClient(app, prefix, consumer="x", **QUICK).announce(stream)
    await pod.until("added", stream=stream)
    async with ours(app, prefix) as told:
        await asyncio.sleep(3)  # idle for long, and locked
        assert not told.of(Added)
        pod.process.kill()
        event = await told.until(Added)
        assert (event.stream, event.attempt) == (stream, 2)
        await told.client.done_stream(stream)
    await wait_until(lambda: left(cluster, prefix) == set(), 5)


async def test_a_go_pod_takes_over_what_we_hand_back_and_never_what_we_hold(
    cluster: Cluster, prefix: str, make_app: MakeApp, peer: Callable[..., Peer]
) -> None:
    app, stream = make_app(cluster), cluster.names(f"{prefix}-room", 1)[0]
    async with ours(app, prefix) as told:
        await told.client.announce(stream)
        await told.until(Added)
        pod = peer(cluster, prefix)
        await pod.until("ready")
        await asyncio.sleep(3)
        assert not pod.events("added")
    added = await pod.until("added", stream=stream)
    assert added["retries"] == "0"  # no retry was burnt
    pod.say(f"done {stream}")
    await pod.until("done", stream=stream)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_a_shard_that_is_away_costs_nobody_the_streams_of_other_shards(
    cluster: Cluster, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The lock that cannot be extended stands before all others, in a chunk of its own, as the first of hundreds."""
    monkeypatch.setattr(holder, "CHUNK", 2)
    entries = cluster.member_of(f"{prefix}-input")
    tags = cluster.names(prefix, 3)
    lame = next(tag for tag in tags if cluster.member_of(tag) is not entries)
    sound = next(tag for tag in tags if cluster.member_of(tag) not in (entries, cluster.member_of(lame)))
    rooms = [f"{{{lame}}}-room-{number}" for number in range(3)] + [f"{{{sound}}}-room-{n}" for n in range(6)]
    async with ours(make_app(cluster), prefix) as first:
        for room in rooms:
            await first.client.announce(room)
        await wait_until(lambda: len(first.client.streams) == len(rooms), 10)
        master = cluster.member_of(sound).sync()
        locks = [GoNames(prefix).lock(event.stream, event.id) for event in first.of(Added) if event.stream in rooms[3:]]
        assert len(locks) == 6
        async with away(cluster, lame, how) as since:
            while time.monotonic() < since + 3:  # three locks' lives
                assert master.exists(*locks) == 6
                await asyncio.sleep(0.05)
        assert first.of(Disowned) == []
        assert len(first.client.streams) == len(rooms)


async def test_what_is_exhausted_or_unreadable_comes_to_the_protocols_dead_letters(
    cluster: Cluster, prefix: str, make_app: MakeApp
) -> None:
    """Its own slot: buried beside the entry in one step, and brought there."""
    app, names, redis = make_app(cluster), GoNames(prefix), cluster.sync()
    assert slot_of(names.dead_letters) != slot_of(names.stream)
    async with ours(app, prefix, max_retries=0) as told:
        redis.xadd(names.stream, {"lbs-input": "no json"})
        await wait_until(lambda: redis.xlen(names.dead_letters) == 1, 10)
        redis.xadd(names.stream, {"lbs-input": '{"DataStreamName": "x"}'})
        event = await told.until(Added)
        told.client._held.clear()  # forgotten as by a crash: its lock runs out
        await wait_until(lambda: redis.xlen(names.dead_letters) == 2, 10)
    reasons = [fields[b"_dlq_reason"] for _, fields in redis.xrange(names.dead_letters)]
    assert reasons == [b"unparseable", b"max_retries_exceeded"]
    assert event.stream == "x"
    await wait_until(lambda: left(cluster, prefix) == {names.dead_letters}, 5)


async def test_where_another_server_may_take_over_a_reader_looks_every_second(
    cluster: Cluster, prefix: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight failed reads cost at most 4.6 s of waiting here; doubling on, it would be 6.4 s at least."""
    async with ours(make_app(cluster), prefix) as mine:
        fails, turn = list(range(8)), mine.client._reader._turn

        async def away() -> None:
            if fails:
                fails.pop()
                raise Unavailable("away")
            await turn()

        monkeypatch.setattr(mine.client._reader, "_turn", away)
        await wait_until(lambda: len(fails) < 8)
        await mine.client.announce(f"{prefix}:room")
        await mine.until(Added, timeout=5.5)
