"""A partitioned stream is one stream to Spark, read and written (SPEC 51)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import ConfigError
from headrace.names import keys_of
from headrace.partitions import Partitions
from headrace.spark.schema import DEFAULT
from headrace.spark.source import BatchReader
from headrace.spark.source_options import SourceSettings
from tests.spark.querying import Driven
from tests.spark.test_source_group import Shared
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


# ── ids that the options name ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def numbered(server: Server, parts: Partitions) -> Partitions:
    """Ids 1-0 to 4-0 in every partition."""
    for name in parts.names:
        for ms in range(1, 5):
            server.sync().xadd(name, {"at": ms}, id=f"{ms}-0")
    return parts


def only(parts: Partitions, *ids_of: list[str]) -> list[tuple[str, str]]:
    return [(name, id_) for name, some in zip(parts.names, ids_of, strict=True) for id_ in some]


def batch(server: Server, **options: str) -> list[tuple[str, str]]:
    """What a batch read gives, without Spark."""
    given = {word.lower(): text for word, text in {"url": server.url, **options}.items()}
    reader = BatchReader(SourceSettings.of(given, streaming=False), DEFAULT)
    rows: list[tuple[str, str]] = []
    for part in reader.partitions():
        for some in reader.read(part):
            rows += zip(some.column("stream").to_pylist(), some.column("id").to_pylist(), strict=True)
    return sorted(rows)


def test_an_id_for_a_partitioned_stream_is_one_for_each_partition(
    read: Read, server: Server, stream: str, numbered: Partitions
) -> None:
    starting, ending = json.dumps({stream: "1-0"}), json.dumps({stream: "3-0"})
    rows: list[Any] = read(server, streams=stream, startingOffsets=starting, endingOffsets=ending).collect()
    assert sorted((row.stream, row.id) for row in rows) == only(numbered, *[["2-0", "3-0"]] * 4)


def test_single_partitions_may_be_named_beside_their_stream(server: Server, stream: str, numbered: Partitions) -> None:
    zero, one, *_ = numbered.names
    starting = json.dumps({stream: "3-0", zero: "2-0"})
    ending = json.dumps({stream: "4-0", one: "3-0"})
    found = batch(server, streams=stream, startingOffsets=starting, endingOffsets=ending)
    assert found == only(numbered, ["3-0", "4-0"], [], ["4-0"], ["4-0"])


@pytest.mark.parametrize("pattern", [False, True], ids=["named", "pattern"])
def test_a_query_begins_behind_the_id_of_its_partitioned_stream(
    server: Server, stream: str, numbered: Partitions, pattern: bool
) -> None:
    where = {"streamsPattern": f"{stream}:part:*"} if pattern else {"streams": stream}
    query = Driven(server, **where, startingOffsets=json.dumps({stream: "2-0", numbered.names[3]: "4-0"}))
    assert sorted(query.drain()) == only(numbered, *[["3-0", "4-0"]] * 3, [])
    query.close()


def test_a_group_is_made_behind_the_id_of_its_partitioned_stream(
    server: Server, stream: str, numbered: Partitions
) -> None:
    shared = Shared(server, streams=stream, startingOffsets=json.dumps({stream: "3-0"}))
    assert shared.read(shared.wait()) == ["4-0"] * 4
    shared.reader.stop()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["part:0", "part:1", "part:2"], "says nothing about .*part:3"),
        (["part:0", "part:1", "part:2", "part:3", "part:4"], "names .*part:4"),
        (["parts"], "names .*parts"),
    ],
)
def test_ids_that_leave_a_partition_out_or_name_one_too_many_are_refused(
    server: Server, stream: str, numbered: Partitions, named: list[str], words: str
) -> None:
    ids = json.dumps({f"{stream}:{name}": "1-0" for name in named})
    for options in ({"startingOffsets": ids}, {"endingOffsets": ids}):
        with pytest.raises(ConfigError, match=words):
            batch(server, streams=stream, **options)
    with pytest.raises(ConfigError, match=words):
        Driven(server, streams=stream, startingOffsets=ids)


def test_a_partition_of_a_stream_that_has_none_is_refused(server: Server, stream: str) -> None:
    server.sync().xadd(stream, {"a": "b"})
    with pytest.raises(ConfigError, match=r"names .*part:0"):
        batch(server, streams=stream, startingOffsets=json.dumps({stream: "0-0", f"{stream}:part:0": "1-0"}))
