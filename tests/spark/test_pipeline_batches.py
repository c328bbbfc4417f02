"""Single batches with odd names, odd rows and pipelines that changed since the last one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from headrace.names import keys_of
from headrace.spark import staging
from headrace.spark.pipeline import Aggregate, Decode, Deduplicate, Enrich, Route, Rule
from headrace.spark.pipeline.ledger import Ledger, LedgerBroken
from headrace.spark.pipeline.spans import meet, runs
from headrace.spark.pipeline.tables import Batch, ColumnChanged, ForeignPipeline, Table
from headrace.spark.report import gather
from headrace.spark.sink import Written, make_writer
from headrace.spark.sink_options import read_options
from headrace.spark.staging import PatientLink
from tests.spark.batches import COLUMNS, Batches, payload
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]


@pytest.fixture
def batches(spark: SparkSession, server: Server, prefix: str, tmp_path: Path) -> Batches:
    return Batches(spark, server, prefix, tmp_path)


def test_a_route_may_be_called_like_a_part_of_the_books(batches: Batches) -> None:
    names = ("in", "out", "duplicates", "quarantined", "quarantine")
    routes = tuple(Route(name, "amount > 2", batches.stream(name), ("id",)) for name in names)
    done = batches.run(*(payload(str(n), n) for n in range(5)), b"{", routes=routes)
    assert (done.rows_in, done.out, done.quarantined, done.routes) == (6, 5, 1, dict.fromkeys(names, 2))
    assert [batches.client.xlen(batches.stream(name)) for name in names] == [2] * 5


def test_a_time_outside_of_the_years_that_can_be_computed_with_is_quarantined(batches: Batches) -> None:
    hours = Aggregate("hours", "created", 3_600_000, of="amount")
    edges = [payload("a", created="0001-01-01T00:00:00Z"), payload("b", created="9999-12-31T23:59:59.999Z")]
    far = ("+294247-01-10T04:00:54Z", "-290308-12-21T19:59:06Z", "+10000-01-01T00:00:00Z")
    done = batches.run(payload("c"), *edges, *(payload("d", created=created) for created in far), aggregates=(hours,))
    assert (done.out, done.quarantined) == (3, 3)
    assert batches.reasons() == dict.fromkeys("345", "created is not in the years 1 to 9999")
    assert batches.table("hours").count() == 3


def test_a_computed_time_that_cannot_be_computed_with_is_in_no_window(batches: Batches) -> None:
    far = Enrich("far", expression="date_add(to_date(created), cast(amount as int))")
    hours = Aggregate("hours", "far", 86_400_000)
    done = batches.run(payload("a", 1), payload("b", 2_000_000_000), enrich=(far,), aggregates=(hours,))
    assert done.out == 2
    assert [row["rows"] for row in batches.table("hours").collect()] == [1]


def test_a_rule_that_cannot_be_computed_is_broken(batches: Batches) -> None:
    rules = (Rule("positive", "amount > 0"), Rule("share", "1 / amount < 0.5"), Rule("number", "id > 0"))
    batches.run(payload("1"), payload("2", 0), payload("x"), validate=rules)
    assert batches.reasons() == {"1": "breaks positive, share", "2": "breaks number"}
    assert batches.spark.conf.get("spark.sql.ansi.enabled") == "true"  # of the session it says nothing


def test_a_sum_that_no_number_holds_is_null(batches: Batches) -> None:
    huge = Enrich("huge", expression="cast(amount as bigint) * 1000000000000000000")
    hours = Aggregate("hours", "created", 3_600_000, of="huge")
    batches.run(payload("a"), payload("b"), enrich=(huge,), aggregates=(hours,))
    assert [(row["rows"], row["total"]) for row in batches.table("hours").collect()] == [(2, None)]


def test_a_key_that_is_no_text_is_a_key(batches: Batches) -> None:
    done = batches.run(*map(payload, ("ff", "61", "ff", "c3a4")), deduplicate=Deduplicate("unhex(id)"))
    again = batches.run(*map(payload, ("fe", "ff", "61", "c3a4")))
    texts = batches.run(payload("a"), payload("\u00e4"), payload("b"), deduplicate=Deduplicate("id"))
    assert [(one.out, one.duplicates) for one in (done, again, texts)] == [(3, 1), (1, 3), (1, 2)]


def test_a_payload_of_more_than_one_document_or_of_loose_json_is_quarantined(batches: Batches) -> None:
    good = (payload("a"), b' {"id": "b"}\n', b'{"id": "}{", "amount": 1}')
    more = (b'{"id": "c"}{"id": "d"}', b'{"id": "e"} and so on', b'{"id": "f"},{"id": "g"}')
    loose = (b"{'id': 'h'}", b'{"id": "i", "amount": NaN}', b'{"id": "j", "amount": "Infinity"}')
    done = batches.run(*good, *more, *loose)
    assert (done.out, done.quarantined) == (3, 6)
    reasons = batches.reasons()
    assert [reasons[str(at)] for at in range(3, 6)] == ["the payload is more than one JSON document"] * 3
    assert [reasons[str(at)] for at in range(6, 9)] == ["the payload is no such JSON"] * 3


def test_a_row_that_no_stream_can_take_goes_to_the_dead_letters_of_its_route(batches: Batches) -> None:
    far = Enrich("far", expression="date_add(to_date(created), cast(amount as int))")
    routes = (
        Route("notes", "id is not null", batches.stream("notes"), ("note",)),
        Route("dates", "id is not null", batches.stream("dates"), ("id", "far")),
    )
    more = Decode({**COLUMNS, "note": "string"})
    rows = (payload("a", note="x"), payload("b"), payload("c", 1_000_000_000))
    done = batches.run(*rows, decode=more, enrich=(far,), routes=routes)
    assert done.routes == {"notes": 3, "dates": 3}
    assert [fields for _, fields in batches.client.xrange(batches.stream("notes"))] == [{b"note": b"x"}]
    assert [fields[b"id"] for _, fields in batches.client.xrange(batches.stream("dates"))] == [b"a", b"b"]
    dead = [batches.client.xrange(keys_of(one.stream).dead_letters) for one in routes]
    assert [[fields.get(b"id") for _, fields in one] for one in dead] == [[None, None], [b"c"]]
    assert [{fields[b"_reason"] for _, fields in one} for one in dead] == [
        {b"the row has no fields: all its values are null"},
        {b"far is not in the years 1 to 9999"},
    ]


# ── a pipeline that changed ──


def test_columns_that_a_pipeline_gained_are_null_in_older_rows_and_windows_and_report_follow(batches: Batches) -> None:
    batches.run(payload("a"), payload("b"))
    more = Decode({**COLUMNS, "shop": "string"})
    twice, by_shop = (
        Enrich("twice", expression="amount * 2"),
        Aggregate("shops", "created", 3_600_000, ("shop",), "twice"),
    )
    parts = {"decode": more, "enrich": (twice,), "aggregates": (by_shop,)}
    assert gather(batches.spark, batches.made(**parts))["columns"] == {}
    batches.run(payload("c", shop="x"), **parts)
    found = {(row["shop"], row["rows"], row["total"]) for row in batches.table("shops").collect()}
    assert found == {(None, 2, None), ("x", 1, 10.0)}
    ranking = gather(batches.spark, batches.pipeline)["columns"]["shop"]
    assert ranking == [{"what": "(none)", "rows": 2}, {"what": "x", "rows": 1}]


def test_a_column_that_changed_its_type_is_refused_before_anything_is_written(batches: Batches) -> None:
    batches.run(payload("a"))
    for name in ("amount", "AMOUNT"):
        with pytest.raises(ColumnChanged, match=rf"rows has the column {name} as double, .* makes it decimal\(14,2\)"):
            batches.run(payload("b"), decode=Decode({"id": "string", name: "decimal(14,2)"}))
    assert batches.table().count() == 1


def test_a_folder_belongs_to_one_pipeline(batches: Batches) -> None:
    batches.run(payload("a"))
    with pytest.raises(ForeignPipeline, match="duplicates belongs to the pipeline"):
        batches.run(payload("b"), name="another", table="others")
    assert batches.table().count() == 1


def test_windows_read_only_the_batches_that_hold_their_hours(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    whole = Table.read

    def seen(self: Table, spark: SparkSession, chosen: Sequence[Batch]) -> DataFrame:
        read.append(sorted(number for _, number in chosen))
        return whole(self, spark, chosen)

    monkeypatch.setattr(Table, "read", seen)
    first, later = "2026-03-02T10:00:00Z", "2026-03-09T10:30:00Z"
    batches.run(payload("a", created=first), payload("b", created=later))  # before there was an aggregate
    days = Aggregate("days", "created", 86_400_000)
    for created in (first, later, first):
        batches.run(payload("x", created=created), aggregates=(days,))
    assert read == [[0], [0, 1], [0, 2], [0, 1, 3]]  # nothing was known of the first batch: it is read once for that
    found = {row["window_start"].day: row["rows"] for row in batches.table("days").collect()}
    assert found == {2: 3, 9: 2}
    shutil.rmtree(next(Path(batches.pipeline.folder).rglob("_spans")))
    batches.run(payload("y", created=later), batch=2)  # again, with another row
    assert read[4:] == [[0, 1, 3], [0, 2]]
    assert {row["window_start"].day: row["rows"] for row in batches.table("days").collect()} == found


def test_hours_are_told_in_few_runs_that_leave_none_out() -> None:
    hours = [7, 3, 4, 90, *range(1_000, 2_000), *range(5_000, 9_000, 500)]
    told = runs(hours)
    assert len(told) == 8
    assert all(meet([(hour, hour)], told) for hour in hours)
    assert not meet([(500, 600), (3_000, 4_000)], told)
    assert runs([]) == []


# ── a batch that failed behind the sink, and a pipeline that changed before its repeat ──


def die_behind_the_sink(batches: Batches, rows: list[bytes], route: Route) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("died")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "put", die)
        with pytest.raises(RuntimeError, match="died"):
            batches.run(*rows, batch=0, routes=(route,))


def die_inside_of_it(batches: Batches, rows: list[bytes], route: Route) -> None:
    """After the decision, and before the first row is published."""
    del rows
    app, url = f"{batches.pipeline.name}/q/{route.name}", batches.pipeline.source["url"]
    options = {"url": url, "stream": route.stream, "txnAppId": app, "txnVersion": "0"}
    writer = make_writer(options, StructType([StructField("id", StringType())]), overwrite=False)
    written = writer.write(iter([pa.record_batch({"id": ["2", "3", "4"]})]))  # type: ignore[arg-type]
    assert isinstance(written, Written)
    with PatientLink(read_options(options).address, 0) as link:
        decision, manifest = staging.decision_name(route.stream, app), staging.manifest_of(written.lists)
        assert link.call(staging.decide(decision, 0, manifest, strict=False, expire_s=0))[0] == "chosen"


@pytest.mark.parametrize(
    ("die", "now"),
    [(die_behind_the_sink, "amount > 3"), (die_behind_the_sink, "amount > 9"), (die_inside_of_it, "amount > 9")],
    ids=["fewer rows", "no row", "no row, and nothing was published"],
)
def test_a_rule_of_a_route_that_changed_before_a_repeat_is_told_with_the_way_out(
    batches: Batches, die: Callable[[Batches, list[bytes], Route], None], now: str
) -> None:
    rows = [payload(str(n), n) for n in range(5)]
    before, after = (Route("large", when, batches.stream("large"), ("id",)) for when in ("amount > 1", now))
    die(batches, rows, before)
    for _ in range(2):
        with pytest.raises(LedgerBroken, match=r"route large: 3 written, . read.*put it back as it was .--once"):
            batches.run(*rows, batch=0, routes=(after,))
    assert batches.run(*rows, batch=0, routes=(before,)).routes == {"large": 3}
    again = batches.run(*rows, routes=(after,))
    assert batches.client.xlen(batches.stream("large")) == 3 + again.routes["large"]


def test_routes_reach_the_server_with_the_times_of_the_source(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []
    whole = DataFrameWriter.options

    def seen(self: DataFrameWriter, **options: str) -> DataFrameWriter:
        asked.append(options)
        return whole(self, **options)

    monkeypatch.setattr(DataFrameWriter, "options", seen)
    times = {"redis.connectTimeout": "2500ms", "redis.commandTimeout": "7s"}
    route = Route("all", "id is not null", batches.stream("all"), ("id",))
    source = {**batches.pipeline.source, **times}
    assert batches.run(payload("a"), source=source, routes=(route,)).routes == {"all": 1}
    (told,) = (one for one in asked if "url" in one)
    assert (told["redis.connectTimeout"], told["redis.commandTimeout"]) == ("2500ms", "7000ms")
