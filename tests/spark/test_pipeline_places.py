"""Folders behind Spark's own file systems: the same promises as on a plain disk. Here by `file://`, through Hadoop."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.demo.payments import sendings
from headrace.spark.pipeline import run as running
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
