"""Wrong options, a server that is not there, a wrong password: one clear error, as early as Spark lets it out.

Without a schema of the user's that is load(). With one Spark runs no Python before it plans: then it is the first
action of a batch read, and of a streaming query its first moment, before any offset is asked for. A batch write says it
in save(), a streaming one with its first batch. Whoever wants to know before asks headrace.spark.check().
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.spark import check
from tests.support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.servers("redis8")

NOWHERE = "redis://127.0.0.1:1"
PASSWORD = "not-the-one"
TEXT = "refused-text"
SOURCE = {
    "unknown": ({"streams": "s", "maxOffset": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
    "unfit": ({"streams": "s", "blockMs": "soon"}, "blockMs is 'soon': give a whole number"),
    "unreachable": ({"streams": "s", "url": NOWHERE}, "127.0.0.1:1.*check the URL, and that the server runs"),
    "password": ({"streams": "s", "redis.password": PASSWORD}, "check user and password"),
}
SINK = {
    "unknown": ({"stream": "s", "maxlenn": "5"}, "did you mean 'maxlen'"),
    "unfit": ({"stream": "s", "maxlen": "soon"}, "maxlen is 'soon': give a whole number"),
    "unreachable": (
        {"stream": "s", "url": NOWHERE, "retryTimeout": "1s"},
        "127.0.0.1:1.*check the URL, and that the server runs",
    ),
    "password": ({"stream": "s", "redis.password": PASSWORD}, "check user and password"),
    "no stream": ({"stream": TEXT}, "holds a string, not a stream"),
    "no partitions": ({"stream": "s", "partitionKey": "n"}, "s has no partitions"),
}
NO_TARGET = {"no target": ({}, "no target is known")}  # which a column may be: known when the columns are


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The URL of a server with a password."""
    from tests.support.servers import start_server

    server = start_server("redis8")
    server.sync().config_set("requirepass", "right")
    yield server.url
    server.stop()


@pytest.fixture(autouse=True)
def text(server: Server) -> Iterator[None]:
    """A key that is no stream."""
    server.sync().set(TEXT, "text")
    yield
    server.sync().delete(TEXT)


def short(error: pytest.ExceptionInfo[Any]) -> str:
    """What Spark tells: our line is in it, the password is not, and little stands around it."""
    told = str(error.value)
    assert PASSWORD not in told
    assert told.count("File ") <= 4, told
    assert "During handling" not in told
    assert "direct cause" not in told
    return told


def options(server: Server, guarded: str, about: dict[str, str]) -> dict[str, str]:
    return {"url": guarded if "redis.password" in about else server.url, **about}


@pytest.mark.parametrize("wrong", SOURCE)
@pytest.mark.parametrize("schema", [None, "n string"], ids=["", "schema"])
def test_a_batch_read_says_what_is_wrong(
    spark: SparkSession, server: Server, guarded: str, wrong: str, schema: str | None
) -> None:
    about, says = SOURCE[wrong]
    reading = spark.read.format("redis-streams").options(**options(server, guarded, about))
    if schema is None:
        with pytest.raises(PySparkException, match=says) as error:
            reading.load()
    else:
        frame = reading.schema(schema).load()
        with pytest.raises(PySparkException, match=says) as error:
            frame.collect()
    short(error)


def ended(frame: DataFrame, writing: Callable[[Any], Any], folder: Path) -> None:
    query = writing(frame.writeStream.option("checkpointLocation", str(folder))).start()
    try:
        query.awaitTermination(30)
    finally:
        query.stop()


@pytest.mark.parametrize("wrong", SOURCE)
@pytest.mark.parametrize("schema", [None, "n string"], ids=["", "schema"])
def test_a_streaming_read_says_what_is_wrong(
    spark: SparkSession, server: Server, guarded: str, wrong: str, schema: str | None, tmp_path: Path
) -> None:
    about, says = SOURCE[wrong]
    reading = spark.readStream.format("redis-streams").options(**options(server, guarded, about))
    if schema is None:
        with pytest.raises(PySparkException, match=says) as error:
            reading.load()
    else:
        frame = reading.schema(schema).load()
        with pytest.raises(PySparkException, match=says) as error:
            ended(frame, lambda writing: writing.format("noop"), tmp_path / "checkpoint")
        assert not list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")), "no batch was planned"
    short(error)


@pytest.mark.parametrize("wrong", SINK | NO_TARGET)
def test_a_batch_write_says_what_is_wrong(spark: SparkSession, server: Server, guarded: str, wrong: str) -> None:
    about, says = (SINK | NO_TARGET)[wrong]
    rows = spark.range(3).selectExpr("cast(id as string) as n")
    with pytest.raises(PySparkException, match=says) as error:
        rows.write.format("redis-streams").options(**options(server, guarded, about)).mode("append").save()
    short(error)


@pytest.mark.parametrize("wrong", SINK | NO_TARGET)
def test_a_streaming_write_says_what_is_wrong(
    spark: SparkSession, server: Server, guarded: str, wrong: str, tmp_path: Path
) -> None:
    about, says = (SINK | NO_TARGET)[wrong]
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("string(value) n")
    given = options(server, guarded, about)
    with pytest.raises(PySparkException, match=says) as error:
        ended(rows, lambda writing: writing.format("redis-streams").options(**given), tmp_path / "checkpoint")
    short(error)


@pytest.mark.parametrize("what", [*(("source", wrong) for wrong in SOURCE), *(("sink", wrong) for wrong in SINK)])
def test_whoever_asks_is_told_before_spark_starts_anything(server: Server, guarded: str, what: tuple[str, str]) -> None:
    about, says = {"source": SOURCE, "sink": SINK}[what[0]][what[1]]
    with pytest.raises(HeadraceError, match=says) as error:
        check(**options(server, guarded, about))
    assert PASSWORD not in str(error.value)


def test_nothing_is_said_where_nothing_is_wrong(server: Server, stream: str) -> None:
    check(url=server.url, stream=stream, checkpointLocation="somewhere", maxlen=1_000, acceptGap=True)
    check(url=server.url, streams=stream, maxOffsetsPerTrigger=5, failOnDataLoss=False)
    assert server.sync().exists(stream) == 0


def test_a_streaming_write_at_rest_says_nothing_and_check_does(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """Spark asks a sink for the first time when there is something to write."""
    (tmp_path / "rows").mkdir()
    rows = spark.readStream.schema("n string").json(str(tmp_path / "rows"))
    writing = rows.writeStream.format("redis-streams").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.options(url=server.url, stream="s", maxlenn="5").start()
    try:
        query.processAllAvailable()
        assert query.isActive
        with pytest.raises(HeadraceError, match="did you mean 'maxlen'"):
            check(url=server.url, stream="s", maxlenn="5")
        (tmp_path / "rows" / "one.json").write_text('{"n": "1"}\n')
        with pytest.raises(PySparkException, match="did you mean 'maxlen'"):
            query.processAllAvailable()
    finally:
        query.stop()
