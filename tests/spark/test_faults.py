"""Drivers killed with SIGKILL, tasks that fail, a server that restarts, two drivers at once: every row once.

Source, shuffle and exactly-once sink in drivers that are processes of their own; `local[2,3]` repeats a task twice.
What needs several machines is in test_cluster.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import Server
from tests.support.spark_lab import ROWS, Lab
from tests.support.wait import wait_until_sync

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.jvm,
    pytest.mark.servers("redis8"),
    pytest.mark.xdist_group("spark-faults"),  # they share drivers: starting one takes most of the time
]
MASTER = "local[2,3]"
OTHERS = {"splits": 3, "partitions": 3, "arrow_rows": 37}  # other splits, shuffle partitions and Arrow batch size
GROUP = {"mode": "group", "groupId": "billing", "lease": "2m"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(MASTER, tmp_path_factory.mktemp("faults"))
    yield lab
    lab.stop()


@pytest.fixture
def lab(running: Lab, server: Server, prefix: str, tmp_path: Path) -> Lab:
    running.prepare(server, prefix, tmp_path / "checkpoint")
    return running


def test_two_drivers_at_once_on_one_checkpoint_add_every_row_once(lab: Lab) -> None:
    """Spark lets one of them fail when it finds the other's traces; whoever is left goes on."""
    drivers = lab.live_drivers(2)
    lab.hold("commit")
    # One after the other: two that note the first batch in the same moment are told apart by Spark itself, too early.
    drivers[0].begin(**lab.job)
    wait_until_sync(lambda: len(lab.told("driver")) == 1, 120, what="the first before the decision")
    drivers[1].begin(**lab.job | OTHERS)
    wait_until_sync(lambda: len(lab.told("driver")) == 2, 120, what="both before the decision")
    lab.release("commit")
    errors = [driver.ended() for driver in drivers]
    assert None in errors or all("oncurren" in str(error) for error in errors), errors
    lab.driver.run(**lab.job)
    lab.check()


@pytest.mark.parametrize("options", [{}, GROUP], ids=["offsets", "group"])
def test_a_task_that_fails_twice_adds_its_rows_once(lab: Lab, options: dict[str, str]) -> None:
    lab.fail(2)
    lab.driver.run(**lab.job | {"options": options})
    lab.check()
    assert len({one["attempt"] for one in lab.told("tasks") if one["part"] == 0}) >= 3


def test_a_server_that_restarts_during_a_query_costs_time_and_nothing_else(
    running: Lab, server: Server, own_server: Callable[..., Server], prefix: str, tmp_path: Path
) -> None:
    mortal = own_server("redis8", aof=True, config={"appendfsync": "always"})
    running.prepare(mortal, prefix, tmp_path / "checkpoint", gate=server)
    running.hold("publish")
    running.driver.begin(**running.job)
    wait_until_sync(lambda: any(one["at"] == "publish" for one in running.told("driver")), 120, what="publish")
    mortal.kill()
    running.release("publish")
    mortal.restart()
    running.driver.end()
    running.check()


def test_a_driver_killed_inside_publish_or_before_the_commit_log_is_followed_by_one_with_other_splits(
    lab: Lab,
) -> None:
    lab.kill_driver_at("publish")
    assert 0 < lab.written() < ROWS // 2
    lab.kill_driver_at("done", **OTHERS)
    assert lab.written() == ROWS // 2
    assert not list((Path(lab.job["checkpoint"]) / "commits").glob("[0-9]*"))
    lab.driver.run(**lab.job | {"splits": 1, "partitions": 2, "arrow_rows": 1_000})
    lab.check()


def test_a_driver_of_a_group_killed_mid_batch_is_followed_by_one_that_takes_the_same_messages(lab: Lab) -> None:
    """Within a lease the rows are still its own: at least once becomes once, because the sink knows the batch."""
    lab.kill_driver_at("commit", options=GROUP)
    assert lab.written() == 0
    lab.driver.run(**lab.job | {"options": GROUP} | OTHERS)
    lab.check()
    assert lab.server.sync().xpending(lab.job["source"], "billing")["pending"] == 0
