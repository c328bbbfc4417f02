"""Streams, a checkpoint and drivers for tests that break Spark: held and failed by keys in Redis, then counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.servers import Server
from tests.support.spark_cluster import Cluster, Driver
from tests.support.wait import wait_until_sync

ROWS, BATCH = 1_600, 800
PAYLOAD = "x" * 2_000  # large enough that a task stages some rows before it has all


class Lab:
    """A master, its driver (a new one when the last was killed), and one test's streams."""

    def __init__(self, master: str, folder: Path, cluster: Cluster | None = None, **conf: str) -> None:
        self.master, self._cluster, self._folder, self._conf = master, cluster, folder, conf
        self._drivers: list[Driver] = []
        self.server: Server
        self.job: dict[str, Any]

    @property
    def machines(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def driver(self) -> Driver:
        """One that is alive, the same as long as it is."""
        return self.live_drivers(1)[0]

    def kill_driver_at(self, word: str, **changed: Any) -> None:
        """Run a driver up to a point and kill it there. Meanwhile its successor starts."""
        driver, _ = self.live_drivers(2)
        self.hold(word)
        driver.begin(**self.job | changed)
        wait_until_sync(lambda: [one for one in self.told("driver") if one["at"] == word], 120, what=f"one at {word}")
        driver.stop()
        self.release(word)

    def live_drivers(self, count: int) -> list[Driver]:
        """So many that are alive, started where they are missing."""
        alive = [driver for driver in self._drivers if driver.alive]
        for _ in range(count - len(alive)):
            alive.append(Driver(self.master, self._folder, len(self._drivers), **self._conf))
            self._drivers.append(alive[-1])
        return alive[:count]

    def prepare(self, server: Server, prefix: str, checkpoint: Path, gate: Server | None = None) -> None:
        """New streams and a new checkpoint. The gate may stand on another server, which outlives this one.

        A driver that a test left with its query would answer for that one, whose streams are gone, when it is asked
        about the next.
        """
        for driver in self._drivers:
            if driver.busy:
                driver.stop()
        self.server, self._gates = server, gate or server
        self._gate, self._target = f"{prefix}-gate", f"{prefix}-out"
        self.job = {
            "url": server.url,
            "source": f"{prefix}-in",
            "target": self._target,
            "gate": self._gate,
            "gate_url": self._gates.url,
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
        self._gates.sync().set(f"{self._gate}:hold:{word}", 1)

    def release(self, word: str) -> None:
        self._gates.sync().delete(f"{self._gate}:hold:{word}")

    def fail(self, times: int) -> None:
        self._gates.sync().set(f"{self._gate}:fail", times)

    def told(self, word: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._gates.sync().lrange(f"{self._gate}:{word}", 0, -1)]

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

    def idle_worker(self) -> str:
        """The worker that keeps nothing of what was shuffled: others need not ask it for anything."""
        (busy,) = {one["worker"] for one in self.told("maps")}
        return "b" if busy == "a" else "a"

    def wait_for_staged(self) -> None:
        """Until tasks on both workers hold rows in the server that no decision was made about."""
        wait_until_sync(lambda: {one["worker"] for one in self.told("tasks")} == {"a", "b"}, 200, what="tasks on both")
        wait_until_sync(lambda: len(self._lists()) >= 2, 200, what="staged rows")

    def _lists(self) -> list[bytes]:
        return list(self.server.sync().scan_iter(f"*{self._target}*:hr:stage:*", count=1000))

    # ── the end ──

    def written(self) -> int:
        return int(self.server.sync().xlen(self._target))

    def check(self) -> None:
        """Every row once, and nothing left that would stay for ever."""
        entries: Any = self.server.sync().xrange(self._target)
        rows = sorted(int(fields[b"n"]) for _, fields in entries)
        assert len(rows) == ROWS, f"{len(rows)} rows of which {len(set(rows))} differ"
        assert rows == list(range(ROWS))
        assert [key for key in self._lists() if self.server.sync().ttl(key) < 0] == []

    def stop(self) -> None:
        for driver in self._drivers:
            driver.stop()
