"""Pipeline files: what is understood, and what is refused with which words. No Spark is started."""

from __future__ import annotations

import copy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.pipeline import (
    Aggregate,
    Decode,
    Deduplicate,
    Enrich,
    Pipeline,
    Route,
    Rule,
    pipeline_of,
    read_toml,
)
from headrace.spark.pipeline.expressions import check_expression
from headrace.spark.pipeline.run import check, gist
from headrace.spark.source_options import SourceSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "payments" / "payments.toml"

SMALL: dict[str, Any] = {
    "name": "orders",
    "folder": "data",
    "source": {"streams": ["orders"]},
    "decode": {"columns": {"id": "string", "amount": "double", "at": "timestamp"}, "required": ["id"]},
    "validate": [{"name": "positive", "rule": "amount > 0"}],
    "deduplicate": {"key": "id", "window": "1h"},
    "enrich": {"tier": {"tier_of": "amount", "edges": [10, 100]}, "day": {"expression": "to_date(at)"}},
    "route": [{"name": "large", "when": "amount > 100", "stream": "large-orders"}],
    "aggregate": [{"name": "hours", "time": "at", "window": "1h", "of": "amount"}],
    "spark": {"spark": {"sql": {"shuffle": {"partitions": 3}}}},
}


def test_a_file_and_python_make_the_same_object() -> None:
    assert pipeline_of(SMALL) == Pipeline(
        name="orders",
        folder="data",
        source={"streams": '["orders"]'},
        decode=Decode({"id": "string", "amount": "double", "at": "timestamp"}, required=("id",)),
        validate=(Rule("positive", "amount > 0"),),
        deduplicate=Deduplicate("id", 3_600_000),
        enrich=(Enrich("tier", tier_of="amount", edges=(10, 100)), Enrich("day", expression="to_date(at)")),
        routes=(Route("large", "amount > 100", "large-orders"),),
        aggregates=(Aggregate("hours", "at", 3_600_000, of="amount"),),
        spark={"spark.sql.shuffle.partitions": "3"},
    )


def test_the_example_is_a_pipeline() -> None:
    pipeline = read_toml(EXAMPLE)
    assert pipeline.name == "payments"
    assert [one.name for one in pipeline.routes] == ["review"]
    assert tomllib.loads(EXAMPLE.read_text())["deduplicate"]["window"] == "24h"


def _with(path: str, value: Any) -> dict[str, Any]:
    told = copy.deepcopy(SMALL)
    *folders, last = path.split("/")
    place: Any = told
    for folder in folders:
        place = place[int(folder) if folder.isdigit() else folder]
    place[last] = value
    return told


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("nmae", "x", "did you mean 'name'"),
        ("name", "Two Words", "use small letters"),
        ("folder", "", "folder is empty"),
        ("decode/colums", {}, "did you mean 'columns'"),
        ("decode/columns", {"id": "text"}, "give a type such as"),
        ("decode/columns", {"query": "string"}, "not query or batch"),
        ("decode/mode", "PERMISIVE", "did you mean|there are"),
        ("decode/required", ["ids"], "did you mean 'id'"),
        ("validate/0/rule", "", "write a SQL expression"),
        ("validate/0/rule", "java_method('java.lang.Runtime', 'getRuntime') is null", "may not call"),
        ("deduplicate/window", "1ms", "shorter than a second"),
        ("enrich/tier", {"tier_of": "amount", "edges": [5, 1]}, "rising order"),
        ("enrich/tier", {"tier_of": "amont", "edges": [5]}, "did you mean 'amount'"),
        ("enrich/id", {"expression": "1"}, "two things are called column 'id'"),
        ("route/0/stream", "a:hr:b", "marks Headrace's own keys"),
        ("route/0/columns", ["idd"], "did you mean 'id'"),
        ("aggregate/0/percentiles", [95], "between 0 and 1"),
        ("aggregate/0/name", "quarantine", "two things are called table"),
        ("aggregate", {}, r"write \[\[aggregate\]\]"),
        ("decode/columns", {"Batch": "string"}, "not query or batch"),
        ("decode/columns", {"id": "string", "ID": "string"}, "'ID' and 'id', which Spark does not tell apart"),
        ("decode/columns", {"id": "string", "entry_id": "string"}, "two things are called column 'entry_id'"),
        ("enrich/Amount", {"expression": "1"}, "'Amount' and 'amount'"),
        ("enrich/entry_at", {"expression": "at"}, "two things are called column 'entry_at'"),
        ("enrich/tier", {"tier_of": "at", "edges": [5]}, "at, which is a timestamp: give one that is a number"),
        ("enrich/part", {"part_of_day_of": "amount"}, "amount, which is a double: give one that is a time"),
        ("route/0/columns", ["id", "id"], "two things are called column of route large 'id'"),
        ("aggregate/0/time", "id", "id, which is a string: give one that is a date or a timestamp"),
        ("aggregate/0/of", "tier", "tier, which is a string: give one that is a number"),
        ("aggregate/0/by", ["id", "id"], "two things are called column of aggregate hours.by 'id'"),
        ("aggregate/0/percentiles", [0.5, 0.5], "two things are called percentile of aggregate hours 'p50'"),
        ("spark", {"spark.jars": "x.jar"}, "may not set"),
        ("spark", {"spark.driver.extraJavaOptions": "-X"}, "may not set"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_nearest_word(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pipeline_of(_with(path, value))


@pytest.mark.parametrize("name", ["hour", "Rows", "p50", "window_start"])
def test_windows_are_not_grouped_by_a_name_that_they_make_themselves(name: str) -> None:
    told = _with(f"decode/columns/{name}", "string")
    told["aggregate"][0]["by"] = [name]
    with pytest.raises(ConfigError, match=f"uses the column {name}, and makes one of that name itself"):
        pipeline_of(told)


def test_a_route_sends_no_column_that_has_no_one_text_or_that_the_sink_would_leave_out() -> None:
    told = _with("decode/columns/tags", "array<string>")
    with pytest.raises(ConfigError, match=r"tags, which is an array<string> .* to_json\(tags\)"):
        pipeline_of(told)
    told["route"][0]["columns"] = ["id"]
    assert pipeline_of(told).routes[0].columns == ("id",)
    with pytest.raises(ConfigError, match="the column stream, which the sink takes for a target"):
        pipeline_of(_with("decode/columns/stream", "string"))


@pytest.mark.parametrize(
    ("path", "value", "source"),
    [
        ("route/0/stream", "orders", {"streams": ["orders"]}),
        ("route/0/stream", "orders-large", {"streamsPattern": "orders*"}),
        ("quarantine", {"stream": "orders"}, {"streams": ["invoices", "orders"]}),
        ("quarantine", {"stream": "orders-b"}, {"streamsPattern": "orders-[^a]"}),
    ],
)
def test_a_pipeline_does_not_feed_itself(path: str, value: Any, source: dict[str, Any]) -> None:
    told = {**_with(path, value), "source": {**source, "url": "redis://localhost"}}
    with pytest.raises(ConfigError, match=r"which \[source\] reads: it would feed itself"):
        check(pipeline_of(told))
    told["source"] = {"streams": ["others"], "url": "redis://localhost"}
    check(pipeline_of(told))


def test_a_name_in_a_list_may_hold_a_comma() -> None:
    for streams, meant in ((["orders,eu"], ("orders,eu",)), (["b", "a"], ("a", "b")), ("b, a", ("a", "b"))):
        told = pipeline_of({**SMALL, "source": {"streams": streams, "url": "redis://localhost"}})
        assert SourceSettings.of(told.source, streaming=True).streams == meant


OF_PYTHON = """PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in f
    g()
KeyError: 'a'

\tat org.apache.spark.X(Y.scala:1)
"""
OF_JAVA = """Py4JJavaError: An error occurred while calling o48.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.X
"""
CAUSES = "Caused by: a.B: first\n\tat c\nCaused by: d.E: last\n\t... 1 more\n"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (OF_PYTHON, "KeyError: 'a'"),
        (OF_JAVA, "org.apache.spark.SparkException: Job aborted."),
        (OF_JAVA + CAUSES, "d.E: last"),
        ("X: a\n  headrace.errors.Unavailable: gone\nCaused by: y", "headrace.errors.Unavailable: gone"),
        ("[UNRESOLVED_COLUMN] x", "[UNRESOLVED_COLUMN] x"),
        ("\n", "the query ended without a word"),
    ],
)
def test_of_a_long_error_the_line_is_told_that_says_what_happened(told: str, words: str) -> None:
    assert gist(told) == words


def test_a_route_beside_a_quarantine_with_a_stream_has_another_name() -> None:
    told = _with("route/0/name", "quarantine")
    assert pipeline_of(told).routes[0].name == "quarantine"
    with pytest.raises(ConfigError, match="two things are called route 'quarantine'"):
        pipeline_of({**told, "quarantine": {"stream": "bad-orders"}})


@pytest.mark.parametrize(
    "text",
    [
        "reflect('java.util.UUID', 'randomUUID') = 'x'",
        "try_reflect('a', 'b') = 'x'",
        "amount > (select max(a) from other)",
        "exists(select 1)",
        "amount > 0 -- comment",
        "amount > 0; drop table x",
        "ai_query('model', id)",
        "`reflect`('a', 'b')",
        "input_file_name ( ) = 'x'",
        "transform(list, x -> x)",
        "uuid() = 'x'",
        "'open",
    ],
)
def test_an_expression_computes_with_columns_and_does_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError):
        check_expression(text, name="rule")


@pytest.mark.parametrize("text", ["a > 0", "lower(c) in ('x', 'it''s (fine)')", "not (a and b)", "cast(a as int) = 1"])
def test_ordinary_expressions_pass(text: str) -> None:
    assert check_expression(text, name="rule") == text


@pytest.mark.parametrize("word", ["current_timestamp", "CURRENT_DATE", "current_time", "localtimestamp", "user"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("validate/0/rule", "id <> {}"),
        ("deduplicate/key", "concat(id, {})"),
        ("enrich/day", {"expression": "{} > at"}),
        ("route/0/when", "at <= {}"),
    ],
)
def test_a_function_without_brackets_is_refused_because_a_repeated_batch_must_come_out_the_same(
    path: str, value: Any, word: str
) -> None:
    told = value.format(word) if isinstance(value, str) else {"expression": value["expression"].format(word)}
    with pytest.raises(ConfigError, match=rf"{word}.*no column.*entry_at") as caught:
        pipeline_of(_with(path, told))
    assert str(caught.value).isprintable()


def test_a_column_may_be_called_like_a_function_without_brackets_where_it_is_known() -> None:
    told = _with("decode/columns", {**SMALL["decode"]["columns"], "User": "string"})
    told["validate"] = [{"name": "somebody", "rule": "user <> '' and 'current_user' <> id"}]
    assert pipeline_of(told).validate[0].rule.startswith("user")
    later = _with("enrich/user", {"expression": "id"})
    later["route"][0]["when"] = "user = 'x'"
    assert pipeline_of(later).routes[0].when == "user = 'x'"
    later["validate"][0]["rule"] = "user = 'x'"  # rules come before the column is there
    with pytest.raises(ConfigError, match="no column is called so at that place"):
        pipeline_of(later)


@pytest.mark.parametrize(
    "text",
    [
        "at <= timestamp 'now'",
        "at <= 'now'",
        "date_add( ' Today ', 1) > at",
        "cast('tomorrow UTC' as timestamp) > at",
        "to_date('yesterday+01:00') > at",
        'at < timestamp("NOW")',
        "unix_timestamp() > 5",
        "UNIX_TIMESTAMP ( ) > 5",
        r"at <= 'n\u006fw'",
        r"at <= '\156ow'",
        r"at <= timestamp 'now\t'",
    ],
)
def test_the_time_of_the_run_is_refused_however_it_is_asked_for(text: str) -> None:
    with pytest.raises(ConfigError, match="entry_at"):
        check_expression(text, name="rule")


@pytest.mark.parametrize("text", ["at <= cast('no' 'w' as timestamp)", "at <= 'no'\"w\"", "a = 'x'\n'y'"])
def test_two_texts_side_by_side_are_refused_because_spark_makes_one_of_them(text: str) -> None:
    with pytest.raises(ConfigError, match="side by side"):
        check_expression(text, name="rule")


def test_a_time_of_the_run_that_is_put_together_from_pieces_is_not_recognised() -> None:
    assert check_expression("at <= concat('n', 'ow')", name="rule")


@pytest.mark.parametrize(
    "text",
    [
        r"a rlike '\\d+\\s'",
        "a = 'it''s' or a = 'x'",
        "a = 'nowhere'",
        "a rlike '^now$'",
        "a = 'today is fine'",
        "unix_timestamp('1970') > 0",
    ],
)
def test_words_about_time_that_are_only_words_pass(text: str) -> None:
    assert check_expression(text, name="rule") == text


def test_reading_a_pipeline_loads_no_spark() -> None:
    code = "import sys, headrace.spark.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
