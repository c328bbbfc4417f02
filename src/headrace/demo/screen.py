"""How the demo shows itself: bars and lines on a terminal, lines alone in a log."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from headrace.demo.ledger import TROUBLE, Ledger
from headrace.demo.worker import CONCURRENCY, LEASE_S

WIDTH: Final = 80
TENTH: Final = 0.1

_COLOURS: Final = {
    "killed": "bold red",
    "died": "bold red",
    "paused": "bold yellow",
    "woken": "bold yellow",
    "refused": "bold magenta",
    "rescued": "bold green",
    "buried": "magenta",
    "added": "cyan",
    "started": "cyan",
    "server": "cyan",
}


class Staff(NamedTuple):
    """One worker process for the screen."""

    pid: int
    settled: int
    held: int
    paused: bool


class Screen:
    """Tells what happens. On a terminal the bars stay below the lines; elsewhere a line tells every tenth."""

    def __init__(self, *, live: bool | None = None) -> None:
        self._live = sys.stdout.isatty() if live is None else live
        width = min(shutil.get_terminal_size((WIDTH, 24)).columns, 100) if self._live else WIDTH
        self._console = Console(width=width, highlight=False, force_terminal=self._live or None, soft_wrap=False)
        self._begun = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[shown]}"),
            console=self._console,
            transient=True,
        )
        self._whole: TaskID | None = None
        self._staff: dict[int, TaskID] = {}
        self._tenths = 0
        if self._live:
            self._bars.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    # ── lines ──

    def title(self, line: str) -> None:
        self._console.print(Text(line, style="bold"))
        self._console.print()

    def say(self, word: str, what: str) -> None:
        """One line: when, a word for it, what happened. Cut rather than wrapped."""
        line = Text.assemble(
            (f"{self.seconds:7.1f} s  ", "dim"), (f"{word:<9}", _COLOURS.get(word, "bold")), what.replace("\n", " ")
        )
        line.truncate(self._console.width, overflow="ellipsis")
        self._console.print(line, no_wrap=True)

    def fail(self, line: str) -> None:
        self._console.print(Text(line, style="bold red"))

    # ── bars ──

    def sending(self, done: int, total: int) -> None:
        """How much the producer has sent: soon over, so a log does without."""
        if self._live:
            self._show(done, total, "sent")

    def progress(self, done: int, total: int) -> None:
        """How many payments are settled or buried."""
        if self._live:
            self._show(done, total, "settled or buried")
        elif int(done / total / TENTH) > self._tenths and done < total:
            self._tenths = int(done / total / TENTH)
            self.say("progress", f"{done:,} of {total:,} payments settled or buried")

    def _show(self, done: int, total: int, what: str) -> None:
        if self._whole is None:
            self._whole = self._bars.add_task("payments", total=total, shown="")
        self._bars.update(self._whole, completed=done, total=total, shown=f"{done:,} of {total:,} {what}")

    def staff(self, workers: Sequence[Staff]) -> None:
        """A bar for each worker: how many payments it has in its hands."""
        if not self._live:
            return
        for pid in self._staff.keys() - {worker.pid for worker in workers}:
            self._bars.remove_task(self._staff.pop(pid))
        for worker in workers:
            if worker.pid not in self._staff:
                self._staff[worker.pid] = self._bars.add_task(f"  {worker.pid}", total=CONCURRENCY, shown="")
            state = "paused" if worker.paused else f"{worker.held:>2} in hand"
            self._bars.update(
                self._staff[worker.pid], completed=worker.held, shown=f"{state}, {worker.settled:,} settled"
            )

    def close(self) -> None:
        if self._live:
            self._bars.stop()

    # ── the ledger ──

    def ledger(self, ledger: Ledger) -> None:
        print_ = self._console.print
        problems = ledger.problems()
        print_()
        print_(Text("Ledger", style="bold"))
        self._row("sent by the producer", len(ledger.sent))
        self._row("- duplicates refused by their key", ledger.duplicates_refused)
        self._row("= added", len(ledger.added), style="bold")
        print_()
        self._row("handled once", ledger.handled_once)
        self._row("+ dead letters", len(ledger.letters))
        for kind, why in zip(TROUBLE, ("undecodable", "failed at every attempt", "killed its process"), strict=True):
            self._row(f"      {why}", ledger.buried(kind), style="dim")
        whole = ledger.handled_once + len(ledger.letters)
        self._row("= accounted for", whole, "adds up" if whole == len(ledger.added) else "DOES NOT ADD UP", "bold")
        print_()
        self._row("handled twice", ledger.handled_twice)
        self._row("zombie outcomes refused", ledger.refused, "none of them took effect")
        for rescue in ledger.rescues:
            told = rescue.as_dict()
            note = f"p50 {_ms(told['p50_ms'])}, slowest {_ms(told['max_ms'])}"
            lease = "supervised" if rescue.blow == "SIGKILL" else f"lease {LEASE_S:g} s"
            self._row(f"rescued after {rescue.blow} ({lease})", told["rescued"], note)
        print_()
        for problem in problems:
            self.fail(f"  does not add up: {problem}")
        if not problems:
            rate = len(ledger.added) / ledger.seconds
            print_(
                Text(
                    f"  Nothing lost, nothing twice: {ledger.seconds:.0f} s, {rate:,.0f} payments/s", style="bold green"
                )
            )

    def _row(self, name: str, number: int, note: str = "", style: str = "") -> None:
        self._console.print(Text(f"  {name:<38}{number:>9,}   {note}".rstrip(), style=style), no_wrap=True)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"
