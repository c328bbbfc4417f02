"""`headrace pipeline run`, dead by SIGKILL in its second batch, or still by SIGSTOP, where the second word says.

    python -m tests.support.dying_pipeline KILL tables run orders.toml --once

move      a table is written aside, whole, and not moved into place
tables    its tables are in place, and nothing was sent to a stream
sink      the sink has committed, windows are computed, and the ledger knows nothing of it
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import Any

from headrace.cli import main
from headrace.spark.pipeline.batch import BatchRun
from headrace.spark.pipeline.ledger import Ledger
from headrace.spark.pipeline.places import LocalPlace

NEXT_STEP: dict[str, tuple[type, str]] = {
    "move": (LocalPlace, "move_folder"),
    "tables": (BatchRun, "_write_streams"),
    "sink": (Ledger, "put"),
}
MOVES = "batch=1"  # into which folder it is about to move, as each batch moves many


def signal_before(how: signal.Signals, owner: type, name: str) -> None:
    """This function gets the signal first, when the second batch calls it."""
    step, calls = getattr(owner, name), itertools.count(1)

    def late(*words: Any) -> Any:
        of_second = words[-1].endswith(MOVES) if owner is LocalPlace else next(calls) == 2
        if of_second:
            os.kill(os.getpid(), how)
            time.sleep(1)  # the signal may reach another thread first, and this one would do its step
        return step(*words)

    setattr(owner, name, late)


if __name__ == "__main__":
    signal_before(signal.Signals[f"SIG{sys.argv[1]}"], *NEXT_STEP[sys.argv[2]])
    sys.exit(main(["pipeline", *sys.argv[3:]]))
