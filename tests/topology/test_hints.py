"""Keyspace hints: each owner listens to one master, and nothing depends on it (SPEC 21, 50)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace import App, Requeue
from headrace.goclient import GoClient
from headrace.hints import Hints
from headrace.redis.connect import Server as Address
from headrace.redis.topology import Node, chosen
from tests.support.moves import another, move_classic
from tests.support.servers import Server
from tests.support.topologies import Cluster, every
from tests.support.wait import wait_until


@pytest.mark.servers(*every("redis8"))
async def test_an_owner_hears_of_the_keys_that_expire_at_its_master_and_only_there(
    cluster: Cluster, prefix: str
) -> None:
    """SPEC 50: assigned deterministically."""
    for member in cluster.members:
        member.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
    names, heard = cluster.names(prefix, 3), list[str]()
    hints = Hints(Address(cluster.url), "me", heard.append)
    hints.start()
    hints.start()
    await wait_until(lambda: hints.node is not None)
    masters = [Node("127.0.0.1", one.port) for one in cluster.members if one.info("replication")["role"] == "master"]
    assert hints.node == chosen("me", masters)
    for name in names:
        cluster.sync().set(f"lock:{{{name}}}:1-1", "x", px=20)
    mine = [f"lock:{{{name}}}:1-1" for name in names if cluster.member_of(name).port == hints.node.port]
    await wait_until(lambda: heard == mine, 5)
    await hints.stop()
    await hints.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_mistake_of_whoever_is_told_is_named_and_ends_the_hints_alone(
    cluster: Cluster, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    for member in cluster.members:
        member.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
    hints = Hints(Address(cluster.url), "me", {}.__getitem__)
    hints.start()
    await wait_until(lambda: hints.node is not None)
    for name in cluster.names(prefix, 3):
        cluster.sync().set(name, "x", px=20)
    await wait_until(lambda: "hints.failed owner=me" in caplog.text, 5)
    assert "KeyError" in caplog.text
    await hints.stop()


def asked(cluster: Cluster, command: str) -> int:
    """How often anybody has said this to any of the servers."""
    names = (f"cmdstat_{command}", f"cmdstat_{command.partition('|')[0]}")  # 6.2 counts no subcommands
    told = [member.info("commandstats") for member in cluster.members]
    return sum(next((one[name]["calls"] for name in names if name in one), 0) for one in told)


@pytest.mark.servers(*every("redis8"))
async def test_an_app_reads_the_map_again_when_it_is_asked_to(
    cluster: Cluster, prefix: str, make_app: Callable[..., App]
) -> None:
    """SPEC 50: reset_topology() re-reads the map, before any server has contradicted the old one."""
    app, (name,) = make_app(cluster), cluster.names(prefix, 1)
    app.reset_topology()  # nothing is connected yet, and nothing to read again
    await app.link.masters()
    was = cluster.member_of(name)
    new = another(cluster, was)
    move_classic(cluster, name, was, new)
    await app.link.masters()
    assert app.server.place(name) == Node("127.0.0.1", was.port)

    async def knows() -> bool:
        app.reset_topology()
        await app.link.masters()
        return app.server.place(name) == Node("127.0.0.1", new.port)

    await wait_until(knows)  # the others hear of a moved slot a moment later than the two


@pytest.mark.servers(*every("redis8"))
async def test_the_workers_of_an_app_listen_anew_when_it_is_asked_to_read_the_map(
    cluster: Cluster, prefix: str, make_app: Callable[..., App]
) -> None:
    """SPEC 50: the hint's master is chosen again by the map as it is now."""
    for member in cluster.members:
        member.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
    app, (name,) = make_app(cluster), cluster.names(prefix, 1)

    @app.stream(name).handler(group="billing", lease="10s", recovery=Requeue())
    async def bill(order: dict[str, Any]) -> None: ...

    async def listens_anew(whose: App | GoClient) -> None:
        maps, listened = asked(cluster, "cluster|slots"), asked(cluster, "psubscribe")
        whose.reset_topology()
        await wait_until(lambda: asked(cluster, "psubscribe") > listened)
        assert asked(cluster, "cluster|slots") > maps

    before = asked(cluster, "psubscribe")
    async with app.worker():
        await wait_until(lambda: asked(cluster, "psubscribe") > before)
        await listens_anew(app)
    before = asked(cluster, "psubscribe")
    async with GoClient(app, prefix, consumer="py-1") as client:
        await wait_until(lambda: asked(cluster, "psubscribe") > before)
        await listens_anew(client)


@pytest.mark.servers(*every("redis8"))
async def test_an_owner_listens_elsewhere_when_its_master_is_gone_or_the_map_is_read_again(cluster: Cluster) -> None:
    """SPEC 50: reset_topology() re-reads the map; a dead master's owners go to its successor or to another."""
    for member in cluster.members:
        member.ask("CONFIG", "SET", "notify-keyspace-events", "KEA")
    server = Address(cluster.url)
    hints = Hints(server, "me", lambda key: None)
    hints.start()
    first = await wait_until(lambda: hints.node)
    maps = asked(cluster, "cluster|slots")
    hints.reset_topology()
    await wait_until(lambda: asked(cluster, "cluster|slots") > maps)
    await wait_until(lambda: hints.node == first)
    next(member for member in cluster.members if member.port == first.port).kill()
    await wait_until(lambda: hints.node not in (None, first), 15)
    await hints.stop()


@pytest.mark.servers(*every("redis8"))
async def test_events_that_are_off_cost_one_line_of_debug_and_nothing_else(
    server: Server, own_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 21: keyspace notifications off."""
    hints = Hints(Address(server.url), "me", lambda key: None)
    with caplog.at_level(logging.DEBUG, "headrace"):
        hints.start()
        await wait_until(lambda: any("hints.off" in line for line in caplog.messages))
        hints.reset_topology()
        await hints.stop()
    assert [record.levelno for record in caplog.records if "hints" in record.message] == [logging.DEBUG]
    assert hints.node is None


@pytest.mark.servers(*every("redis8"))
async def test_forbidden_config_does_not_keep_anybody_from_listening(
    own_server: Callable[..., Server], server_key: str
) -> None:
    """SPEC 21: CONFIG forbidden; and a user that may not subscribe either has no hints and no trouble."""
    server = own_server(server_key, config={"notify-keyspace-events": "Ex"}, tcp=True)
    server.sync().execute_command("ACL", "SETUSER", "ears", "on", ">s", "~*", "&*", "+@all", "-config")
    server.sync().execute_command("ACL", "SETUSER", "deaf", "on", ">s", "~*", "resetchannels", "+@all", "-config")
    heard: list[str] = []
    ears = Hints(Address(f"redis://ears:s@127.0.0.1:{server.port}"), "me", heard.append)
    deaf = Hints(Address(f"redis://deaf:s@127.0.0.1:{server.port}"), "me", heard.append)
    ears.start()
    deaf.start()
    await wait_until(lambda: ears.node is not None)
    server.sync().set("lock:{a}:1-1", "x", px=10)
    await wait_until(lambda: heard == ["lock:{a}:1-1"])
    assert deaf.node is None
    await ears.stop()
    await deaf.stop()


@pytest.mark.servers(*every("redis8"))
async def test_a_moved_slot_is_heard_where_it_went(cluster: Cluster, prefix: str) -> None:
    """The master is chosen, not the key: a lock is heard by whoever listens at the master it is on."""
    for member in cluster.members:
        member.ask("CONFIG", "SET", "notify-keyspace-events", "Ex")
    heard: list[str] = []
    hints = Hints(Address(cluster.url), "me", heard.append)
    hints.start()
    node = await wait_until(lambda: hints.node)
    mine = next(member for member in cluster.members if member.port == node.port)
    name = next(name for name in cluster.names(prefix, 3) if cluster.member_of(name) is not mine)
    move_classic(cluster, name, cluster.member_of(name), mine)
    cluster.sync().set(f"lock:{{{name}}}:1-1", "x", px=20)
    await wait_until(lambda: heard == [f"lock:{{{name}}}:1-1"], 5)
    move_classic(cluster, name, mine, another(cluster, mine))
    await hints.stop()
