"""`headrace pipeline run`, dead by SIGKILL in its second batch, where the first word says.

    python -m tests.support.dying_pipeline tables run orders.toml --once

tables    its tables are written, and nothing was sent to a stream
sink      the sink has committed, windows are computed, and the ledger knows nothing of it
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from headrace.cli import main
from headrace.spark.pipeline.batch import BatchRun
from headrace.spark.pipeline.ledger import Ledger

NEXT_STEP: dict[str, tuple[type, str]] = {"tables": (BatchRun, "_write_streams"), "sink": (Ledger, "put")}


def die_before(owner: type, name: str) -> None:
    """The second call of this function is the end of the process."""
    step, calls = getattr(owner, name), itertools.count(1)

    def dying(*words: Any) -> Any:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*words)

    setattr(owner, name, dying)


if __name__ == "__main__":
    die_before(*NEXT_STEP[sys.argv[1]])
    sys.exit(main(["pipeline", *sys.argv[2:]]))
