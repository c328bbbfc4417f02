"""Batch writes to the sink on real Spark and a real server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.deadletters import read_letter
from tests.support.servers import Server
from tests.support.spark_writing import register

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]


@pytest.fixture(scope="module", autouse=True)
def faulty(spark: SparkSession) -> None:
    register(spark)


def save(frame: DataFrame, server: Server, **options: str) -> None:
    frame.write.format("faulty-sink").option("url", server.url).options(**options).mode("append").save()


def entries(server: Server, stream: str) -> list[dict[str, str]]:
    found = server.sync().xrange(stream)
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]


def test_columns_become_fields_as_text(spark: SparkSession, server: Server, stream: str) -> None:
    moment = dt.datetime(2026, 3, 2, 12, 30, 0, 250_000, tzinfo=dt.UTC)
    row = ("a", b"\xff\x00", 7, 1.5, True, Decimal("12.50"), dt.date(2026, 3, 2), moment, None)
    kinds = "t string, b binary, n bigint, d double, yes boolean, m decimal(10,2), day date, at timestamp, no string"
    save(spark.createDataFrame([row], kinds), server, stream=stream)
    (fields,) = [fields for _, fields in server.sync().xrange(stream)]
    assert fields == {
        b"t": b"a",
        b"b": b"\xff\x00",
        b"n": b"7",
        b"d": b"1.5",
        b"yes": b"true",
        b"m": b"12.50",
        b"day": b"2026-03-02",
        b"at": b"2026-03-02T12:30:00.250000Z",
    }


def test_decimals_near_zero_have_no_exponent(spark: SparkSession, server: Server, stream: str) -> None:
    numbers = ["cast(0 as decimal(38,18)) as zero", "0.00000001bd as small", "-12.50bd as some", "float(0.1) as f"]
    save(spark.range(1).selectExpr(*numbers, "tinyint(7) as t"), server, stream=stream)
    assert entries(server, stream) == [
        {"zero": "0.000000000000000000", "small": "0.00000001", "some": "-12.50", "f": "0.1", "t": "7"}
    ]


@pytest.fixture(params=["Europe/Berlin", "America/Los_Angeles", "+05:30"])
def zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Another time zone of the session."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_times_are_utc_whatever_the_time_zone_of_the_session(
    spark: SparkSession, server: Server, stream: str, zone: str
) -> None:
    hours = [  # the second and third are the same hour on a clock in Berlin
        "timestamp'2026-03-02T12:30:00.25Z'",
        "timestamp'2026-10-25T00:30:00Z'",
        "timestamp'2026-10-25T01:30:00Z'",
    ]
    wall = "timestamp_ntz'2026-03-02T23:30:00'"
    frame = spark.range(1).selectExpr(f"explode(array({', '.join(hours)})) as at", f"{wall} as wall", "date(wall) day")
    save(frame.coalesce(1), server, stream=stream)
    found = entries(server, stream)
    assert [entry["at"] for entry in found] == [
        "2026-03-02T12:30:00.250000Z",
        "2026-10-25T00:30:00.000000Z",
        "2026-10-25T01:30:00.000000Z",
    ]
    assert {(entry["wall"], entry["day"]) for entry in found} == {("2026-03-02T23:30:00.000000", "2026-03-02")}


def test_nulls_are_left_out_or_empty_and_a_row_of_nulls_is_a_dead_letter(
    spark: SparkSession, server: Server, stream: str
) -> None:
    frame = spark.createDataFrame([("a", None), (None, None), (None, "d")], "x string, y string")
    save(frame, server, stream=stream)
    assert sorted(map(str, entries(server, stream))) == ["{'x': 'a'}", "{'y': 'd'}"]
    ((id_, fields),) = server.sync().execute_command("XRANGE", f"{{{stream}}}:dlq", "-", "+")
    letter = read_letter(id_, fields if isinstance(fields, list) else [w for pair in fields.items() for w in pair])
    assert (letter.stream, letter.error, letter.fields) == (stream, "SinkRefused", [])
    assert "no fields" in letter.reason
    save(frame, server, stream=f"{stream}-2", nulls="empty")
    assert sorted(map(str, entries(server, f"{stream}-2")))[0] == "{'x': '', 'y': ''}"


def test_rows_choose_their_stream_and_what_no_stream_can_take_is_a_dead_letter(
    spark: SparkSession, server: Server, stream: str
) -> None:
    server.sync().set(f"{stream}-text", "no stream")
    targets = [f"{stream}-a", f"{stream}-b", None, "a:hr:b", f"{stream}-text"] * 30
    frame = spark.createDataFrame([(target, str(n)) for n, target in enumerate(targets)], "stream string, n string")
    save(frame.repartition(4), server, deadLetters=f"{{{stream}}}:dlq")
    counts = {name: server.sync().xlen(f"{stream}{name}") for name in ("-a", "-b")}
    assert counts == {"-a": 30, "-b": 30}
    assert server.sync().xlen(f"{{{stream}}}:dlq") == 90, "no target, no name of a stream, no stream there"
    assert sorted(int(entry["n"]) for entry in entries(server, f"{stream}-b")) == list(range(1, 150, 5))
    with pytest.raises(PySparkException, match="rows cannot be written"):
        save(frame.coalesce(1), server, badRows="fail")


def test_the_option_wins_over_the_column_so_that_a_copy_does_not_go_back(
    spark: SparkSession, server: Server, stream: str
) -> None:
    frame = spark.createDataFrame([(stream, "1"), (stream, "2")], "stream string, n string")
    save(frame, server, stream=f"{stream}-copy")
    assert list(entries(server, f"{stream}-copy")) == [{"n": "1"}, {"n": "2"}]
    assert server.sync().exists(stream) == 0


def test_entries_of_the_source_go_through_byte_for_byte(spark: SparkSession, server: Server, stream: str) -> None:
    frame = spark.createDataFrame(
        [("s", "1-1", {"payload": b"\xff\xfe{}", "": b""}), ("s", "1-2", {"other": b"x" * 1000})],
        "stream string, id string, fields map<string,binary>",
    )
    save(frame.withColumn("stream", F.lit(stream)).coalesce(1), server)
    found = [fields for _, fields in server.sync().xrange(stream)]
    assert found == [{b"payload": b"\xff\xfe{}", b"": b""}, {b"other": b"x" * 1000}]


def test_a_version_that_was_written_is_dropped_and_another_writer_is_not(
    spark: SparkSession, server: Server, stream: str
) -> None:
    frame = spark.range(500).selectExpr("id as n")
    for app, version in (("etl", 0), ("etl", 0), ("etl", 1), ("etl", 0), ("other", 0)):
        save(frame.repartition(3), server, stream=stream, txnAppId=app, txnVersion=str(version))
    assert server.sync().xlen(stream) == 1500
    save(frame, server, stream=stream)  # without a version: as often as it is called
    save(frame, server, stream=stream)
    assert server.sync().xlen(stream) == 2500


def test_the_stream_is_trimmed_as_told(spark: SparkSession, server: Server, stream: str) -> None:
    frame = spark.range(1000).selectExpr("id as n")
    save(frame, server, stream=stream, maxlen="100", trim="exact")
    assert server.sync().xlen(stream) == 100
    last = server.sync().xrange(stream)[-1][0].decode()
    save(frame.limit(5), server, stream=stream, minid=last, trim="exact")
    assert server.sync().xlen(stream) == 6
    save(frame, server, stream=f"{stream}-2", delivery="at-least-once")
    assert server.sync().xlen(f"{stream}-2") == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strem": "x"}, "did you mean 'stream'"),
        ({"stream": ""}, "stream is empty"),
        ({"maxlen": "0"}, "maxlen is '0'"),
        ({"maxlen": "9", "minid": "1"}, "exclude each other"),
        ({"txnVersion": "1"}, "belong together"),
        ({"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}, "remembers no versions"),
        ({"delivery": "once"}, "delivery is 'once'"),
        ({}, "no target is known"),
    ],
)
def test_a_wrong_option_is_one_clear_error(
    spark: SparkSession, server: Server, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        save(spark.range(1), server, **options)


def test_what_cannot_be_a_field_is_refused_before_anything_runs(
    spark: SparkSession, server: Server, stream: str
) -> None:
    server.sync().set(f"{stream}-text", "x")
    with pytest.raises(PySparkException, match="to_json"):
        save(spark.range(1).selectExpr("array(id) as list"), server, stream=stream)
    with pytest.raises(PySparkException, match=r"write string\(wait\)"):
        save(spark.range(1).selectExpr("interval '1' day as wait"), server, stream=stream)
    with pytest.raises(PySparkException, match="holds a string, not a stream"):
        save(spark.range(1), server, stream=f"{stream}-text")
    with pytest.raises(PySparkException, match="a stream only grows"):
        spark.range(1).write.format("faulty-sink").option("url", server.url).option("stream", stream).mode(
            "overwrite"
        ).save()
    with pytest.raises(PySparkException) as error:
        save(spark.range(1), server, url="redis://:s3cret@127.0.0.1:1/0", stream=stream)
    assert "s3cret" not in str(error.value)
