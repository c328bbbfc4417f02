"""The example examples/declarative, run as a user runs it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, Child, spark_env, spark_home
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


def run(project: Path, connect: ConnectServer) -> None:
    """One run to its end. It starts several processes; none stays, whatever happens."""
    words = [str(spark_home() / "bin" / "spark-pipelines"), "run", "--remote", connect.remote]
    words += ["--spec", str(project / "spark-pipeline.yml")]
    running = Child(words, project / "run.log", spark_env(), folder=project)
    try:
        assert running.popen.wait(190) == 0, running.log[-3000:]
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
    server = connect.redis
    add(server, 400, 600)
    run(project, connect)
    assert orders(server, "orders-large") == [n for n in range(500, 600) if n % 100 != 7]
    assert orders(server, "orders-refused") == [407, 507]
    add(server, 600, 650)
    run(project, connect)
    assert orders(server, "orders-large") == [n for n in range(500, 650) if n % 100 != 7]
    assert orders(server, "orders-refused") == [407, 507, 607]
