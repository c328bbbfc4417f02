"""The second half of the demo: the same stream becomes tables, figures, a review stream and a report, with Spark.

Runs the commands that a user would run, on the pipeline file of ``examples/payments``. Without Spark, Java or the
example at hand it says what is missing and what to do, and leaves this half out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from headrace.cli.pipeline import need_spark
from headrace.errors import ConfigError

EXAMPLE: Final = Path("examples/payments/payments.toml")
BATCH_ROWS: Final = 5_000
OUTPUT: Final = Path("demo-output")


def tables(url: str, journal: Path) -> bool:
    """Run pipeline and report. False: one of them failed, and has said why."""
    missing = _missing()
    if missing:
        print(f"\nNo tables and no report were made: {missing}.")
        print("The ledger above stands by itself; --no-tables asks for nothing more.")
        return True
    shutil.rmtree(OUTPUT, ignore_errors=True)  # a new server is a new query: it must not continue an old checkpoint
    OUTPUT.mkdir()
    print("\nThe same stream as tables, with Spark")
    common = ["--url", url, "--folder", str(OUTPUT / "payments")]
    file = _in_batches()
    if not _headrace("pipeline", "run", str(file), "--once", *common):
        return False
    page = OUTPUT / "report.html"
    return _headrace("report", str(file), "--out", str(page), "--journal", str(journal), *common)


def _in_batches() -> Path:
    """The example with smaller batches, so that the report has more than one to show."""
    file = OUTPUT / EXAMPLE.name
    file.write_text(re.sub(r"(maxOffsetsPerTrigger = )[0-9_]+", rf"\g<1>{BATCH_ROWS}", EXAMPLE.read_text()))
    return file


def _missing() -> str:
    """What is not at hand, and what to do about it; nothing if all is."""
    try:
        need_spark()
    except ConfigError as error:
        return str(error)
    return "" if EXAMPLE.exists() else f"there is no {EXAMPLE} here, start the demo in the root of the repository"


def _headrace(*words: str) -> bool:
    """One command of ours, in a process of its own; Spark's chatter goes to a file beside the output."""
    with Path(OUTPUT, "spark.log").open("ab") as log:
        ended = subprocess.run([sys.executable, "-m", "headrace.cli", *words], check=False, stderr=log)
    if ended.returncode:
        print(f"headrace {' '.join(words[:2])} failed; the end of its log:", file=sys.stderr)
        print(Path(OUTPUT, "spark.log").read_text(errors="replace")[-3000:], file=sys.stderr)
    return ended.returncode == 0
