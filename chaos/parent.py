"""`headrace run` with a crash point in the parent itself: the same supervisor, armed before it starts."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from chaos import crashpoints
from chaos.worker import from_environment
from chaos.worklogs import LINES
from headrace.supervisor import RunOptions, Supervisor
from tests.support.history import Pen


def main() -> int:
    logging.basicConfig(level="INFO", stream=sys.stderr, format=LINES)
    settings = from_environment()
    pen = Pen(Path(settings["folder"], f"worker-{os.getpid()}.jsonl"))
    crashpoints.arm(pen, *settings["crash_parent"])
    return Supervisor(RunOptions("chaos.supervised:app", processes=2), settings["url"]).run()


if __name__ == "__main__":
    sys.exit(main())
