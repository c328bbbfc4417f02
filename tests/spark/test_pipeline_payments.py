"""The payments example on real Spark and a real server, through every way its driver can die."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.demo.payments import Payment, Sending, payments, sendings
from headrace.spark.pipeline import Pipeline, read_toml
from headrace.spark.pipeline.batch import BatchRun
from headrace.spark.pipeline.ledger import Ledger, LedgerBroken, Totals
from headrace.spark.pipeline.places import LocalPlace
from headrace.spark.pipeline.progress import Progress
from headrace.spark.pipeline.run import PipelineFailed, Runner
from headrace.spark.pipeline.tables import ForeignCheckpoint
from headrace.spark.report import gather
from headrace.spark.report_page import page
from tests.support import spark_archive
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers("redis8")]

BARE = Path(__file__).parents[1] / "support" / "bare"  # where pandas is not to be had
FRAME = r'  File "[^"]*pyspark/daemon\.py".*\n'
SPARKS_OWN = re.compile(rf"Traceback \(most recent call last\):\n(?:(?:{FRAME})+BrokenPipeError: .*\n|(?:{FRAME})*\Z)")
"""Spark's idle Python workers at the end of a session: told to go by a closed unix socket, some answer through it, and
their daemon prints that this failed, or is ended in the middle of printing. No frame of it is ours."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "payments" / "payments.toml"


class Shop:
    """The example's pipeline with streams and a folder of the test's own, and what must come out of it."""

    def __init__(self, spark: SparkSession, server: Server, prefix: str, folder: Path) -> None:
        self.spark, self.client = spark, server.sync()
        example = read_toml(EXAMPLE)
        self.stream, self.review = f"{prefix}-payments", f"{prefix}-review"
        source = {**example.source, "url": server.url, "streams": self.stream, "maxOffsetsPerTrigger": "300"}
        (route,) = example.routes
        self.pipeline: Pipeline = dataclasses.replace(
            example,
            name=prefix,
            table="payments",
            folder=str(folder),
            source=source,
            routes=(dataclasses.replace(route, stream=self.review),),
        )
        self.told: list[Progress] = []
        self.must = Counter[str]()
        self.suspects: set[str] = set()

    def feed(self, sent: list[Sending]) -> None:
        kinds = {one.key: one.kind for one in sent if one.kind != "repeat"}
        for one in sent:
            good = kinds[one.key] == "good"
            self.must["in"] += 1
            self.must["quarantined" if not good else "duplicates" if one.kind == "repeat" else "out"] += 1
            if good and one.payment is not None and one.payment.score > 0.8:
                self.suspects.add(one.payment.id)
            self.client.xadd(self.stream, {"payload": one.body})

    def runner(self, **options: Any) -> Runner:
        return Runner(self.pipeline, self.spark, told=self.told.append, **options)

    def run(self) -> Totals:
        runner = self.runner()
        try:
            runner.start(once=True)
            return runner.wait()
        finally:
            runner.close()

    def table(self, name: str = "payments") -> Any:
        return self.spark.read.parquet(f"{self.pipeline.folder}/tables/{name}")

    def check(self, totals: Totals) -> None:
        """Books, tables, windows and the review stream say the same, and it is right."""
        found = {"in": totals.rows_in, "out": totals.out, "duplicates": totals.duplicates}
        assert {**found, "quarantined": totals.quarantined} == dict(self.must)
        assert totals.exact
        ids = [row["id"] for row in self.table().select("id").collect()]
        assert len(ids) == len(set(ids)) == self.must["out"]
        reviewed = [fields[b"id"].decode() for _, fields in self.client.xrange(self.review)]
        assert len(reviewed) == len(set(reviewed)) == totals.routes["review"]
        assert set(reviewed) == self.suspects
        assert self.table("merchants").agg(F.sum("rows")).collect()[0][0] == self.must["out"]


@pytest.fixture
def shop(spark: SparkSession, server: Server, prefix: str, tmp_path: Path) -> Iterator[Shop]:
    yield Shop(spark, server, prefix, tmp_path)
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def dated(created: str, name: str) -> Sending:
    payment: Payment = dataclasses.replace(next(iter(payments(1))), id=name, created=created)
    return Sending(name, msgspec.json.encode(payment), "good", payment)


def test_payments_become_tables_windows_and_a_review_stream(shop: Shop) -> None:
    shop.feed(sendings(500, undecodable=0.02, poison=0.01))
    shop.feed([dated("2096-01-01T00:00:00.000Z", "late-1"), dated("1999-12-31T23:59:59.000Z", "late-2")])
    shop.check(shop.run())
    rows = shop.table().where("id = 'late-1'").collect()
    assert [(row["tier"], row["part_of_day"], row["batch"]) for row in rows] != []
    assert {progress.rows_in > 0 for progress in shop.told} == {True}
    assert all(progress.lag is None or progress.lag >= 0 for progress in shop.told)
    reasons = {row["reason"] for row in shop.table("quarantine").collect()}
    assert "breaks currency_fits_the_country" in reasons
    raw = shop.table("quarantine").where("reason = 'the payload is not UTF-8'").collect()
    assert all(bytes(row["raw"]["payload"]).startswith(b"\xff\xfe") for row in raw)
    winners = shop.table("duplicates").select("key", "winner").distinct().collect()
    assert all(row["winner"].startswith(shop.stream) for row in winners)
    shop.check(shop.run())  # nothing new: nothing changes
    found = gather(shop.spark, shop.pipeline)
    assert found["totals"]["exact"]
    assert sum(point["rows"] for point in found["throughput"]) == shop.must["out"]
    assert {row["what"] for row in found["columns"]["part_of_day"]} == {"night", "morning", "afternoon", "evening"}
    assert "<svg" in page(found)


STEPS = ("_write_tables", "_write_streams", "_refresh_windows")


def test_a_driver_that_dies_after_any_step_is_repeated_without_a_trace(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.feed(sendings(250, undecodable=0.02, poison=0.01))
    for number, step in enumerate(STEPS):
        shop.spark.conf.set("spark.sql.shuffle.partitions", str(number + 1))
        with monkeypatch.context() as patch:
            patch.setattr(BatchRun, step, _dying_after(getattr(BatchRun, step)))
            with pytest.raises(PipelineFailed, match="died"):
                shop.run()
    shop.check(shop.run())


def _dying_after(step: Callable[..., Any]) -> Callable[..., Any]:
    def die(self: BatchRun, *words: Any) -> Any:
        step(self, *words)
        raise RuntimeError("died")

    return die


def test_a_batch_that_is_in_the_books_and_not_in_sparks_log_is_repeated_without_a_trace(shop: Shop) -> None:
    shop.feed(sendings(350, undecodable=0.02))
    shop.check(shop.run())
    commits = Path(shop.pipeline.folder, "checkpoint", "commits")
    assert (commits / "1").exists()
    for file in [commits / "1", commits / ".1.crc"]:
        file.unlink(missing_ok=True)
    shop.spark.conf.set("spark.sql.shuffle.partitions", "3")
    shop.told.clear()
    shop.check(shop.run())
    assert [one.batch for one in shop.told] == [1]


def test_books_that_do_not_balance_stop_the_pipeline(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.feed(sendings(100))
    with monkeypatch.context() as patch:
        counted = LocalPlace.parquet_rows
        patch.setattr(LocalPlace, "parquet_rows", lambda self, folder: counted(self, folder) - 1)
        with pytest.raises(LedgerBroken, match=r"out: .* written, .* read"):
            shop.run()
    ledger = Ledger(LocalPlace(), f"{shop.pipeline.folder}/ledger")
    assert ledger.accounts() == []
    shop.check(shop.run())


def test_a_new_checkpoint_is_refused_by_an_old_table(shop: Shop) -> None:
    shop.feed(sendings(50))
    shop.check(shop.run())
    before = shop.table().count()
    shutil.rmtree(f"{shop.pipeline.folder}/checkpoint")
    with pytest.raises(ForeignCheckpoint, match="another checkpoint"):
        shop.run()
    assert shop.table().count() == before


def test_being_told_to_stop_ends_after_the_batch(shop: Shop) -> None:
    shop.feed(sendings(200))
    runner = shop.runner()
    runner.start()
    books = runner.outputs.ledger
    stopper = threading.Thread(
        target=lambda: (wait_until_sync(lambda: books.accounts(), 60), runner.stop())  # type: ignore[func-returns-value]
    )
    stopper.start()
    totals = runner.wait()
    stopper.join()
    assert totals.exact
    assert totals.rows_in > 0
    shop.check(shop.run())


def test_tables_adopt_another_checkpoint_where_that_is_wanted(shop: Shop) -> None:
    shop.feed(sendings(60))
    shop.check(shop.run())
    shutil.rmtree(f"{shop.pipeline.folder}/checkpoint")
    ((last, _),) = shop.client.xrevrange(shop.stream, count=1)
    after = {**shop.pipeline.source, "startingOffsets": f'{{"{shop.stream}": "{last.decode()}"}}'}
    shop.pipeline = dataclasses.replace(shop.pipeline, source=after)
    shop.feed([dated("2026-01-01T00:00:00.000Z", f"new-{number}") for number in range(20)])
    runner = shop.runner(adopt_tables=True)
    try:
        runner.start(once=True)
        shop.check(runner.wait())
    finally:
        runner.close()
    assert len({row["query"] for row in shop.table().select("query").collect()}) == 2
    shop.check(shop.run())  # from now on the table knows both


# ── as a process ──


class Process:
    """`headrace pipeline run --continuous` on the shop's streams and folder, as one starts it in a venv that is not
    activated and has no more than `headrace[spark]`."""

    def __init__(self, shop: Shop, file: Path, log: Path, *program: str) -> None:
        file.write_text(_as_toml(shop))
        program = program or ("headrace.cli", "pipeline")
        words = ["-m", *program, "run", str(file), "--continuous", "--master", "local[2]", "--json"]
        own = {word: value for word, value in os.environ.items() if not word.startswith(("PYSPARK_", "SPARK_"))}
        env = {**own, "HEADRACE_URL": shop.pipeline.source["url"], "PATH": _without_venv(own["PATH"])}
        env |= {"SPARK_HOME": str(spark_archive.home()), "SPARK_LOCAL_IP": "127.0.0.1"}
        env |= {"PYSPARK_SUBMIT_ARGS": spark_archive.submit_arguments()}
        env |= {"PYTHONPATH": _before(own.get("PYTHONPATH", ""), BARE)}
        self.log = log
        with log.open("wb") as sink:
            command = [sys.executable, *words, "--folder", shop.pipeline.folder]
            self.child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=sink)

    def end(self, number: signal.Signals) -> list[dict[str, Any]]:
        """Send a signal and wait for the end; answers what it said, line by line."""
        self.child.send_signal(number)
        said, _ = self.child.communicate(timeout=120)
        return [json.loads(line) for line in said.decode().splitlines()]

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


def _before(path: str, first: Path) -> str:
    return os.pathsep.join([str(first), *filter(None, [path])])


def _without_venv(path: str) -> str:
    here = str(Path(sys.executable).parent)
    return os.pathsep.join(part for part in path.split(os.pathsep) if part != here)


@pytest.fixture
def process(shop: Shop, tmp_path: Path) -> Iterator[Process]:
    one = Process(shop, tmp_path / "pipeline.toml", tmp_path / "pipeline.log")
    yield one
    one.kill()


@pytest.mark.timeout(400)
def test_sigterm_ends_a_process_after_its_batch_with_exact_books(shop: Shop, process: Process) -> None:
    shop.feed(sendings(250))
    books = Ledger(LocalPlace(), f"{shop.pipeline.folder}/ledger")
    wait_until_sync(
        lambda: process.child.poll() is not None or books.totals().rows_in >= 100, 240, what="a first batch"
    )
    (*batches, totals) = process.end(signal.SIGTERM)
    assert process.child.returncode == 0, process.log.read_text()[-2000:]
    assert totals["exact"]
    assert totals["rows_in"] == sum(batch["rows_in"] for batch in batches) == books.totals().rows_in
    told = SPARKS_OWN.sub("", process.log.read_text())
    assert "Traceback" not in told, told
    assert "BrokenPipe" not in told, told
    shop.check(shop.run())  # what was left


def _as_toml(shop: Shop) -> str:
    """The example with the test's own names, in small batches."""
    text = EXAMPLE.read_text().replace('name = "payments"', f'name = "{shop.pipeline.name}"', 1)
    text = text.replace('stream = "payments-review"', f'stream = "{shop.review}"')
    text = text.replace("[deduplicate]", '[table]\nname = "payments"\n\n[deduplicate]')
    return text.replace('streams = ["payments"]', f'streams = ["{shop.stream}"]').replace("500_000", "100")


def late(shop: Shop, folder: Path, how: str, where: str) -> Process:
    """One that gets a signal in its second batch: see tests/support/dying_pipeline.py."""
    words = ("tests.support.dying_pipeline", how, where)
    return Process(shop, folder / "pipeline.toml", folder / "pipeline.log", *words)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "where", [pytest.param("move", marks=pytest.mark.long), pytest.param("tables", marks=pytest.mark.long), "sink"]
)
def test_a_process_killed_between_tables_sink_and_ledger_is_followed_by_another(
    shop: Shop, tmp_path: Path, where: str
) -> None:
    """A second batch that is written and in no ledger is done again: nothing is missing, nothing is there twice."""
    shop.feed(sendings(180, undecodable=0.02))
    process = late(shop, tmp_path, "KILL", where)
    try:
        assert process.child.wait(240) == -signal.SIGKILL, process.log.read_text()[-2000:]
    finally:
        process.kill()
    (account,) = Ledger(LocalPlace(), f"{shop.pipeline.folder}/ledger").accounts()
    written = list(Path(shop.pipeline.folder, "tables", "payments").glob("query=*/batch=1/*.parquet"))
    assert len(written) == (where != "move")
    assert (shop.client.xlen(shop.review) > account.routes["review"]) is (where == "sink")
    shop.check(shop.run())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_process_that_stood_still_while_another_went_on_changes_nothing_when_it_wakes(
    shop: Shop, tmp_path: Path
) -> None:
    """It wakes with a table of its batch in its hands. Spark ends it when it finds that the next batch was begun."""
    shop.feed(sendings(250, undecodable=0.02))
    process = late(shop, tmp_path, "STOP", "move")
    aside = Path(shop.pipeline.folder, "tables", "payments", "_aside")
    try:
        wait_until_sync(lambda: state_of(process.child.pid) in "TZ", 240, what="a driver that stands still")
        assert len(list(aside.iterdir())) == 1
        shop.check(shop.run())
        process.child.send_signal(signal.SIGCONT)
        assert process.child.wait(60) == 1, process.log.read_text()[-2000:]
    finally:
        process.kill()
    shop.check(Ledger(LocalPlace(), f"{shop.pipeline.folder}/ledger").totals())
    shop.feed([dated("2026-01-01T00:00:00.000Z", "one-more")])
    shop.check(shop.run())
    assert list(aside.iterdir()) == []


def state_of(pid: int) -> str:
    """One letter, as in ps: T stands still, Z is dead."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
