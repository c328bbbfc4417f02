"""Commands about a partitioned stream take it as one (SPEC 51)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headrace.partitions import Partitions
from tests.cli.conftest import Ran
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis6", "redis8")


@pytest.fixture
def parts(server: Server, stream: str) -> Partitions:
    """A stream in three partitions, with a group on each."""
    client, found = server.sync(), Partitions(stream, 3)
    client.set(f"{{{stream}}}:hr:partitions", 3)
    for name in found.names:
        client.xgroup_create(name, "billing", "0", mkstream=True)
    return found


def test_add_sends_to_the_partition_of_the_key(
    headrace: Callable[..., Ran], server: Server, stream: str, parts: Partitions
) -> None:
    for number in range(6):
        assert headrace("add", stream, json.dumps({"n": number}), "--key", f"order-{number}").code == 0
    assert "nothing added" in headrace("add", stream, "{}", "--key", "order-3").out
    found = {name: server.sync().xlen(name) for name in parts.names}
    wanted = [parts.names[parts.of(f"order-{number}")] for number in range(6)]
    assert found == {name: wanted.count(name) for name in parts.names}
    assert not server.sync().exists(stream)
    assert headrace("backlog", stream, "billing").out == "6\n"
    said = headrace("backlog", stream, "billing", "--json").json
    assert (said["lag"], said["backlog"], said["lag_exact"]) == (6, 6, True)


def test_pending_groups_and_dead_letters_answer_partition_by_partition(
    headrace: Callable[..., Ran], stream: str, parts: Partitions
) -> None:
    for command in (("pending", stream, "billing"), ("groups", stream), ("owners", stream)):
        said = headrace(*command, "--json").lines
        assert [one["stream"] for one in said] == list(parts.names)
    assert headrace("dlq", "replay", stream, "--all", "--json").code == 0
    headrace("dlq", "replay", stream, "1-1").refused(2, "has 3 partitions", parts.names[0])
