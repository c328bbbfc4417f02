"""The log of `headrace run` and its children, on stderr.

A handler's exception may quote what a stranger sent. So a message is one line, what a terminal would obey is written as
an escape, the lines of a traceback are indented (none can pass for a line of the log), and nothing is endless.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from headrace.options import printable

FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(message)s"
MESSAGE_LIMIT: Final = 4_000  # characters
TRACE_LIMIT: Final = 32_000


class PlainFormatter(logging.Formatter):
    """Formats a record so that it can only be read."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(_cut(super().formatMessage(record), MESSAGE_LIMIT))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        lines = _cut(super().formatException(ei), TRACE_LIMIT).expandtabs().split("\n")
        return "\n".join("  " + printable(line) for line in lines)


def configure(level: str) -> None:
    """Write the log of this process to stderr, unless somebody set up a log before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def _cut(text: str, limit: int) -> str:
    """The beginning and the end: a traceback says at its end what happened."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters left out ... {text[-half:]}"
