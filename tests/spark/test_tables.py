"""The tables about the queue where it is odd: what waits, and streams that are not ours. Without a session."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.names import keys_of, waiting_group
from headrace.spark.source_options import SourceSettings
from headrace.spark.tables import TableReader, schema_of
from tests.spark.querying import fill
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8")


def table(server: Server, name: str, **options: str) -> list[dict[str, Any]]:
    settings = SourceSettings.of({"url": server.url, "table": name, **options}, streaming=False)
    reader = TableReader(settings, schema_of(name))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("alone", [0, 10**15, 2 * 10**15], ids=["", "must run alone", "reserved"])
def test_what_waits_is_shown_with_why_and_until_when(server: Server, stream: str, alone: int) -> None:
    client, due_ms = server.sync(), 1_795_016_794_691
    (id_,) = fill(server, stream, 1)
    for group in ("billing", waiting_group("billing")):
        client.xgroup_create(stream, group, "0")
    client.xreadgroup(waiting_group("billing"), "crashed", {stream: ">"})
    client.zadd(keys_of(stream).due("billing"), {id_: due_ms + alone})
    (row,) = table(server, "pending", streams=stream)
    assert (row["id"], row["group"], row["state"], row["why"], row["owner"]) == (
        id_,
        "billing",
        "waiting",
        "crashed",
        None,
    )
    assert row["due"] == datetime.fromtimestamp(due_ms / 1000, UTC)


def test_a_stream_of_a_pattern_with_an_odd_name_is_left_out(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (f"{prefix}-a", prefix + "-{}", prefix + "- \n"):
        fill(server, name, 1)
        server.sync().xgroup_create(name, "billing", "0")
    (row,) = table(server, "groups", streamspattern=f"{prefix}-*")
    assert row["stream"] == f"{prefix}-a"
    assert caplog.text.count("spark.skipped") == 2
