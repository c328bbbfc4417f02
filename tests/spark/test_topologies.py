"""Source and sink on a cluster and behind sentinels: streams of every master, slots that move, failovers (SPEC 49)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import Unavailable
from headrace.spark.arrivals import Arrivals
from headrace.spark.options import Address
from tests.spark.querying import Driven, fill, once_each
from tests.spark.test_source_group import Shared
from tests.support.moves import another, move_classic
from tests.support.servers import ServerMissing
from tests.support.topologies import Cluster, Sentinels, start_cluster, start_sentinels

pytestmark = pytest.mark.timeout(120)

CUT = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        found = start_cluster("redis8")
    except ServerMissing as missing:
        pytest.skip(f"MISSING SERVER: {missing}")
    yield found
    found.stop()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    try:
        found = start_sentinels("redis8")
    except ServerMissing as missing:
        pytest.skip(f"MISSING SERVER: {missing}")
    yield found
    found.stop()


@pytest.fixture
def arrivals(cluster: Cluster) -> Iterator[Arrivals]:
    address = Address(cluster.url, 2_000, 2_000)
    link = address.server().sync_link()
    found = Arrivals(address, link)
    yield found
    found.close()
    link.close()


def ends(cluster: Cluster, names: list[str]) -> dict[str, str]:
    return {name: cluster.sync().xinfo_stream(name)["last-generated-id"].decode() for name in names}


def reads(cluster: Cluster) -> int:
    """How often XREAD was called, at all masters."""
    told = [member.info("commandstats").get("cmdstat_xread", {"calls": 0}) for member in cluster.members]
    return sum(one["calls"] for one in told)


def filled(where: Any, names: list[str], count: int) -> set[tuple[str, str]]:
    return {(name, id_) for name in names for id_ in fill(where, name, count)}


@contextmanager
def added_later(cluster: Cluster, name: str, seconds: float) -> Iterator[None]:
    """A message that comes while something waits for it. Its answer is waited for too: the next test may stop the
    cluster."""
    timer = threading.Timer(seconds, cluster.sync().xadd, (name, {"a": "b"}))
    timer.start()
    yield
    timer.join()


@pytest.mark.parametrize("count", [30, 600])
def test_streams_of_every_master_are_found_by_a_pattern_and_read_once(
    cluster: Cluster, prefix: str, count: int
) -> None:
    """Short ranges go together, one write for each server; long ones one by one."""
    wanted = filled(cluster, cluster.names(prefix, 9), count)
    driven = Driven(cluster, streamsPattern=f"{prefix}-*", startingOffsets="earliest")  # type: ignore[arg-type]
    rows = driven.drain()
    more = filled(cluster, cluster.names(prefix, 9)[:4], 3)
    rows += driven.drain()
    driven.close()
    assert set(rows) == wanted | more
    assert once_each(rows)


def test_a_slot_that_moves_while_a_query_runs_costs_no_row(cluster: Cluster, prefix: str) -> None:
    names = cluster.names(prefix, 3)
    driven = Driven(cluster, streams=",".join(names))  # type: ignore[arg-type]
    wanted, rows = filled(cluster, names, 500), driven.drain()
    source = cluster.member_of(names[0])
    move_classic(cluster, names[0], source, another(cluster, source))
    wanted |= filled(cluster, names, 500)
    rows += driven.drain()
    driven.close()
    assert set(rows) == wanted
    assert once_each(rows)


@pytest.mark.parametrize("count", [3, 16, 60])
def test_waiting_for_streams_of_several_slots_ends_with_the_first_message(
    cluster: Cluster, prefix: str, arrivals: Arrivals, count: int
) -> None:
    names = cluster.names(prefix, count)
    filled(cluster, names, 1)
    last = ends(cluster, names)
    begun = time.monotonic()
    assert arrivals.wait(last, 200) == set()
    assert 0.15 < time.monotonic() - begun < 1.5
    with added_later(cluster, names[2], 0.1):
        assert arrivals.wait(last, 5_000) == {names[2]}
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("count", [12, 60])
def test_streams_of_several_slots_at_rest_are_asked_for_once_a_wait(
    cluster: Cluster, prefix: str, arrivals: Arrivals, count: int
) -> None:
    """Of few slots the masters wait themselves; of many the pauses grow until one question a wait is left."""
    names = cluster.names(prefix, count)
    filled(cluster, names, 1)
    last = ends(cluster, names)
    for _ in range(4):
        assert arrivals.wait(last, 200) == set()
    before = reads(cluster)
    for _ in range(5):
        assert arrivals.wait(last, 200) == set()
    assert reads(cluster) - before <= 6 * count  # with the one that may be open at each end
    cluster.sync().xadd(names[7], {"a": "b"})
    begun = time.monotonic()
    assert arrivals.wait(last, 5_000) == {names[7]}
    assert time.monotonic() - begun < 1


def test_an_open_question_from_an_earlier_id_names_no_stream_that_was_read(
    cluster: Cluster, prefix: str, arrivals: Arrivals
) -> None:
    names = cluster.names(prefix, 3)
    filled(cluster, names, 1)
    last = ends(cluster, names)
    assert arrivals.wait(last, 50) == set()
    filled(cluster, names, 1)
    assert arrivals.wait(last, 5_000)
    read = ends(cluster, names)  # whatever answers are on their way now name what was read
    assert arrivals.wait(read, 200) == set()
    cluster.sync().xadd(names[1], {"a": "b"})
    assert arrivals.wait(read, 5_000) == {names[1]}
    assert arrivals.wait(last, 5_000)  # back to earlier ids, as for a stream that was made again


def test_a_slot_that_moves_while_its_master_waits_is_asked_for_at_the_other(
    cluster: Cluster, prefix: str, arrivals: Arrivals
) -> None:
    names = cluster.names(prefix, 3)
    filled(cluster, names, 1)
    last = ends(cluster, names)
    assert arrivals.wait(last, 100) == set()
    source = cluster.member_of(names[0])
    move_classic(cluster, names[0], source, another(cluster, source))
    until = time.monotonic() + 5
    with added_later(cluster, names[0], 0.3):
        while not (found := arrivals.wait(last, 1_000)):
            assert time.monotonic() < until
    assert found == {names[0]}


def test_connections_cut_while_masters_wait_cost_one_try_however_many_there_are(
    cluster: Cluster, prefix: str, arrivals: Arrivals
) -> None:
    names = cluster.names(prefix, 6)
    filled(cluster, names, 1)
    last = ends(cluster, names)
    cut = threading.Timer(0.2, lambda: [member.ask(*CUT) for member in cluster.members])
    cut.start()
    with pytest.raises(Unavailable):
        arrivals.wait(last, 5_000)
    cut.join()
    assert arrivals.wait(last, 100) == set()


def test_connections_cut_while_masters_wait_cost_no_row(cluster: Cluster, prefix: str) -> None:
    names = cluster.names(prefix, 6)
    wanted = filled(cluster, names, 5)
    driven = Driven(cluster, streams=",".join(names), startingOffsets="earliest")  # type: ignore[arg-type]
    rows = driven.drain()  # the last question was open at every slot
    for _ in range(3):
        for member in cluster.members:
            member.ask(*CUT)
        wanted |= filled(cluster, names, 5)
        rows += driven.drain()
    driven.close()
    assert set(rows) == wanted
    assert once_each(rows)


def test_a_group_over_streams_of_every_master_is_claimed_and_acked(cluster: Cluster, prefix: str) -> None:
    names = cluster.names(prefix, 3)
    wanted = sorted(id_ for _, id_ in filled(cluster, names, 20))
    shared = Shared(cluster, streams=",".join(names))  # type: ignore[arg-type]
    found: list[str] = []
    while len(found) < len(wanted):
        end = shared.wait()
        found += shared.read(end)
        shared.offset = end
    shared.latest()
    shared.reader.stop()
    assert sorted(found) == wanted
    assert [cluster.sync().xpending(name, "billing")["pending"] for name in names] == [0, 0, 0]


def test_the_sink_writes_each_row_once_to_targets_at_every_master(
    spark: SparkSession, cluster: Cluster, prefix: str
) -> None:
    """Rows choose their target; the batch is on a replica of each master before it counts as written."""
    names = cluster.names(prefix, 3)
    rows = [(names[number % 3], number) for number in range(300)]
    frame = spark.createDataFrame(rows, "stream string, n bigint").repartition(4)
    options = {"url": cluster.url, "durability": "replicated", "txnAppId": prefix, "txnVersion": "1"}
    for _ in range(2):  # the second one finds the batch done
        frame.write.format("redis-streams").options(**options).mode("append").save()
    for at, name in enumerate(names):
        found = sorted(int(fields[b"n"]) for _, fields in cluster.sync().xrange(name))
        assert found == list(range(at, 300, 3))
    again = spark.read.format("redis-streams").option("url", cluster.url).option("streams", ",".join(names)).load()
    assert again.count() == 300


def test_a_query_goes_on_after_a_failover_behind_sentinels(sentinels: Sentinels, stream: str) -> None:
    """What was replicated is read once; the query waits for the new primary."""
    driven = Driven(sentinels, streams=stream, retryTimeout="20s")  # type: ignore[arg-type]
    wanted = filled(sentinels, [stream], 400)
    rows = driven.drain()
    sentinels.sync().wait(1, 2_000)
    old = sentinels.primary
    old.kill()
    rows += driven.step() or []  # waits for the failover
    sentinels.until(lambda: sentinels.primary is not old, "every sentinel knows of the failover")
    wanted |= filled(sentinels, [stream], 400)
    rows += driven.drain()
    driven.close()
    assert set(rows) == wanted
    assert once_each(rows)
