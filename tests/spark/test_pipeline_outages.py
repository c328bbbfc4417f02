"""A server that goes away under a running pipeline, and comes back: the pipeline goes on, none missing, none twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.demo.payments import sendings
from headrace.spark.pipeline import batch
from headrace.spark.pipeline.batch import BatchRun
from tests.spark.test_pipeline_payments import Shop
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers("redis8")]

AWAY_S = 1.0


class Mortal:
    """A server that can be away for a moment."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._timers: list[threading.Timer] = []

    def away_before(self, step: Callable[..., Any], call: int) -> Callable[..., Any]:
        """The function, at one of whose calls the server has just been killed."""
        calls = itertools.count(1)

        def late(*words: Any) -> Any:
            if next(calls) == call:
                self.server.kill()
                self._timers.append(threading.Timer(AWAY_S, self.server.restart))
                self._timers[-1].start()
            return step(*words)

        return late

    @property
    def deaths(self) -> int:
        for timer in self._timers:
            timer.join()
        return len(self._timers)


@pytest.fixture
def mortal(own_server: Callable[..., Server]) -> Iterator[Mortal]:
    one = Mortal(own_server("redis8", aof=True, config={"appendfsync": "always"}))
    yield one
    assert one.deaths


def test_a_server_that_restarts_under_a_running_pipeline_costs_time_and_nothing_else(
    spark: SparkSession, mortal: Mortal, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away when the first batch begins to write to its stream, and when the second asks for its receipt."""
    shop = Shop(spark, mortal.server, prefix, tmp_path)
    shop.feed(sendings(450, undecodable=0.02))
    monkeypatch.setattr(BatchRun, "_write_streams", mortal.away_before(BatchRun._write_streams, 1))
    monkeypatch.setattr(batch, "receipt", mortal.away_before(batch.receipt, 2))
    totals = shop.run()
    assert (mortal.deaths, totals.batches) == (2, 2)
    shop.check(totals)
