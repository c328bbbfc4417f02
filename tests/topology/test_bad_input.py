"""What goes wrong with topologies, and what is said about it (SPEC 48, 53, 54)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, HeadraceError
from headrace.errors import (
    AuthFailed,
    CommandRefused,
    NoPrimary,
    ServiceUnknown,
    SlotMissing,
    Unavailable,
    WrongTopology,
)
from headrace.names import keys_of
from headrace.redis import commands
from headrace.redis.connect import Server as Address
from headrace.redis.topology import slot_of
from tests.support.ports import free_port
from tests.support.servers import Server
from tests.support.tls import TlsFiles
from tests.support.topologies import SERVICE, Cluster, Sentinels, every, start_cluster, start_sentinels

ANY = keys_of("orders")


async def refused(url: str, call: Any = None) -> HeadraceError:
    """What both kinds of links say, and that they say the same."""
    link, found = Address(url).link(), list[HeadraceError]()
    with pytest.raises(HeadraceError) as said:
        await link.call(call or commands.length("orders"))
    found.append(said.value)
    await link.close()
    with pytest.raises(HeadraceError) as said:
        await asyncio.to_thread(_sync_call, url, call)
    assert type(said.value) is type(found[0])
    return found[0]


def _sync_call(url: str, call: Any) -> None:
    link = Address(url).sync_link()
    try:
        link.call(call or commands.length("orders"))
    finally:
        link.close()


# ── cluster ──


async def test_a_cluster_nobody_answers_for_is_an_outage_that_names_who_was_asked() -> None:
    ports = [free_port(), free_port()]
    error = await refused(f"redis+cluster://u:s3cret@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    assert isinstance(error, Unavailable)
    assert all(str(port) in str(error) for port in ports)
    assert "s3cret" not in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_a_server_on_its_own_is_no_cluster(own_server: Callable[..., Server], server_key: str) -> None:
    server = own_server(server_key, tcp=True)
    error = await refused(f"redis+cluster://127.0.0.1:{server.port}")
    assert isinstance(error, WrongTopology)
    assert "redis://" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_a_node_of_a_cluster_taken_for_a_server_on_its_own_says_what_to_write(cluster: Cluster) -> None:
    name = next(name for name in cluster.names("any", 3) if cluster.member_of(name) is not cluster.members[0])
    error = await refused(f"redis://{cluster.members[0].address}", commands.length(name))
    assert isinstance(error, CommandRefused)
    assert "redis+cluster://" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_one_living_seed_is_enough_and_dead_ones_cost_little(cluster: Cluster, stream: str) -> None:
    seeds = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    link = Address(f"redis+cluster://{','.join(seeds)},{cluster.members[4].address}").link()
    begun = time.monotonic()
    assert await link.call(commands.length(stream)) == 0
    assert time.monotonic() - begun < 2
    await link.close()


async def test_a_slot_that_nobody_serves_is_named_with_its_stream(prefix: str, make_app: Callable[..., App]) -> None:
    """The other streams go on; the slot served again, so does this one."""
    cluster = await asyncio.to_thread(start_cluster, "redis8", replicas=False)
    try:
        gone, other = cluster.names(prefix, 2)
        slot = slot_of(gone)
        for member in cluster.members:
            member.ask("CLUSTER", "DELSLOTS", slot)
        error = await refused(cluster.url, commands.length(gone))
        assert isinstance(error, SlotMissing)
        assert (error.slot, error.stream) == (slot, gone)
        assert str(slot) in str(error)
        assert gone in str(error)
        app = make_app(cluster)
        assert (await app.stream(other).add({"n": 1})).first
        cluster.members[0].ask("CLUSTER", "ADDSLOTS", slot)
        added = await app.stream(gone).add({"n": 1}, key="again")  # with a key it is repeated until there is an answer
        assert added.first
        await app.close()
    finally:
        cluster.stop()


async def test_a_wrong_password_is_fatal_on_every_topology(stream: str) -> None:
    """SPEC 54: at once, and without the password in the text."""
    cluster = await asyncio.to_thread(
        start_cluster, "redis8", shards=1, replicas=False, lines=["requirepass right"], password="right"
    )
    try:
        error = await refused(cluster.url.replace("://", "://:wr0ng@"))
        assert isinstance(error, AuthFailed)
        assert "wr0ng" not in str(error)
    finally:
        cluster.stop()


# ── sentinels ──


async def test_no_sentinel_at_all_is_no_primary() -> None:
    error = await refused(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/shop/0")
    assert isinstance(error, NoPrimary)
    assert "shop" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_a_service_that_no_sentinel_knows_is_fatal(sentinels: Sentinels) -> None:
    error = await refused(sentinels.url.replace(f"/{SERVICE}/", "/nonsense/"))
    assert isinstance(error, ServiceUnknown)
    assert "nonsense" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_a_server_taken_for_a_sentinel_says_so(own_server: Callable[..., Server], server_key: str) -> None:
    server = own_server(server_key, tcp=True)
    error = await refused(f"redis+sentinel://127.0.0.1:{server.port}/shop/0")
    assert isinstance(error, WrongTopology)
    assert "sentinel" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_a_primary_is_found_although_most_sentinels_are_down(sentinels: Sentinels, stream: str) -> None:
    for watcher in sentinels.watchers[:2]:
        watcher.kill()
    link = Address(sentinels.url).link()
    assert await link.call(commands.length(stream)) == 0
    await link.close()


@pytest.mark.servers(*every("redis8"))
async def test_a_dead_primary_that_nobody_can_replace_is_an_outage(sentinels: Sentinels) -> None:
    """Without a quorum no primary is elected: the sentinels go on to name the old one, which does not answer."""
    for watcher in sentinels.watchers[:2]:
        watcher.kill()
    sentinels.data[0].kill()
    assert isinstance(await refused(sentinels.url), Unavailable)


@pytest.mark.servers(*every("redis8"))
async def test_a_replica_that_a_sentinel_still_names_is_not_written_to(sentinels: Sentinels) -> None:
    """The role is asked after connecting: between the promotion and the news of it nobody writes to a replica."""
    sentinels.data[0].ask("REPLICAOF", "127.0.0.1", sentinels.data[1].port)
    error = await refused(sentinels.url)
    assert isinstance(error, Unavailable)
    assert "replica" in str(error)


@pytest.mark.servers(*every("redis8"))
async def test_sentinels_with_a_password_of_their_own(stream: str, server_key: str) -> None:
    """SPEC 48: sentinel_password is the sentinels', the URL's own is the server's."""
    server, watch = (
        ["requirepass right", "masterauth right"],
        ["requirepass watch", f"sentinel auth-pass {SERVICE} right"],
    )
    found = await asyncio.to_thread(
        start_sentinels, server_key, sentinels=1, data_lines=server, sentinel_lines=watch, passwords=("right", "watch")
    )
    try:
        url = found.url.replace("://", "://:right@")
        link = Address(f"{url}?sentinel_password=watch").link()
        assert await link.call(commands.length(stream)) == 0
        await link.close()
        for wrong in (f"{url}?sentinel_password=wr0ng", url, f"{found.url}?sentinel_password=watch"):
            error = await refused(wrong)
            assert isinstance(error, AuthFailed), wrong
            assert "wr0ng" not in str(error)
    finally:
        found.stop()


# ── TLS ──


@pytest.mark.servers("redis7")
async def test_every_master_of_a_cluster_is_reached_over_tls(tls_files: TlsFiles, stream: str, server_key: str) -> None:
    """SPEC 48: rediss+cluster:// verifies every server it is led to."""
    own = tls_files.server_config(0)
    lines = [f"{word} {value}" for word, value in own.items() if word not in ("port", "tls-port")]
    cluster = await asyncio.to_thread(
        start_cluster, server_key, replicas=False, lines=[*lines, "tls-cluster yes"], tls=tls_files
    )
    try:
        link = Address(f"rediss+{cluster.url.removeprefix('redis+')}?ca_cert={tls_files.ca}").link()
        for name in cluster.names(stream, 3):
            assert await link.call(commands.length(name)) == 0
        await link.close()
    finally:
        cluster.stop()
