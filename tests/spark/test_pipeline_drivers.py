"""Two drivers on one pipeline, of which one is thought dead: each moves whole folders, and the books stay right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import HeadraceError
from headrace.spark import register
from headrace.spark.pipeline import Aggregate, Deduplicate, Route
from headrace.spark.pipeline.ledger import LedgerBroken
from headrace.spark.pipeline.places import HadoopPlace, LocalPlace, Place
from tests.spark.batches import Batches, payload
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(120), pytest.mark.servers("redis8")]

ROWS = [payload(str(number % 40), number % 40) for number in range(50)]


@pytest.fixture
def driver(spark: SparkSession, server: Server, prefix: str, tmp_path: Path) -> Callable[[], Batches]:
    """One more driver of the same pipeline, with a session of its own."""

    def begin() -> Batches:
        session = spark.newSession()
        register(session)
        one = Batches(session, server, prefix, tmp_path)
        hours = Aggregate("hours", "created", 3_600_000)
        route = Route("large", "amount > 30", one.stream("large"), ("id",))
        one.pipeline = one.made(aggregates=(hours,), routes=(route,), deduplicate=Deduplicate("id"))
        return one

    return begin


def test_two_drivers_at_once_leave_every_row_once_and_exact_books(
    driver: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every folder that they write, both have written theirs when the first moves its own."""
    both, move = threading.Barrier(2), LocalPlace.move_folder

    def met(self: LocalPlace, *words: str) -> None:
        both.wait(60)
        move(self, *words)

    monkeypatch.setattr(LocalPlace, "move_folder", met)
    drivers = [driver(), driver()]
    with ThreadPoolExecutor(2) as pool:
        accounts = list(pool.map(lambda one: one.run(*ROWS), drivers))
    assert [(one.rows_in, one.out, one.duplicates, one.routes) for one in accounts] == [(50, 40, 10, {"large": 9})] * 2
    check(drivers[0])


def check(one: Batches) -> None:
    """One batch of the rows, wherever they go."""
    ids = [row["id"] for row in one.table().select("id").collect()]
    assert sorted(ids, key=int) == [str(number) for number in range(40)]
    assert one.table("duplicates").count() == 10
    assert one.table("hours").agg(F.sum("rows")).collect()[0][0] == 40
    assert one.client.xlen(one.stream("large")) == 9
    folder = Path(one.pipeline.folder)
    assert list(folder.glob("tables/*/_aside/*")) == []
    assert len(list((folder / "ledger").rglob("batch=*.json"))) == 1


def test_a_folder_that_lost_a_file_never_takes_the_place_of_a_whole_one(
    driver: Callable[[], Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, late = driver(), driver()
    one.run(*ROWS)
    counted = LocalPlace.parquet_rows

    def robbed(self: LocalPlace, folder: str) -> int:
        next(Path(folder).glob("*.parquet")).unlink()
        return counted(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "parquet_rows", robbed)
        with pytest.raises(LedgerBroken, match="out: 0 written, 40 read"):
            late.run(*ROWS)
    check(one)


def test_what_dead_drivers_left_aside_goes_with_the_next_batch_and_not_before(driver: Callable[[], Batches]) -> None:
    one = driver()
    one.run(*ROWS)
    left = [Path(one.pipeline.folder, "tables", "rows", "_aside", f"{name}-5f0c") for name in ("q-0", "_q-0", "_q-1")]
    for folder in left:
        folder.mkdir(parents=True)
    one.run(payload("new"))
    assert [folder.exists() for folder in left] == [False, False, True]
    one.run(payload("newer"))
    assert [folder.exists() for folder in left] == [False, False, False]


@pytest.fixture(params=["hadoop", "local"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Place:
    return HadoopPlace(spark) if request.param == "hadoop" else LocalPlace()


def test_a_folder_that_is_gone_leaves_the_one_it_should_replace(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    spark.range(5).write.parquet(f"{tmp_path}/table/batch=1")
    with pytest.raises(HeadraceError, match="Another driver runs this pipeline"):
        place.move_folder(f"{tmp_path}/_aside/_q-1", f"{tmp_path}/table/batch=1")
    assert place.parquet_rows(f"{tmp_path}/table/batch=1") == 5


def test_of_two_folders_moved_at_once_one_stays_whole(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver moves its folder in when ours has moved the old one away."""
    target = f"{tmp_path}/table/batch=1"
    for name, rows in (("table/batch=1", 5), ("_aside/_ours", 30), ("_aside/_theirs", 30)):
        spark.range(rows).coalesce(1).write.parquet(f"{tmp_path}/{name}")
    if isinstance(place, LocalPlace):
        rename = Path.rename

        def renamed(self: Path, goal: Any) -> Path:
            done = rename(self, goal)
            if self == Path(target):
                rename(tmp_path / "_aside" / "_theirs", target)
            return done

        monkeypatch.setattr(Path, "rename", renamed)
    else:
        moved = HadoopPlace._moved

        def interrupted(self: HadoopPlace, system: Any, source: Any, goal: Any) -> bool:
            done = moved(self, system, source, goal)
            if goal.getName().endswith(".old"):
                Path(tmp_path, "_aside", "_theirs").rename(target)
            return done

        monkeypatch.setattr(HadoopPlace, "_moved", interrupted)
    place.move_folder(f"{tmp_path}/_aside/_ours", target)
    assert place.parquet_rows(target) == spark.read.option("recursiveFileLookup", "true").parquet(target).count() == 30
    assert place.names(f"{tmp_path}/_aside") == []
