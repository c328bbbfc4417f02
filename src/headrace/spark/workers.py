"""Which of Spark's Python processes this is: Spark runs a data source in several, each for one step, and tells none."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final

LOADING: Final = "pyspark.sql.worker.create_data_source"  # makes a data source for a read
STREAMING: Final = "pyspark.sql.streaming.python_streaming_source_runner"  # a streaming query's source on the driver


def runs(worker: str) -> bool:
    """Whether this process is Spark's worker for a step."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return worker in sys.modules or (main is not None and main.name == worker)


def leave_quietly() -> None:
    """Called at the end of a source: let its process end without a traceback on the user's screen.

    When a query stops, Spark closes the socket to this process; the process then tries to report that end through the
    same socket. Over a unix domain socket that fails at once, with a BrokenPipeError that means nothing to anybody.
    """
    if not runs(STREAMING):
        return
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, BrokenPipeError):
            shown(kind, error, trace)

    sys.excepthook = hook
