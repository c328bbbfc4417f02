"""Source, shuffle and exactly-once sink on a standalone cluster; executors and drivers die, hang or run twice.

The driver is a process of its own: a test may kill it, and it stands beside the session of the other tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.payments import sendings
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, Child, Cluster, Driver, spark_env
from tests.support.wait import wait_until_sync

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.servers("redis8"),
    pytest.mark.cluster,
]

ROWS, BATCH = 1_600, 800
PAYLOAD = "x" * 2_000  # large enough that a task stages some rows before it has all
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1500ms",
}


class Lab:
    """A cluster, its driver (a new one when the last was killed), and one test's streams."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self._drivers: list[Driver] = []
        self.server: Server
        self.job: dict[str, Any]

    @property
    def driver(self) -> Driver:
        if not self._drivers or not self._drivers[-1].alive:
            self._drivers.append(Driver(self.cluster.url, self._folder, len(self._drivers), **SPECULATION))
        return self._drivers[-1]

    def prepare(self, server: Server, prefix: str, checkpoint: Path) -> None:
        self.server, self._gate, self._target = server, f"{prefix}-gate", f"{prefix}-out"
        self.job = {
            "url": server.url,
            "source": f"{prefix}-in",
            "target": self._target,
            "gate": self._gate,
            "checkpoint": str(checkpoint),
            "rows_a_batch": BATCH,
            "splits": 2,
            "partitions": 2,
            "arrow_rows": 100,
        }
        pipe = server.sync().pipeline(transaction=False)
        for number in range(ROWS):
            pipe.xadd(f"{prefix}-in", {"n": number, "payload": PAYLOAD})
        pipe.execute()

    # ── the gate ──

    def hold(self, word: str) -> None:
        self.server.sync().set(f"{self._gate}:hold:{word}", 1)

    def release(self, word: str) -> None:
        self.server.sync().delete(f"{self._gate}:hold:{word}")

    def fail(self, times: int) -> None:
        self.server.sync().set(f"{self._gate}:fail", times)

    def told(self, word: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.server.sync().lrange(f"{self._gate}:{word}", 0, -1)]

    def seconds(self) -> list[dict[str, Any]]:
        """Attempts of tasks that had begun before."""
        seen: set[tuple[int, int]] = set()
        again = []
        for one in self.told("tasks"):
            task = (one["stage"], one["part"])
            if task in seen:
                again.append(one)
            seen.add(task)
        return again

    def wait_for_staged(self) -> None:
        """Until tasks on both workers hold rows in the server that no decision was made about."""
        wait_until_sync(lambda: {one["worker"] for one in self.told("tasks")} == {"a", "b"}, 200, what="tasks on both")
        wait_until_sync(lambda: len(self._lists()) >= 2, 200, what="staged rows")

    def _lists(self) -> list[bytes]:
        return list(self.server.sync().scan_iter(f"*{self._target}*:hr:stage:*", count=1000))

    # ── the end ──

    def check(self) -> None:
        """Every row once, and nothing left that would stay for ever."""
        rows = sorted(int(fields[b"n"]) for _, fields in self.server.sync().xrange(self._target))
        assert len(rows) == ROWS, f"{len(rows)} rows of which {len(set(rows))} differ"
        assert rows == list(range(ROWS))
        assert [key for key in self._lists() if self.server.sync().ttl(key) < 0] == []

    def stop(self) -> None:
        for driver in self._drivers:
            driver.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder).start()
    lab = Lab(cluster, folder)
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
    lab.cluster.kill_executor("a")
    lab.release("a")
    lab.release("b")
    lab.driver.end()
    lab.check()
    assert lab.seconds()  # its rows were written again by others


def test_an_executor_paused_and_continued_mid_batch_loses_and_doubles_no_row(lab: Lab) -> None:
    for word in ("a", "b", "copies"):
        lab.hold(word)
    lab.driver.begin(**lab.job)
    lab.wait_for_staged()
    lab.cluster.pause_executor("a")
    lab.release("a")
    lab.release("b")
    wait_until_sync(lab.seconds, 200, what="copies of the paused tasks")
    lab.cluster.continue_executor("a")  # now both write the same rows
    lab.release("copies")
    lab.driver.end()
    lab.check()


def test_a_speculative_copy_of_a_slow_task_adds_no_row(lab: Lab) -> None:
    lab.hold("a")
    lab.driver.begin(**lab.job)
    copies = wait_until_sync(lab.seconds, 200, what="a second attempt")
    assert {one["worker"] for one in copies} == {"b"}
    assert all(one["attempt"] > 0 for one in copies)
    lab.driver.end()  # while the slow ones still hang
    lab.release("a")
    lab.check()


def test_a_task_that_fails_twice_adds_its_rows_once(lab: Lab) -> None:
    lab.fail(2)
    lab.driver.run(**lab.job)
    lab.check()
    assert len({one["attempt"] for one in lab.told("tasks") if one["part"] == 0}) >= 3


def test_a_driver_killed_half_way_through_publish_is_followed_by_one_with_other_splits(lab: Lab) -> None:
    lab.hold("publish")
    lab.driver.begin(**lab.job)
    wait_until_sync(lambda: lab.told("driver"), 200, what="a driver half-way through publish")
    assert 0 < lab.server.sync().xlen(lab.job["target"]) < BATCH
    lab.driver.stop()
    lab.release("publish")
    lab.driver.run(**lab.job | {"splits": 3, "partitions": 3, "arrow_rows": 37})
    lab.check()


def test_the_payments_pipeline_runs_on_a_cluster_and_its_books_balance(
    running: Lab, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, folder, sent = own_server("redis8"), tmp_path / "data", sendings(200)
    for one in sent:
        server.sync().xadd("payments", {"payload": one.body})
    program = [sys.executable, "-c", "from headrace.cli.pipeline import program; program()"]
    words = ["run", str(ROOT / "examples" / "payments" / "payments.toml"), "--once", "--json", "--folder", str(folder)]
    env = spark_env(HEADRACE_URL=server.url)
    child = Child([*program, *words, "--master", running.cluster.url], tmp_path / "pipeline.log", env)
    try:
        assert child.popen.wait(300) == 0, child.log[-3000:]
    finally:
        child.stop()
    told = json.loads([line for line in child.log.splitlines() if line.startswith("{")][-1])
    assert told["rows_in"] == len(sent)
    assert told["exact"]
    assert min(told["out"], told["duplicates"], told["quarantined"]) > 0
    assert server.sync().xlen("payments-review") == sum(told["routes"].values())
