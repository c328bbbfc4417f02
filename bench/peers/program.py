"""Headrace beside its peers, in the same run, on real Redis 8.10 over loopback TCP.

python -m bench peers                                  everybody; about half an hour, most of it waiting
python -m bench peers --only headrace,streaq,arq       some
python -m bench peers --part rates                     without the faults
python -m bench peers --json > found.json              the last line is one JSON object
python -m bench peers --from found.json --write docs/peers.md --chart docs/peers.svg     write the page again

The peers are installed on first use, each in an environment of its own under $XDG_CACHE_HOME/headrace/peers.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.arena import KNOWN
from bench.peers import chart, findings, page, roster
from tests.support.binaries import find


def main(words: Sequence[str]) -> int:
    options = _arguments(words)
    told = _told(options) if options.source is None else json.loads(options.source.read_text().splitlines()[-1])
    if told is None:
        return 2
    print(findings.report(told["runs"]).as_text(), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.table:
        print(page.tables(told["runs"]))
    if options.chart is not None:
        options.chart.write_text(chart.draw(told["runs"]))
    if options.write is not None:
        page.write(options.write, told, _beside(options.chart, options.write))
    if options.json:
        print(json.dumps(told, ensure_ascii=False))
    return 0


def _told(options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure, and answer what is printed as JSON."""
    if options.server != "embedded" and find(options.server) is None:
        _say(f"WITHOUT {options.server}, which is not at hand: `make servers` fetches it")
        return None
    plan = findings.Plan(
        parts=options.part or findings.PARTS, rounds=options.rounds, seconds=options.seconds, wait_s=options.wait
    )
    runs = findings.measure(options.only, plan, _say, options.server)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return {**findings.report(runs).as_json(), "date": today}


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plan, names = findings.Plan(), ", ".join(peer.module for peer in roster.EVERYBODY)
    parser.add_argument("--only", type=_peers, default=list(roster.EVERYBODY), metavar="NAMES", help=f"of {names}")
    parser.add_argument("--part", action="append", choices=findings.PARTS, help="instead of both")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="of the rates; medians are told")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="of work a rate is measured for")
    parser.add_argument("--wait", type=float, default=plan.wait_s, help="seconds to wait for a recovery")
    parser.add_argument("--server", choices=KNOWN, default=findings.SERVER)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a former run's JSON; measure nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--table", action="store_true", help="print tables in Markdown")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw the rates")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the findings between the page's markers")
    return parser.parse_args(words)


def _peers(text: str) -> list[roster.Peer]:
    try:
        return roster.named([name for name in text.split(",") if name])
    except KeyError as unknown:
        raise argparse.ArgumentTypeError(f"there is no peer {unknown}") from unknown


def _beside(picture: Path | None, document: Path) -> str | None:
    return None if picture is None else os.path.relpath(picture, document.parent)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
