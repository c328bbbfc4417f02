"""`durability` = `replicated`: a batch is done when a replica has it, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.support.servers import Server
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]


@pytest.fixture
def pair(own_server: Callable[..., Server]) -> tuple[Server, Server]:
    """A primary and its replica."""
    primary = own_server("redis8", tcp=True, config={"repl-diskless-sync-delay": "0"})
    replica = own_server("redis8")
    replica.sync().replicaof("127.0.0.1", str(primary.embedded.port))
    wait_until_sync(lambda: replica.sync().info("replication")["master_link_status"] == "up", 20, what="the replica")
    return primary, replica


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
