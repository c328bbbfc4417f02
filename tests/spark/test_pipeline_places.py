"""Folders behind Spark's own file systems: the same promises as on a plain disk. Here by `file://`, through Hadoop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.demo.payments import sendings
from headrace.errors import HeadraceError
from headrace.spark.pipeline import run as running
from headrace.spark.pipeline.ledger import Account, Ledger
from headrace.spark.pipeline.places import HadoopPlace, LocalPlace, Place
from tests.spark.test_pipeline_payments import Shop
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers("redis8")]


@pytest.fixture(params=["hadoop", "local"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Place:
    return HadoopPlace(spark) if request.param == "hadoop" else LocalPlace()


@pytest.fixture
def folder(place: Place, tmp_path: Path) -> str:
    return f"file://{tmp_path}" if isinstance(place, HadoopPlace) else str(tmp_path)


def test_a_file_is_read_as_it_was_last_written(place: Place, folder: str) -> None:
    file = f"{folder}/a/_memory.json"
    assert place.read(file) is None
    assert not place.exists(file)
    place.write(file, '{"first": 1}')
    place.write(file, '{"second": "ä"}')
    assert place.read(file) == '{"second": "ä"}'
    assert place.names(f"{folder}/a") == ["_memory.json"]
    assert place.names(f"{folder}/nowhere") == []


class Died(Exception):
    """Where a driver would have been killed."""


class DyingSystem:
    """A file system as it is, until its driver dies instead of the next step that changes anything."""

    def __init__(self, system: Any, steps: Iterator[int]) -> None:
        self._system, self._steps = system, steps

    def __getattr__(self, name: str) -> Any:
        if name not in ("create", "delete", "rename"):
            return getattr(self._system, name)

        def step(*words: Any) -> Any:
            if next(self._steps, None) is None:
                raise Died(name)
            done = getattr(self._system, name)(*words)
            return DyingStream(done, self._steps) if name == "create" else done

        return step


class DyingStream:
    """What is written to a file: its second half is a step of the same life."""

    def __init__(self, stream: Any, steps: Iterator[int]) -> None:
        self._stream, self._steps = stream, steps

    def write(self, data: bytearray) -> None:
        half = len(data) // 2
        self._stream.write(data[:half])
        if next(self._steps, None) is None:
            raise Died("write")
        self._stream.write(data[half:])

    def close(self) -> None:
        self._stream.close()


class DyingPlace(HadoopPlace):
    """Lives for so many steps."""

    def __init__(self, spark: SparkSession, steps: int) -> None:
        super().__init__(spark)
        self._steps = iter(range(steps))

    def _at(self, path: str) -> tuple[Any, Any]:
        system, where = super()._at(path)
        return DyingSystem(system, self._steps), where


def test_a_driver_that_dies_while_it_replaces_a_file_leaves_the_old_text_or_the_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After every step: a reader finds one of them, nobody takes half a text for a batch, and writing goes on."""
    place, folder = HadoopPlace(spark), f"file://{tmp_path}"
    file, died = f"{folder}/batch=1.json", 0
    place.write(file, "old")
    for steps in range(20):
        try:
            DyingPlace(spark, steps).write(file, "new")
        except Died:
            died += 1
            assert place.read(file) in ("old", "new")
            assert [name for name in place.names(folder) if not name.startswith("_")] in (["batch=1.json"], [])
        else:
            break
        if steps % 2:  # the next driver writes over whatever this one left, or meets a second death
            place.write(file, "old")
            assert place.read(file) == "old"
    assert died >= 4
    assert place.read(file) == "new"
    place.write(file, "last")
    assert place.read(file) == "last"


class RefusingPlace(HadoopPlace):
    """A file system that renames nothing, and says so by its answer alone."""

    def _at(self, path: str) -> tuple[Any, Any]:
        system, where = super()._at(path)
        return RefusingSystem(system), where


class RefusingSystem:
    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: False) if name == "rename" else getattr(self._system, name)


def test_a_file_that_the_file_system_does_not_rename_is_an_error_and_the_old_one_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = f"file://{tmp_path}/_memory.json"
    HadoopPlace(spark).write(file, "old")
    with pytest.raises(HeadraceError, match="refused"):
        RefusingPlace(spark).write(file, "new")
    assert HadoopPlace(spark).read(file) == "old"


def test_a_folder_that_the_file_system_does_not_rename_is_an_error_and_the_old_one_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(30).write.parquet(f"{tmp_path}/aside")
    spark.range(5).write.parquet(f"{tmp_path}/table/batch=1")
    with pytest.raises(HeadraceError, match="refused"):
        RefusingPlace(spark).move_folder(f"file://{tmp_path}/aside", f"file://{tmp_path}/table/batch=1")
    assert LocalPlace().parquet_rows(f"{tmp_path}/table/batch=1") == 5


def test_a_batch_half_written_by_a_dead_driver_is_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(HadoopPlace(spark), f"file://{tmp_path}")
    account = Account("p", "q", 0, rows_in=5, out=5, duplicates=0, quarantined=0)
    ledger.put(account)
    for steps in range(6):
        with suppress(Died):
            Ledger(DyingPlace(spark, steps), ledger.path).put(dataclasses.replace(account, batch=1))
    ledger.put(dataclasses.replace(account, batch=1))
    (tmp_path / "query=q" / "batch=1.json.5f0c").write_text('{"pipe')  # of whatever else writes here
    assert [one.batch for one in ledger.accounts()] == [0, 1]
    assert ledger.totals().rows_in == 10


def test_a_folder_takes_the_place_of_another(spark: SparkSession, place: Place, folder: str) -> None:
    spark.range(30).repartition(2).write.parquet(f"{folder}/aside")
    spark.range(5).write.parquet(f"{folder}/table/batch=1")
    place.move_folder(f"{folder}/aside", f"{folder}/table/batch=1")
    assert not place.exists(f"{folder}/aside")
    assert place.parquet_rows(f"{folder}/table/batch=1") == 30
    place.remove(f"{folder}/table")
    place.remove(f"{folder}/table")  # twice is fine
    assert not place.exists(f"{folder}/table")


def test_a_pipeline_runs_on_a_folder_behind_hadoop(
    spark: SparkSession, server: Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, server, prefix, tmp_path)
    monkeypatch.setattr(running, "place_of", lambda folder, spark: (HadoopPlace(spark), f"file://{tmp_path}"))
    shop.feed(sendings(120))
    shop.check(shop.run())
    shop.check(shop.run())
