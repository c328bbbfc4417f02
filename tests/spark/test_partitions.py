"""A partitioned stream is one stream to Spark, read and written (SPEC 51)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.names import keys_of
from headrace.partitions import Partitions
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]

Read = Callable[..., DataFrame]


@pytest.fixture
def parts(server: Server, stream: str) -> Partitions:
    server.sync().set(keys_of(stream).partitions, 4)
    return Partitions(stream, 4)


def save(frame: DataFrame, server: Server, **options: str) -> None:
    frame.write.format("redis-streams").option("url", server.url).options(**options).mode("append").save()


def lengths(server: Server, parts: Partitions) -> list[int]:
    return [int(server.sync().xlen(name)) for name in parts.names]  # type: ignore[arg-type]


def test_rows_go_to_the_partition_of_their_key_and_come_back_as_one_stream(
    spark: SparkSession, server: Server, stream: str, parts: Partitions, read: Read
) -> None:
    frame = spark.range(1_000).select("id", F.concat(F.lit("customer-"), F.col("id") % 50).alias("customer"))
    save(frame.repartition(3), server, stream=stream, partitionKey="customer", txnAppId="app", txnVersion="0")
    save(frame.repartition(5), server, stream=stream, partitionKey="customer", txnAppId="app", txnVersion="0")
    found = read(server, streams=stream).select("stream", F.col("fields")["customer"].cast("string").alias("customer"))
    rows: list[Any] = found.collect()
    assert len(rows) == 1_000
    assert all(row.stream == parts.names[parts.of(row.customer)] for row in rows)
    assert sum(lengths(server, parts)) == 1_000
    assert not server.sync().exists(stream)


def test_a_number_as_key_is_the_text_that_other_programs_see(
    spark: SparkSession, server: Server, stream: str, parts: Partitions
) -> None:
    save(spark.range(100), server, stream=stream, partitionKey="id")
    wanted = [parts.of(str(number)) for number in range(100)]
    assert lengths(server, parts) == [wanted.count(number) for number in range(4)]


def test_entries_of_the_source_keep_their_key_when_they_are_copied(
    spark: SparkSession, server: Server, stream: str, parts: Partitions, read: Read
) -> None:
    for number in range(40):
        server.sync().xadd(f"{stream}-old", {"customer": f"c{number % 8}"})
    save(read(server, streams=f"{stream}-old"), server, stream=stream, partitionKey="customer")
    wanted = [parts.of(f"c{number % 8}") for number in range(40)]
    assert lengths(server, parts) == [wanted.count(number) for number in range(4)]


def test_without_a_key_rows_take_turns(spark: SparkSession, server: Server, stream: str, parts: Partitions) -> None:
    save(spark.range(100).coalesce(1), server, stream=stream)
    assert lengths(server, parts) == [25, 25, 25, 25]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"partitionKey": "nobody"}, "no column is called"), ({"stream": "plain", "partitionKey": "id"}, "no partitions")],
)
def test_a_key_that_is_of_no_use_is_refused(
    spark: SparkSession, server: Server, stream: str, parts: Partitions, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        save(spark.range(1), server, **{"stream": stream, **options})
