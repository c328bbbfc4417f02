"""The command line. See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chaos
from chaos import campaign, long, runner, table
from chaos.runner import Result, say
from chaos.scenario import EVERY
from chaos.scenarios import ROWS, named
from chaos.topology import KINDS, Kind

_UNITS = {"s": 1, "m": 60, "h": 3600}


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: write 90s, 30m or 2h")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=chaos.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="a row by number or name, or: rows all soak long crash-points mutants table")
    parser.add_argument("--seed", type=int, default=1, help="a seed gives the same schedule and the same orders again")
    parser.add_argument("--seconds", type=float, default=0.0, help="length of the traffic; the row's own without it")
    parser.add_argument("--server", choices=EVERY, action="append", help="may be repeated; the row's first without it")
    parser.add_argument("--topology", choices=KINDS, help="those that the row names without it")
    parser.add_argument("--results", type=Path, default=None, help="folder for results files")
    parser.add_argument("--minutes", type=float, default=30.0, help="of `long`")
    parser.add_argument("--length", type=_duration, default=7_200.0, help="of `soak`: 90s, 30m, 2h")
    return parser.parse_args(words)


def _tell(result: Result) -> None:
    say(result.as_line())
    for name, breach in result.breaches.items():
        for example in breach.examples:
            say(f"   {name}: {example}")


async def _rows(options: argparse.Namespace) -> dict[str, Any]:
    """One row: on every topology and server named."""
    results = []
    for scenario in named(options.what):
        kinds = [options.topology] if options.topology else scenario.played
        for kind, server in itertools.product(kinds, options.server or scenario.servers[:1]):
            result = await runner.run(scenario, options.seed, server, kind, options.seconds)
            _tell(result)
            if options.results is not None:
                result.write(options.results)
            results.append(result)
    if all(result.skipped for result in results):
        raise LookupError(_nothing_played(results))
    if len(results) == 1:
        return results[0].as_json()
    return {**campaign.summary(results), "results": [result.as_json() for result in results]}


def _nothing_played(results: Sequence[Result]) -> str:
    """Nothing was played, so nothing has held. A sentence for each, and where the row can be played."""
    rows = {scenario.name: scenario for scenario in ROWS}
    told = [
        f"{result.name} was not played on {result.server}, {result.topology}: {result.skipped}. It is played on "
        f"{' and '.join(rows[result.name].topologies)}, with {' or '.join(rows[result.name].servers)}"
        for result in results
    ]
    return "\n".join(told)


async def _all(options: argparse.Namespace) -> dict[str, Any]:
    folder = options.results or runner.RESULTS
    results = await campaign.every_row(options.seed, options.server or (), options.topology, folder)
    table.write(folder)
    return campaign.summary(results)


async def _soak(options: argparse.Namespace) -> dict[str, Any]:
    folder = options.results or runner.RESULTS
    topology: Kind = options.topology or "single"
    results = await campaign.soak(options.length, options.seed, options.server or (), topology, folder)
    table.write(folder)
    return campaign.summary(results)


async def _long(options: argparse.Namespace) -> dict[str, Any]:
    told = await long.run(options.minutes, options.seed, (options.server or ["redis8"])[0])
    long.write(told, options.results or runner.RESULTS)
    return told


async def _mutants(options: argparse.Namespace) -> dict[str, Any]:
    return await campaign.mutants(options.seed, options.results or runner.RESULTS)


_COMMANDS = {"all": _all, "soak": _soak, "long": _long, "mutants": _mutants}


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    if options.what == "rows":
        for scenario in ROWS:
            print(f"{scenario.row:>2} {scenario.name:<22} {scenario.what}")
        return 0
    try:
        if options.what == "table":
            table.write(options.results or runner.RESULTS)
            return 0
        told = asyncio.run(_COMMANDS.get(options.what, _rows)(options))
    except LookupError as unknown:
        say(str(unknown))
        return 2
    print(json.dumps(told, ensure_ascii=False))
    return 0 if told["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
