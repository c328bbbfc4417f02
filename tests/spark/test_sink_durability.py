"""`durability` = `replicated`: a batch is done when a replica has it, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from headrace.errors import DurabilityUnmet
from headrace.spark.source_options import SourceSettings
from headrace.spark.staging import PatientLink
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]


def paired(own_server: Callable[..., Server], key: str) -> tuple[Server, Server]:
    """A primary and its replica."""
    primary = own_server(key, tcp=True, config={"repl-diskless-sync-delay": "0"})
    replica = own_server(key)
    replica.sync().replicaof("127.0.0.1", str(primary.embedded.port))
    wait_until_sync(lambda: replica.sync().info("replication")["master_link_status"] == "up", 20, what="the replica")
    return primary, replica


@pytest.fixture
def pair(own_server: Callable[..., Server]) -> tuple[Server, Server]:
    return paired(own_server, "redis8")


def write(spark: SparkSession, server: Server, version: int) -> None:
    rows = spark.range(500).selectExpr("string(id) as n").repartition(2)
    writing = rows.write.format("redis-streams").option("url", server.url).option("stream", "orders").mode("append")
    writing = writing.option("durability", "replicated").option("retryTimeout", "2s")
    writing.option("txnAppId", "durable").option("txnVersion", str(version)).save()


def test_a_batch_is_on_the_replica_when_it_is_done(spark: SparkSession, pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    write(spark, primary, 0)
    assert primary.sync().xlen("orders") == 500
    assert replica.sync().xlen("orders") == 500  # at once, without waiting for it


@pytest.mark.servers("redis8", "redis6", "valkey9")
def test_a_connection_that_wrote_nothing_is_not_told_that_a_replica_has_it(
    server_key: str, own_server: Callable[..., Server]
) -> None:
    """After a reconnect, or where another driver has published, WAIT alone confirms what no replica has."""
    primary, replica = paired(own_server, server_key)
    address = SourceSettings.of({"url": primary.url, "streams": "orders"}, streaming=None).address
    replica.pause()
    try:
        primary.sync().xadd("orders", {"n": 1})
        with PatientLink(address, 300) as link, pytest.raises(DurabilityUnmet):
            link.confirm_replica(["orders"])
    finally:
        replica.cont()
    with PatientLink(address, 5_000) as link:
        link.confirm_replica(["orders"])
    assert replica.sync().xlen("orders") == 1
    assert primary.sync().keys("*") == [b"orders"]


def test_a_batch_that_no_replica_took_fails_and_is_written_once_when_one_is_back(
    spark: SparkSession, pair: tuple[Server, Server]
) -> None:
    primary, replica = pair
    replica.pause()
    try:
        with pytest.raises(Exception, match="replica"):
            write(spark, primary, 0)
    finally:
        replica.cont()
    write(spark, primary, 0)
    assert primary.sync().xlen("orders") == 500
    assert replica.sync().xlen("orders") == 500
