"""The stages by themselves: rows in, the same rows out, each with one status."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.spark.options import Address
from headrace.spark.pipeline import Aggregate, Decode, Deduplicate, Enrich, Route, Rule, stages
from headrace.spark.pipeline.aggregates import HOUR, refreshed, touched, windows
from headrace.spark.pipeline.expressions import BARE
from headrace.spark.pipeline.places import LocalPlace
from headrace.spark.pipeline.windows import replace_hours
from tests.support.servers import Server

pytestmark = pytest.mark.timeout(120)

AT = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
ENTRIES = "stream string, id string, timestamp timestamp, fields map<string,binary>"
JSON = Decode({"id": "string", "amount": "decimal(12,2)", "at": "timestamp"}, required=("id", "amount"))


def entries(spark: SparkSession, *payloads: bytes | None, field: str = "payload") -> DataFrame:
    rows: list[Any] = [
        ("s", f"1-{n}", AT, {} if payload is None else {field: payload}) for n, payload in enumerate(payloads)
    ]
    return spark.createDataFrame(rows, ENTRIES)


def by_id(rows: DataFrame) -> dict[str, Row]:
    return {row["entry_id"]: row for row in rows.collect()}


def test_json_that_is_no_such_json_is_quarantined_with_its_bytes(spark: SparkSession) -> None:
    good = b'{"id": "a", "amount": 12.5, "at": "2026-03-02T10:00:00.250Z", "more": 1}'
    spoilt = [
        b"\xff\xfe{}",
        b'{"id": "a", "amo',
        b'{"id": "a", "amount": "about 12"}',
        b'{"amount": 1}',
        None,
        b"",
        b"[]",
    ]
    rows = by_id(stages.decode(entries(spark, good, *spoilt), JSON))
    assert (rows["1-0"]["_status"], rows["1-0"]["_reason"], str(rows["1-0"]["amount"])) == ("out", None, "12.50")
    assert rows["1-0"]["at"].microsecond == 250_000
    reasons = [rows[f"1-{n}"]["_reason"] for n in range(1, 8)]
    assert reasons[0] == "the payload is not UTF-8"
    assert reasons[1] == reasons[2] == "the payload is no such JSON"
    assert reasons[3:5] == ["id is missing", "the entry has no field payload"]
    assert all(reasons)
    assert {row["_status"] for id_, row in rows.items() if id_ != "1-0"} == {"quarantined"}
    assert bytes(rows["1-1"]["_raw"]["payload"]) == spoilt[0]


def test_fields_are_cast_and_what_cannot_be_is_named(spark: SparkSession) -> None:
    how = Decode({"amount": "double", "n": "int"}, format="fields")
    frame = spark.createDataFrame(
        [
            ("s", "1-1", AT, {"amount": b"1.5", "n": b"7"}),
            ("s", "1-2", AT, {"amount": b"many", "n": b"7"}),
            ("s", "1-3", AT, {"n": b"\xff"}),
        ],
        ENTRIES,
    )
    rows = by_id(stages.decode(frame, how))
    assert (rows["1-1"]["amount"], rows["1-1"]["n"], rows["1-1"]["_status"]) == (1.5, 7, "out")
    assert rows["1-2"]["_reason"] == "amount is no double"
    assert rows["1-3"]["_reason"] == "n is no int"


def test_the_other_modes_drop_the_bytes_or_fail(spark: SparkSession) -> None:
    columns = {"id": "string"}
    (row,) = stages.decode(entries(spark, b"{"), Decode(columns, mode="DROPMALFORMED")).collect()
    assert (row["_status"], row["_raw"]) == ("quarantined", None)
    with pytest.raises(PySparkException, match="cannot decode s 1-0"):
        stages.decode(entries(spark, b"{"), Decode(columns, mode="FAILFAST")).collect()


def test_every_broken_rule_is_named_and_null_breaks_a_rule(spark: SparkSession) -> None:
    rules = [Rule("positive", "amount > 0"), Rule("dated", "at > timestamp '2000-01-01'")]
    payloads = [b'{"id":"a","amount":1,"at":"2026-01-01T00:00:00Z"}', b'{"id":"a","amount":-1}', b"{"]
    rows = by_id(stages.validate(stages.decode(entries(spark, *payloads), JSON), rules))
    assert rows["1-0"]["_status"] == "out"
    assert rows["1-1"]["_reason"] == "breaks positive, dated"
    assert rows["1-2"]["_reason"] == "the payload is no such JSON"  # the first reason stays


@pytest.mark.servers("redis8", "redis6")
def test_one_row_of_a_key_wins_and_on_every_replay_the_same(spark: SparkSession, server: Server, prefix: str) -> None:
    payloads = [b'{"id":"%d","amount":1}' % (n % 50) for n in range(200)] + [b"{", b'{"id":"0","amount":1}']
    rows = stages.decode(entries(spark, *payloads), JSON)
    address = Address(server.url, 5_000, 10_000)

    def winners(frame: DataFrame) -> dict[str, str]:
        found = stages.deduplicate(frame, Deduplicate("id"), address, prefix).collect()
        assert len(found) == 202
        assert all(row["_winner"] for row in found if row["_status"] == "duplicate")
        return {row["id"]: row["entry_id"] for row in found if row["_status"] == "out"}

    first = winners(rows.repartition(4))
    assert len(first) == 50
    assert winners(rows.repartition(7)) == first
    found = stages.deduplicate(rows, Deduplicate("id", by="spark"), address, prefix).groupBy("_status").count()
    assert dict(found.collect()) == {"out": 50, "duplicate": 151, "quarantined": 1}


@pytest.mark.servers("redis8")
def test_a_row_without_a_key_is_quarantined(spark: SparkSession, server: Server, prefix: str) -> None:
    rows = stages.decode(entries(spark, b'{"id":"a","amount":1}'), JSON)
    how = Deduplicate("nullif(id, 'a')")
    (row,) = stages.deduplicate(rows, how, Address(server.url, 5_000, 10_000), prefix).collect()
    assert (row["_status"], row["_reason"]) == ("quarantined", "the key is null")
    assert row["_raw"] is not None


def test_tiers_and_parts_of_the_day(spark: SparkSession) -> None:
    frame = spark.sql("select * from values (5, 3), (10, 6), (99, 13), (100, 18), (null, null) as t(amount, hour)")
    frame = frame.selectExpr("amount", "make_timestamp(2026, 3, 2, hour, 0, 0) as at")
    columns = [
        Enrich("tier", tier_of="amount", edges=(10, 100), labels=("s", "m", "l")),
        Enrich("part", part_of_day_of="at"),
        Enrich("both", expression="concat(tier, '/', part)"),
    ]
    found = [row["both"] for row in stages.enrich(frame, columns).collect()]
    assert found == ["s/night", "m/morning", "m/afternoon", "l/evening", None]


def test_a_route_takes_what_is_out_and_leaves_nulls(spark: SparkSession) -> None:
    payloads = [b'{"id":"a","amount":9}', b'{"id":"b","amount":1}', b'{"id":"c","amount":9', b'{"id":"d"}']
    rows = stages.decode(entries(spark, *payloads), JSON)
    assert [row.asDict() for row in stages.route(rows, Route("r", "amount > 5", "x", ("id",))).collect()] == [
        {"id": "a"}
    ]


def test_windows_are_counted_from_1970_without_a_gap(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(AT + dt.timedelta(minutes=n), n % 2, float(n)) for n in range(90)], "at timestamp, k int, v double"
    )
    how = Aggregate("w", "at", 3_600_000, ("k",), "v", (0.5, 0.999))
    found = {(row["window_start"].hour, row["k"]): row for row in windows(rows, how).collect()}
    assert {key: row["rows"] for key, row in found.items()} == {(12, 0): 30, (12, 1): 30, (13, 0): 15, (13, 1): 15}
    assert (found[12, 0]["p50"], found[12, 0]["most"], found[12, 0]["hour"]) == (29.0, 58.0, "2026-03-02_12")
    assert found[12, 0]["rows_per_s"] == pytest.approx(30 / 3600)


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[str]:
    name = "Europe/Zurich"
    spark.conf.set("spark.sql.session.timeZone", name)
    yield name
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("zone")
def test_the_hour_that_autumn_repeats_is_two_hours_of_windows(spark: SparkSession, tmp_path: Path) -> None:
    """In Zurich both 00:30 and 01:30 UTC are half past two on that night."""
    night = [dt.datetime(2026, 10, 25, hour, minute, tzinfo=dt.UTC) for hour in range(4) for minute in range(0, 60, 5)]
    rows = spark.createDataFrame([(at, 1.0) for at in night], "at timestamp, v double")
    how, path = Aggregate("w", "at", 900_000, of="v"), str(tmp_path / "w")

    def counted() -> dict[dt.datetime, int]:
        found = spark.read.parquet(path).selectExpr("unix_millis(window_start) as ms", "rows").collect()
        return {dt.datetime.fromtimestamp(row["ms"] / 1000, dt.UTC): row["rows"] for row in found}

    def refresh(some: DataFrame) -> None:
        aside = str(tmp_path / "aside")
        refreshed(rows, how, touched(some, how).windows).write.partitionBy(HOUR).parquet(aside)
        replace_hours(LocalPlace(), aside, path)

    refresh(rows)
    whole = counted()
    assert len(whole) == 16
    assert set(whole.values()) == {3}
    for at in night[6::12]:  # a late row, and with it the windows of its hour
        late = rows.where(f"unix_millis(at) = {int(at.timestamp() * 1000)}")
        refresh(late)
        assert counted() == whole, at
    hours = {row["hour"] for row in spark.read.parquet(path).select("hour").collect()}
    assert hours == {f"2026-10-25_0{hour}" for hour in range(4)}


def test_every_function_that_spark_calls_without_brackets_is_known(spark: SparkSession) -> None:
    """What an expression may not hold, because a repeated batch would come out otherwise."""
    row = spark.range(1)

    def is_called(word: str) -> bool:
        try:
            return bool(row.selectExpr(word).columns)
        except PySparkException:
            return False

    about = re.compile("cur|local|session|user|now|day|version|uuid|rand")
    words = {name for (name,) in spark.sql("show functions").collect() if name.isidentifier() and about.search(name)}
    found = {word for word in words | BARE if is_called(word)}
    assert {"current_timestamp", "current_date", "user"} <= found <= BARE


def test_a_column_goes_before_the_function_of_its_name(spark: SparkSession) -> None:
    how = Decode({"User": "string", "current_date": "string"})
    payloads = [b'{"User": "me", "current_date": "x"}', b'{"User": "you", "current_date": "x"}', b'{"User": "me"}']
    rule = Rule("mine", "user = 'me' and current_date = 'x'")
    rows = by_id(stages.validate(stages.decode(entries(spark, *payloads), how), [rule]))
    assert [rows[f"1-{n}"]["_status"] for n in range(3)] == ["out", "quarantined", "quarantined"]
