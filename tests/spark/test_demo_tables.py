"""The demo with its second half: the commands that a user runs, on what three workers, a kill and a pause left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.payments import sendings
from headrace.demo.worker import MAX_ATTEMPTS
from tests.spark.test_pipeline_report import Outline
from tests.support.spark_cluster import ROOT, spark_env

pytestmark = [pytest.mark.timeout(400), pytest.mark.jvm]

PAYMENTS = 1_000


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
