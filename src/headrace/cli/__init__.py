"""The command line. This door stays light: it imports nothing of the `cli` extra until it is known to be there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXTRA = ("typer", "rich", "click")  # what `headrace[cli]` brings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad input."""
    try:
        from headrace.cli.program import run_program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print("headrace: the command line needs typer and rich: pip install 'headrace[cli]'", file=sys.stderr)
        return 2
    return run_program(arguments)
