"""The example examples/declarative, run as a user runs it."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import spark_archive
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, Child, spark_env
from tests.support.spark_connect import ConnectServer

NEEDED = ("grpc", "grpc_status", "pandas", "zstandard", "yaml")
LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.jvm,
    pytest.mark.xdist_group("spark-connect"),
    pytest.mark.skipif(bool(LACKING), reason=f"MISSING for Declarative Pipelines: {', '.join(LACKING)}"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example that keeps its checkpoints to itself."""
    folder = shutil.copytree(ROOT / "examples" / "declarative", tmp_path / "declarative")
    spec = folder / "spark-pipeline.yml"
    lines = spec.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("storage:")]
    assert len(kept) == len(lines) - 1
    spec.write_text("\n".join([*kept, f"storage: {(folder / 'storage').as_uri()}"]) + "\n")
    return folder


def run(project: Path, words: Sequence[str], **env: str) -> None:
    """One run to its end. It starts several processes; none stays, whatever happens."""
    program = str(spark_archive.home() / "bin" / "spark-pipelines")  # which takes no file of settings
    conf = {"SPARK_CONF_DIR": str(spark_archive.SPARK_CONF), "JDK_JAVA_OPTIONS": spark_archive.QUICK_JVM}
    running = Child([program, *words], project / "run.log", spark_env(**conf, **env), folder=project)
    try:
        assert running.popen.wait(300) == 0, running.log[-3000:]
    finally:
        running.stop()


def add(server: Server, first: int, last: int) -> None:
    pipe = server.sync().pipeline(transaction=False)
    for number in range(first, last):
        pipe.xadd("orders", {"order": f"o{number}", "amount": "plenty" if number % 100 == 7 else number})
    pipe.execute()


def orders(server: Server, stream: str) -> list[int]:
    return sorted(int(fields[b"order"][1:]) for _, fields in server.sync().xrange(stream))


def test_the_declarative_example_writes_each_order_once_run_after_run(connect: ConnectServer, project: Path) -> None:
    server, words = connect.redis, ["run", "--remote", connect.remote, "--spec", str(project / "spark-pipeline.yml")]
    add(server, 400, 600)
    run(project, words)
    assert orders(server, "orders-large") == [n for n in range(500, 600) if n % 100 != 7]
    assert orders(server, "orders-refused") == [407, 507]
    add(server, 600, 650)
    run(project, words)
    assert orders(server, "orders-large") == [n for n in range(500, 650) if n % 100 != 7]
    assert orders(server, "orders-refused") == [407, 507, 607]


@pytest.mark.long
def test_the_declarative_example_runs_as_its_page_says_without_a_server_of_spark(
    own_server: Callable[..., Server], project: Path
) -> None:
    page = (project / "README.md").read_text().splitlines()
    (line,) = [line for line in page if line.startswith("spark-pipelines run")]
    program, *words = shlex.split(line, comments=True)
    assert (program, *words) == ("spark-pipelines", "run", "--remote", "local[2]")
    server = own_server("redis8")
    add(server, 506, 510)
    run(project, words, HEADRACE_URL=server.url, SPARK_TESTING="1")  # for Spark: a port of its own choice
    assert orders(server, "orders-large") == [506, 508, 509]
    assert orders(server, "orders-refused") == [507]
