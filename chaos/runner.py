"""Plays scenarios and tells what came of them."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from chaos import plays
from chaos.checker import judge
from chaos.scenario import Scenario
from chaos.stage import stage
from chaos.topology import Kind, NotAtHand
from chaos.verdict import Breach, Verdict
from tests.support.digest import digest
from tests.support.servers import ServerMissing

RESULTS: Final = Path(__file__).with_name("results")
Say = Callable[[str], None]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Result:
    """One run of one scenario, as it goes into a results file."""

    row: int
    name: str
    what: str
    seed: int
    server: str
    topology: str
    seconds: float = 0.0
    version: str = ""
    durability: str = ""
    fsync: str = ""
    lease_s: float = 0.0
    mutant: str = ""
    date: str = ""
    machine: str = ""
    code: str = ""
    skipped: str = ""
    breaches: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not self.breaches

    def as_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__slots__ if name not in ("breaches", "figures")}
        breaches = {name: {"count": one.count, "examples": one.examples} for name, one in self.breaches.items()}
        return {**told, "holds": self.holds, "breaches": breaches, **self.figures}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        stamp = self.date.replace(":", "").replace("-", "")
        file = folder / f"{self.row:02}-{self.name}-{self.server}-{self.topology}-{self.seed}-{stamp}.json"
        file.write_text(json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n")
        return file

    def as_line(self) -> str:
        head = f"{self.row:>2} {self.name:<20} {self.server:<8} {self.topology:<8} seed {self.seed:<6}"
        if self.skipped:
            return f"{head} SKIPPED: {self.skipped}"
        told = self.figures
        body = " ".join(
            f"{name} {told[name]:,}"
            for name in ("messages", "lost", "duplicates", "refused", "burnt", "robbed", "deaths")
            if name in told
        )
        if "rescue_p99_ms" in told:
            body += f" rescue p99 {told['rescue_p99_ms']:.0f} ms"
        broken = " ".join(f"{name}:{one.count}" for name, one in self.breaches.items())
        return f"{head} {body}" + (f"  BROKEN {broken}" if broken else "")


async def run(
    scenario: Scenario, seed: int, server: str, topology: Kind = "single", seconds: float = 0.0, mutant: str = ""
) -> Result:
    """One run. Never raises for what a run may meet: what is missing is told as skipped."""
    seconds = seconds or scenario.seconds
    result = Result(scenario.row, scenario.name, scenario.what, seed, server, topology, mutant=mutant)
    result.date = datetime.now(UTC).isoformat(timespec="seconds").removesuffix("+00:00")
    result.machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    result.code = digest()
    result.durability = scenario.promise.level
    result.fsync = scenario.server.fsync if scenario.server.aof else "no"
    result.lease_s = scenario.staff.lease_s
    if topology not in scenario.topologies:
        result.skipped = f"needs {' or '.join(scenario.topologies)}"
        return result
    if server not in scenario.servers:
        result.skipped = f"not on {server}"
        return result
    begun = time.monotonic()
    try:
        verdict, result.version = await _played(scenario, seed, seconds, server, topology, mutant)
    except (NotAtHand, ServerMissing) as missing:
        result.skipped = str(missing)
        return result
    except Exception as error:  # noqa: BLE001 - a run that could not be played is not one that held
        result.breaches["run"] = Breach(1, [f"{type(error).__name__}: {error}"])
        return result
    result.breaches, result.figures = dict(verdict.breaches), verdict.figures
    result.seconds = round(time.monotonic() - begun, 1)
    return result


async def _played(
    scenario: Scenario, seed: int, seconds: float, server: str, topology: Kind, mutant: str
) -> tuple[Verdict, str]:
    play = plays.PLAYS[scenario.play or "traffic"]
    async with stage(scenario, seed, seconds, server, topology, mutant=mutant) as told:
        version = told.topology.version
        verdict = await play(told)
        if verdict is None:
            verdict = judge(told.facts(await told.finish()))
        if told.older:
            verdict.figures["older"] = told.older
        if verdict.breaches:
            keep(told.folder)
        return verdict, version


def keep(folder: Path) -> None:
    """Copy histories and logs of a run that broke something to CHAOS_KEEP, if that is set, for a closer look."""
    if not os.environ.get("CHAOS_KEEP"):
        return
    target = Path(os.environ["CHAOS_KEEP"])
    target.mkdir(parents=True, exist_ok=True)
    for file in [*folder.glob("*.jsonl"), *folder.glob("*.log")]:
        (target / file.name).write_bytes(file.read_bytes())
