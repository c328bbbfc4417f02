"""Measure Headrace.

python -m bench worker                   one bench, on the embedded server and on Redis 8.10
python -m bench worker --json            the same; the last line is one JSON object
python -m bench all --keep               every bench of the workers, kept in bench/results (about 20 minutes)
python -m bench spark --keep             every bench of the Spark connector; needs headrace[spark] and Java
python -m bench table                    write the README's tables from what was kept
python -m bench peers --help             Headrace beside other libraries; installs them, so it is part of nothing else

What a bench must reach stands beside its figures, and whether it did: the exit code is 0 all the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from bench import readme
from bench.arena import DEFAULT, KNOWN, Arena, arena
from bench.report import Report, Run
from tests.support.binaries import find

CORE: Final = ("worker", "worker5ms", "rescue", "alive", "claim", "renew", "requeue", "assignments", "cluster")
SPARK: Final = ("spark-read", "spark-sink", "spark-many", "spark-latency", "spark-pipeline")
NAMES: Final = (*CORE, *SPARK)
SETS: Final[dict[str, tuple[str, ...]]] = {"all": CORE, "spark": SPARK}


class Bench(Protocol):
    """What the file of a bench offers."""

    def measure(self, arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]: ...
    def report(self, runs: list[Run]) -> Report: ...


def load(name: str) -> Bench:
    module: Any = importlib.import_module(f"bench.{name.replace('-', '_')}")
    found: Bench = module
    return found


def run(name: str, servers: Sequence[str], scale: float = 1.0) -> Report:
    """Measure on one server after the other, each started for this bench alone."""
    bench, runs = load(name), []
    for key in servers:
        with arena(key) as server:
            _say(f"{name} on {server.name}")
            runs += bench.measure(server, lambda line: _say(f"  {line}"), scale)
    return bench.report(runs)


def at_hand(servers: Sequence[str]) -> list[str]:
    """Those of the servers that this machine has; a missing one is said."""
    found = []
    for key in servers:
        if key != "embedded" and find(key) is None:
            _say(f"WITHOUT {key}, which is not at hand: `make servers` fetches it")
        else:
            found.append(key)
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name",
        nargs="?",
        default="all",
        choices=(*NAMES, *SETS, "table"),
        metavar="NAME",
        help=", ".join((*NAMES, *SETS, "table")),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--keep", action="store_true", help="leave the runs in bench/results, for the README's tables")
    parser.add_argument(
        "--server", action="append", choices=KNOWN, help=f"instead of {' and '.join(DEFAULT)}; may be repeated"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="0.01: a hundredth of the work, for a first look")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["peers"]:
        from bench.peers import program  # has options, and installations, of its own

        return program.main(words[1:])
    options = _arguments(words)
    if options.name == "table":
        return _write_tables()
    names = SETS.get(options.name, (options.name,))
    servers = at_hand(options.server or DEFAULT)
    if not servers:
        return 2
    reports = []
    for name in names:
        reports.append(run(name, servers, options.scale))
        print(reports[-1].as_text(), file=sys.stderr if options.json else sys.stdout, flush=True)
        if options.keep:
            readme.keep(reports[-1])
    if options.json:
        found = {report.name: report.as_json() for report in reports}
        print(json.dumps(found if options.name in SETS else found[options.name], ensure_ascii=False))
    return 0


def _write_tables() -> int:
    try:
        for name, benches in SETS.items():
            readme.write(name, benches, lambda bench, runs: load(bench).report(runs))
    except LookupError as missing:
        _say(str(missing))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
