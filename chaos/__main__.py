"""The command line. See the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos import runner
from chaos.runner import say
from chaos.scenario import EVERY
from chaos.scenarios import ROWS, named
from chaos.topology import KINDS


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=sys.modules["chaos"].__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", help="a row by number or name, or one of: rows all soak long crash-points mutants table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="length of the traffic; the row's own without it")
    parser.add_argument("--server", choices=EVERY, action="append", help="may be repeated; the row's first without it")
    parser.add_argument("--topology", choices=KINDS, default="single")
    parser.add_argument("--results", type=Path, default=runner.RESULTS, help="folder for results files")
    parser.add_argument("--minutes", type=float, default=30.0, help="of `long`")
    parser.add_argument("--hours", type=float, default=2.0, help="of `soak`")
    return parser.parse_args(words)


async def _play(options: argparse.Namespace) -> int:
    held = True
    results = []
    for scenario in named(options.what):
        for server in options.server or scenario.servers[:1]:
            result = await runner.run(scenario, options.seed, server, options.topology, options.seconds)
            say(result.as_line())
            for name, breach in result.breaches.items():
                for example in breach.examples:
                    say(f"   {name}: {example}")
            results.append(result.as_json())
            held = held and result.holds
    print(json.dumps(results[0] if len(results) == 1 else {"holds": held, "runs": results}, ensure_ascii=False))
    return 0 if held else 1


def main(words: Sequence[str] | None = None) -> int:
    options = _arguments(words)
    if options.what == "rows":
        for scenario in ROWS:
            print(f"{scenario.row:>2} {scenario.name:<22} {scenario.what}")
        return 0
    try:
        return asyncio.run(_play(options))
    except LookupError as unknown:
        say(str(unknown))
        return 2


if __name__ == "__main__":
    sys.exit(main())
