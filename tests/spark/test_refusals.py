"""Wrong options, a server that is not there, a wrong password: one clear error, as early as Spark lets it out.

Without a schema of the user's that is load(). With one Spark runs no Python before it plans: then it is the first
action of a batch read, and of a streaming query its first moment, before any offset is asked for. A batch write says it
in save(), a streaming one with its first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.servers("redis8")

NOWHERE = "redis://127.0.0.1:1"
PASSWORD = "not-the-one"
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
    "no target": ({}, "no target is known"),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The URL of a server with a password."""
    from tests.support.servers import start_server

    server = start_server("redis8")
    server.sync().config_set("requirepass", "right")
    yield server.url
    server.stop()


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


@pytest.mark.parametrize("wrong", SINK)
def test_a_batch_write_says_what_is_wrong(spark: SparkSession, server: Server, guarded: str, wrong: str) -> None:
    about, says = SINK[wrong]
    rows = spark.range(3).selectExpr("cast(id as string) as n")
    with pytest.raises(PySparkException, match=says) as error:
        rows.write.format("redis-streams").options(**options(server, guarded, about)).mode("append").save()
    short(error)


@pytest.mark.parametrize("wrong", SINK)
def test_a_streaming_write_says_what_is_wrong(
    spark: SparkSession, server: Server, guarded: str, wrong: str, tmp_path: Path
) -> None:
    about, says = SINK[wrong]
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("string(value) n")
    given = options(server, guarded, about)
    with pytest.raises(PySparkException, match=says) as error:
        ended(rows, lambda writing: writing.format("redis-streams").options(**given), tmp_path / "checkpoint")
    short(error)
