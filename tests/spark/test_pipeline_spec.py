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
        source={"streams": "orders"},
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
        ("spark", {"spark.jars": "x.jar"}, "may not set"),
        ("spark", {"spark.driver.extraJavaOptions": "-X"}, "may not set"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_nearest_word(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pipeline_of(_with(path, value))


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
    ],
)
def test_the_time_of_the_run_is_refused_however_it_is_asked_for(text: str) -> None:
    with pytest.raises(ConfigError, match="entry_at"):
        check_expression(text, name="rule")


@pytest.mark.parametrize(
    "text", ["a = 'nowhere'", "a rlike '^now$'", "a = 'today is fine'", "unix_timestamp('1970') > 0"]
)
def test_words_about_time_that_are_only_words_pass(text: str) -> None:
    assert check_expression(text, name="rule") == text


def test_reading_a_pipeline_loads_no_spark() -> None:
    code = "import sys, headrace.spark.pipeline; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
