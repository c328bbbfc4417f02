"""Source, shuffle and exactly-once sink on a standalone cluster; executors and drivers die, hang or run twice.

The driver is a process of its own: a test may kill it, and it stands beside the session of the other tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.demo.payments import sendings
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, Child, Cluster, spark_env
from tests.support.spark_lab import BATCH, Lab
from tests.support.wait import wait_until_sync

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.servers("redis8"),
    pytest.mark.jvm,
    pytest.mark.xdist_group("spark-cluster"),
]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1500ms",
    "spark.speculation.efficiency.enabled": "false",  # it would spare a task that has read all its rows
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder).start()
    lab = Lab(cluster.url, folder, cluster, **SPECULATION)
    yield lab
    lab.stop()
    cluster.stop()


@pytest.fixture
def lab(running: Lab, server: Server, prefix: str, tmp_path: Path) -> Lab:
    running.prepare(server, prefix, tmp_path / "checkpoint")
    return running


def test_an_executor_killed_mid_batch_loses_and_doubles_no_row(lab: Lab) -> None:
    lab.hold("a")
    lab.hold("b")
    lab.driver.begin(**lab.job)
    lab.wait_for_staged()
    lab.machines.kill_executor("a")
    lab.release("a")
    lab.release("b")
    lab.driver.end()
    lab.check()
    assert lab.seconds()  # its rows were written again by others


def test_an_executor_paused_and_continued_mid_batch_loses_and_doubles_no_row(lab: Lab) -> None:
    """Paused is the one that shuffled nothing: copies of its tasks would wait for its blocks as long as it is away."""
    for word in ("a", "b", "copies"):
        lab.hold(word)
    lab.driver.begin(**lab.job | {"splits": 1})
    lab.wait_for_staged()
    paused = lab.idle_worker()
    lab.machines.pause_executor(paused)
    lab.release("a")
    lab.release("b")
    wait_until_sync(lab.seconds, 60, what="copies of the paused tasks")
    lab.machines.continue_executor(paused)  # now both write the same rows
    lab.release("copies")
    lab.driver.end()
    lab.check()


def test_a_speculative_copy_of_a_slow_task_adds_no_row(lab: Lab) -> None:
    lab.hold("first")
    lab.driver.begin(**lab.job)
    copies = wait_until_sync(lab.seconds, 60, what="a second attempt")
    lab.driver.end()  # while the slow one still hangs
    lab.release("first")
    lab.check()
    assert all(one["attempt"] > 0 for one in copies)
    slow = {one["worker"] for one in lab.told("tasks")[:2] if one["part"] == 0}
    assert slow
    assert slow.isdisjoint(one["worker"] for one in copies)


def test_a_task_that_fails_twice_adds_its_rows_once(lab: Lab) -> None:
    lab.fail(2)
    lab.driver.run(**lab.job)
    lab.check()
    assert len({one["attempt"] for one in lab.told("tasks") if one["part"] == 0}) >= 3


@pytest.mark.long  # test_faults.py has it without a cluster
def test_a_driver_killed_half_way_through_publish_is_followed_by_one_with_other_splits(lab: Lab) -> None:
    lab.kill_driver_at("publish")
    assert 0 < lab.written() < BATCH
    lab.driver.run(**lab.job | {"splits": 3, "partitions": 3, "arrow_rows": 37})
    lab.check()


def test_the_payments_pipeline_runs_on_a_cluster_and_its_books_balance_though_its_executors_are_killed(
    running: Lab, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    """They die when keys are claimed and nothing was sent: the server stands still while they do."""
    server, folder, sent = own_server("redis8"), tmp_path / "data", sendings(200)
    for one in sent:
        server.sync().xadd("payments", {"payload": one.body})
    program = [sys.executable, "-c", "from headrace.cli.pipeline import program; program()"]
    words = ["run", str(ROOT / "examples" / "payments" / "payments.toml"), "--once", "--json", "--folder", str(folder)]
    env = spark_env(HEADRACE_URL=server.url)
    child = Child([*program, *words, "--master", running.master], tmp_path / "pipeline.log", env)
    try:
        wait_until_sync(lambda: any(server.sync().scan_iter("payments:hr:claim:*")), 200, 0.005, what="claims")
        server.pause()
        for worker in ("a", "b"):
            running.machines.kill_executor(worker)
        assert not list(folder.glob("ledger/*/batch=*.json"))
        server.cont()
        assert child.popen.wait(300) == 0, child.log[-3000:]
    finally:
        child.stop()
    told = json.loads([line for line in child.log.splitlines() if line.startswith("{")][-1])
    assert told["rows_in"] == len(sent)
    assert told["exact"]
    assert min(told["out"], told["duplicates"], told["quarantined"]) > 0
    reviewed = [fields[b"id"] for _, fields in server.sync().xrange("payments-review")]
    assert len(reviewed) == len(set(reviewed)) == sum(told["routes"].values())
    ids = pq.read_table(folder / "tables" / "payments", columns=["id"])["id"].to_pylist()
    assert len(ids) == len(set(ids)) == told["out"]
