"""The demo with its second half: the commands that a user runs, on what three workers, a kill and a pause left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.payments import sendings
from headrace.demo.tables import tables
from headrace.demo.worker import MAX_ATTEMPTS
from tests.spark.test_pipeline_report import Outline
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, spark_env

pytestmark = [pytest.mark.timeout(400), pytest.mark.jvm]

PAYMENTS = 1_000


def test_tables_and_a_report_of_its_attempts_are_made_of_what_the_workers_left(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second half by itself, of a few payments: as the demo calls it, in a folder like the repository's."""
    server, sent = own_server("redis8"), sendings(60)
    ids = [server.sync().xadd("payments", {"payload": one.body}).decode() for one in sent]
    about = {"_original_id": ids[0], "_group": "g", "_attempts": "5", "_error": "LookupError", "_reason": "no rate"}
    server.sync().xadd("{payments}:dlq", {"payload": sent[0].body, "_n": "1", **about})
    lines = [[1.0 + at, 100, "start", id_, 1] for at, id_ in enumerate(ids)] + [[2.5, 200, "start", ids[0], 2]]
    (tmp_path / "journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for word, value in spark_env().items():
        monkeypatch.setenv(word, value)
    assert tables(server.url, tmp_path / "journal"), (tmp_path / "demo-output" / "spark.log").read_text()[-3000:]
    told: dict[str, Any] = json.loads((tmp_path / "demo-output" / "report.json").read_text())
    kinds = Counter(one.kind for one in sent)
    totals = told["totals"]
    assert totals["exact"]
    assert (totals["rows_in"], totals["duplicates"]) == (len(sent), kinds["repeat"])
    assert rows(told["throughput"]) == totals["out"] == kinds["good"]
    assert told["attempts"] == {
        "buried": [{"attempts": 5, "rows": 1}],
        "all": [{"attempts": 1, "rows": len(ids) - 1}, {"attempts": 2, "rows": 1}],
    }
    assert told["rescues"]["ms"] == [1500.0]
    assert "NOT balanced" not in (tmp_path / "demo-output" / "report.html").read_text()


def demo(folder: Path) -> str:
    """Run it whole, in a folder of its own; answers what it said."""
    (folder / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", "headrace.demo", "--payments", str(PAYMENTS), "--plain"]
    done = subprocess.run(words, cwd=folder, env=spark_env(), capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def rows(ranking: list[dict[str, Any]]) -> int:
    return sum(one["rows"] for one in ranking)


@pytest.mark.long
def test_a_whole_demo_leaves_balanced_books_and_a_report_of_its_rescues_and_attempts(tmp_path: Path) -> None:
    said = demo(tmp_path)
    assert "the report is in" in said
    told: dict[str, Any] = json.loads((tmp_path / "demo-output" / "report.json").read_text())
    once = [one for one in sendings(PAYMENTS) if one.kind != "repeat"]  # repeats were refused by their key
    kinds = Counter(one.kind for one in once)
    good = [one.payment for one in once if one.kind == "good" and one.payment is not None]

    totals, bad = told["totals"], PAYMENTS - kinds["good"]
    assert totals["exact"]
    assert (totals["rows_in"], totals["out"], totals["duplicates"], totals["quarantined"]) == (
        *(PAYMENTS, len(good), 0, bad),
    )
    assert totals["routes"] == {"review": sum(payment.score > 0.8 for payment in good)}
    assert sum(line["rows_in"] for line in told["ledger"]) == rows(told["throughput"]) + bad == PAYMENTS

    assert told["dead_letters"]["count"] == rows(told["attempts"]["buried"]) == bad
    tried = {line["attempts"]: line["rows"] for line in told["attempts"]["all"]}
    assert sum(tried.values()) == PAYMENTS - kinds["undecodable"]  # what is no payment reaches no handler
    assert max(tried) == MAX_ATTEMPTS  # of the poison and the lethal one

    rescued = sum(map(int, re.findall(r"rescued +(\d+) payment", said)))
    assert told["rescues"]["count"] >= rescued > 0  # the lethal payment's worker held others, too
    assert 0 < told["rescues"]["p50"] <= told["rescues"]["p99"]

    page = (tmp_path / "demo-output" / "report.html").read_text()
    seen = Outline()
    seen.feed(page)
    assert (seen.open, seen.foreign) == ([], [])
    assert {"Ledger", "Poison ranking", "Rescue latency", "Attempts of all messages"} <= set(seen.titles)
    assert "NOT balanced" not in page
