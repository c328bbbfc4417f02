"""Real Spark for the connector's tests: one session for all of them, because starting it takes most of the time.

spark         a local session with two cores
read          read(server, streams="orders", ...): a batch DataFrame
query         a streaming query into a list; see tests/spark/querying.py
connect       a Spark Connect server with a Redis of its own
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.querying import Query
    from tests.support.spark_connect import ConnectServer

MISSING = [name for name in ("pyspark", "pyarrow", "numpy") if importlib.util.find_spec(name) is None]
if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    MISSING.append("java")
PATIENCE_S = 240
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> str:
    return f"spark: MISSING {', '.join(MISSING)}; its tests are left out" if MISSING else "spark: at hand"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first starts Spark. A time-out would break the session's gateway for all that follow.

    All that run Spark are marked: `make test` runs them apart, in two processes, each with one JVM at work most of the
    time. What shares the session is a group, so that it is started once. The pipeline's tests take as long as all the
    others and are one of their own: so both processes are busy to the end.
    """
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.jvm)
            part = "pipeline" if item.path.stem.startswith("test_pipeline_") else "session"
            item.add_marker(pytest.mark.xdist_group(f"spark-{part}"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from headrace.spark import register
    from tests.support import spark_archive

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_HOME"] = str(spark_archive.home())
    os.environ["PYSPARK_SUBMIT_ARGS"] = spark_archive.submit_arguments()
    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
        "spark.sql.session.timeZone": "UTC",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of py4j and of Spark's own start
        builder = SparkSession.builder.master("local[2]").appName("headrace-tests")
        session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)  # processes of their own, as the demo's and those of test_faults, find it by themselves
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Spark looks sources up in the thread's active session, which a query of an earlier test may have changed."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., DataFrame]:
    def load(server: Server, schema: Any = None, **options: Any) -> DataFrame:
        reader = spark.read.format("redis-streams").option("url", server.url)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**{word: str(value) for word, value in options.items()}).load()

    return load


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    from tests.spark.querying import Query

    begun: list[Query] = []

    def begin(server: Server, checkpoint: str = "checkpoint", **options: Any) -> Query:
        one = Query(spark, server, tmp_path / checkpoint, options)
        begun.append(one)
        return one

    yield begin
    for one in begun:
        one.stop()


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    from tests.support.servers import start_server
    from tests.support.spark_connect import ConnectServer

    redis = start_server("redis8")
    one = ConnectServer(tmp_path_factory.mktemp("connect"), redis)
    yield one
    one.stop()
    redis.stop()
