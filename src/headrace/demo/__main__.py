"""Twenty thousand payments, three workers, one killed and one paused beyond its lease; the ledger; tables and a report.

python -m headrace.demo                       about a minute, half of it Spark
python -m headrace.demo --no-tables           the workers and their ledger alone
python -m headrace.demo --payments 2000       shorter
python -m headrace.demo --json                the ledger as one JSON object in the last line

Exits with 1 if the ledger does not add up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

try:
    import rich  # noqa: F401
except ModuleNotFoundError:
    sys.exit("the demo needs more than the library: pip install 'headrace[embedded,cli]'")

from headrace import App
from headrace.demo.crew import Crew
from headrace.demo.journal import Journal
from headrace.demo.ledger import Ledger
from headrace.demo.payments import SEED, Sending, sendings
from headrace.demo.screen import Screen
from headrace.demo.story import Story, Stuck
from headrace.demo.tables import tables
from headrace.demo.view import View
from headrace.demo.worker import LEASE_S, STREAM
from headrace.embedded import Embedded

PAYMENTS = 20_000
PROCESSES = 3
AT_ONCE = 1_000


async def add(url: str, sent: Sequence[Sending], screen: Screen) -> dict[str, str]:
    """Add what the producer sends; answers message id -> key of what the server took."""
    added: dict[str, str] = {}
    async with App(url) as app:
        stream = app.stream(STREAM, bytes)
        for at in range(0, len(sent), AT_ONCE):
            chunk = sent[at : at + AT_ONCE]
            answers = await stream.add_many([one.body for one in chunk], keys=[one.key for one in chunk])
            added |= {answer.id: one.key for one, answer in zip(chunk, answers, strict=True) if answer.first}
            screen.sending(at + len(chunk), len(sent))
    return added


def tell(url: str, folder: Path, options: argparse.Namespace, screen: Screen) -> Ledger:
    """The whole demo on a running server."""
    sent = sendings(options.payments, options.seed)
    view = View(url)
    screen.say("server", f"{view.server()}, private to this demo")
    added = asyncio.run(add(url, sent, screen))
    screen.say("added", f"{len(added):,} payments; {len(sent) - len(added):,} sent twice were refused by their key")
    journal = Journal(folder / "journal.jsonl")
    crew = Crew(url, options.processes, folder / "journal.jsonl", folder / "log.txt")
    story = Story(crew, journal, view, screen, added)
    begun = screen.seconds
    try:
        story.run()
        seconds = screen.seconds - begun
        backlog = view.backlog()
    except Stuck as stuck:
        screen.close()
        screen.fail(f"{stuck}; the end of the workers' log:")
        print(crew.log.read_text(errors="replace")[-3000:])
        raise
    finally:
        crew.stop()
        journal.close()
        screen.close()
    taken_over = 0 if story.paused is None else len(story.paused.rescue.late_ms)
    view.new_letters()
    settled, totals, letters = view.settled(), view.totals(), view.letters
    view.close()
    return Ledger(sent, added, settled, totals, letters, backlog, story.refused, taken_over, story.rescues, seconds)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--payments", type=int, default=PAYMENTS, metavar="N", help="how many (default 20,000)")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="N", help="worker processes (default 3)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="other payments")
    parser.add_argument("--plain", action="store_true", help="lines alone, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON in the last line")
    parser.add_argument("--no-tables", dest="tables", action="store_false", help="leave the Spark pipeline out")
    options = parser.parse_args(words)
    if options.payments < 100 or options.processes < 2:
        parser.error("give at least 100 payments and 2 processes: there is no story otherwise")
    return options


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    screen = Screen(live=False if options.plain or options.json else None)
    screen.title(
        f"Headrace: {options.payments:,} payments, {options.processes} workers, a lease of {LEASE_S:g} s, "
        "one kill, one pause"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder, Embedded() as server:
            ledger = tell(server.url, Path(folder), options, screen)
            screen.ledger(ledger)
            failed = bool(ledger.problems())
            if options.tables and not options.json:
                failed |= not tables(server.url, Path(folder, "journal.jsonl"))
    except Stuck:
        return 1
    except KeyboardInterrupt:
        screen.close()
        return 130
    if options.json:
        print(json.dumps(ledger.as_dict()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
