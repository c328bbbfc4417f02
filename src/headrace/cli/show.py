"""How a command answers: tables and sentences for people, JSON for programs. Answers go to stdout, all else to stderr.

What others wrote (payloads, names, errors) is shown, never obeyed: no markup is read in it, and control characters,
which could move a terminal's cursor or worse, are written as escapes.
"""

from __future__ import annotations

import base64
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.options import printable

PIPED_WIDTH = 500  # columns of a table that no terminal shows
SHORT = 60  # characters of a payload or reason in a table
TEXT, NUMBER, LONG = "text", "number", "long"  # kinds of columns


class Show:
    """One command's way to answer."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # Made anew for each command: a console remembers the stream it was made with.
        self.out = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
        self.err = Console(stderr=True, highlight=False)

    def json(self, value: object) -> None:
        """One JSON object on one line. ASCII only, so that a terminal has nothing to obey in it."""
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def line(self, words: str, style: str = "") -> None:
        """One sentence for people."""
        self.out.print(Text(plain(words), style=style), soft_wrap=True)

    def pair(self, name: str, value: str) -> None:
        """A name and what it is, in two columns."""
        self.out.print(Text.assemble((f"{plain(name):14}", "dim"), plain(value)), soft_wrap=True)

    def aside(self, words: str) -> None:
        """One sentence that is no answer: how many more there are, what to do next."""
        self.err.print(Text(plain(words), style="dim"), soft_wrap=True)

    def table(self, title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
        """A table. A column is (name, kind): TEXT and NUMBER stay whole, LONG gives way on a narrow screen."""
        grid = Table(title=Text(plain(title), style="bold"), title_justify="left", box=None, pad_edge=False)
        for name, kind in columns:
            long = kind == LONG
            grid.add_column(
                name,
                header_style="dim",
                style="dim" if long else "",
                justify="right" if kind == NUMBER else "left",
                no_wrap=True,
                overflow="ellipsis" if long else "fold",
                ratio=1 if long else None,
            )
        for row in rows:
            grid.add_row(*(Text(plain(str(cell))) for cell in row))
        grid.expand = self.out.measure(grid).maximum >= self.out.width  # only then do ratios count
        with self.out.capture() as printed:
            self.out.print(grid)
        sys.stdout.write("".join(line.rstrip() + "\n" for line in printed.get().splitlines()))
        sys.stdout.flush()

    @contextmanager
    def progress(self, what: str, total: float | None) -> Iterator[Bar]:
        """A bar on stderr while the block runs, if a person is looking."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.err, transient=True, disable=not self.err.is_terminal) as live:
            yield Bar(live, live.add_task(plain(what), total=total, said=""))


class Bar:
    """A progress bar: step() moves it, and says beside it what was done so far."""

    def __init__(self, live: Progress, task: TaskID) -> None:
        self._live, self._task = live, task

    def step(self, amount: float, said: str) -> None:
        self._live.update(self._task, advance=amount, said=plain(said))


# ── words ────────────────────────────────────────────────────────────────────────────────────────────


def plain(text: str, limit: int | None = None) -> str:
    """Text that a terminal only shows: what is not printable becomes an escape. Cut at ``limit`` characters."""
    cut = text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
    return printable(cut)


def trace() -> None:
    """Print where the error came from that is being handled, on stderr. Its text may be anybody's."""
    for line in traceback.format_exc().splitlines():
        print(plain(line), file=sys.stderr)


def span(ms: float) -> str:
    """A duration for people: "40 ms", "3.2 s", "4 min 10 s", "2 h 5 min", "3 d 4 h"."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = int(ms // 1000)
    if seconds < 60:
        return f"{seconds} s"
    large, size, small, part = next(unit for unit in _UNITS if seconds < unit[4])[:4]
    rest = seconds % size // part
    return f"{seconds // size} {large}" + (f" {rest} {small}" if rest else "")


_UNITS = (  # name, its seconds, the next smaller name, its seconds, up to how many seconds it is used
    ("min", 60, "s", 1, 3_600.0),
    ("h", 3_600, "min", 60, 86_400.0),
    ("d", 86_400, "h", 3_600, float("inf")),
)


def ago(ms: float) -> str:
    """How long ago, in one unit: "3 min ago"."""
    words = span(max(0, ms)).split()
    return f"{words[0]} {words[1]} ago"


def many(number: int, one: str, several: str = "") -> str:
    """ "1 message", "2,000 messages"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def readable(raw: bytes) -> Any:
    """Bytes for JSON: the value if they are JSON, else the text, else {"base64": ...}."""
    try:
        return json.loads(raw, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return exact(raw)


def exact(raw: bytes) -> Any:
    """Bytes for JSON, byte for byte: the text, else {"base64": ...}."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is Python's, not JSON's")


def brief(raw: bytes | None, limit: int = SHORT) -> str:
    """Bytes for a table: one line, bounded."""
    return "" if raw is None else plain(as_text(raw), limit)


def as_text(raw: bytes) -> str:
    """Bytes as text, whatever they are."""
    return raw.decode("utf-8", "backslashreplace")
