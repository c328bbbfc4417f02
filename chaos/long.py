"""Is anything growing, and is anything lost? Traffic with kills for a long time, looked at every few seconds, and a
line laid through it; at its end the judge of the rows is given the whole history.

What must be flat: memory and sockets of the oldest worker, its tasks and threads, and on the server keys, owners and
connections. A slope counts as growth when it would, over the whole run, add more than a tolerated amount.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos import runner, versions
from chaos.checker import judge
from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.scenario import Plan, Scenario, Staff
from chaos.scenarios import QUICK
from chaos.stage import Stage, stage
from chaos.worker import GROUP
from headrace.names import keys_of
from tests.support.digest import digest
from tests.support.history import History

LOOKS: Final = 60
WARM_SHARE: Final = 0.25  # the first part of a run is warming up and not judged

TOLERATED: Final = {
    "rss_mb": 8.0,
    "sockets": 2.0,
    "threads": 2.0,
    "tasks": 8.0,
    "keys": 2.0,
    "owners": 6.0,
    "connections": 6.0,
    "pending": 400.0,
}
"""How much of each may be added over the judged part of a run."""

SCENARIO: Final = Scenario(
    31,
    "long",
    "is anything growing?",
    Traffic(QUICK, rate=1_000, slow_s=(0.05, 0.3)),
    (
        Plan("kill", (3.0, 6.0), {"spare": 2}),
        Plan("flush-scripts", (5.0, 10.0)),
        Plan("cut", (15.0, 25.0)),
        Plan("cut-mid-frame", (4.0, 8.0)),
        Plan("partition", (20.0, 40.0)),
    ),
    Staff(workers=3, lease_s=1.0, options={"owner_retention": "5s"}, proxied=True),
    promise=Promise(burns=float("inf")),
)


@dataclass(slots=True)
class Series:
    """Values over time."""

    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at: float, value: float) -> None:
        self.at.append(at)
        self.values.append(value)

    def slope(self) -> float:
        """By how much it rises in a second, by least squares over what comes after warming up."""
        first = int(len(self.at) * WARM_SHARE)
        at, values = self.at[first:], self.values[first:]
        if len(at) < 3:
            return 0.0
        mean_at, mean = sum(at) / len(at), sum(values) / len(values)
        spread = sum((one - mean_at) ** 2 for one in at)
        return sum((one - mean_at) * (value - mean) for one, value in zip(at, values, strict=True)) / spread


async def run(minutes: float, seed: int, server: str) -> dict[str, Any]:
    """One long run: slopes, whether everything is flat, and what the judge says of it."""
    seconds, code = minutes * 60, digest()
    async with stage(SCENARIO, seed, seconds, server, "single") as told:
        elder = await told.hire()
        elder.kept = False
        await told.staff()
        elder.paused = True  # nobody kills it: it is the one that is watched, and suffers the rest
        watching = asyncio.create_task(_watch(told, elder.pid, seconds))
        trimming = asyncio.create_task(_trim(told, seconds))
        version = told.topology.version
        await told.play()
        trimming.cancel()
        series = await watching
        faults = len(History(told.folder / "nemesis.jsonl").events("fault", kind="invoke"))
        verdict = judge(told.facts(await told.finish()))
        if not verdict.holds:
            runner.keep(told.folder)
    judged_s = seconds * (1 - WARM_SHARE)
    rises = {name: round(one.slope() * judged_s, 2) for name, one in series.items()}
    growing = sorted(name for name, rise in rises.items() if rise > TOLERATED[name])
    return {
        "minutes": minutes,
        "seed": seed,
        "server": server,
        "version": version,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "code": code,
        "messages": told.feeder.added,
        "faults": faults,
        "lost": verdict.figures["lost"],
        "duplicates": verdict.figures["duplicates"],
        "breaches": {name: {"count": one.count, "examples": one.examples} for name, one in verdict.breaches.items()},
        "rise": rises,
        "last": {name: round(one.values[-1], 2) for name, one in series.items() if one.values},
        "growing": growing,
        "flat": not growing,
        "holds": verdict.holds and not growing,
    }


def write(told: dict[str, Any], folder: Path) -> None:
    """Beside the results of the rows, in a folder of its own."""
    file = folder / "long" / f"{told['server']}-{told['seed']}-{told['date'][:10]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def sentences(folder: Path) -> list[str]:
    """What the last long run on each server says, a line each, for the table's head."""
    found = sorted(
        (json.loads(file.read_text()) for file in (folder / "long").glob("*.json")), key=lambda one: str(one["date"])
    )
    return [_sentence(told) for told in {told["server"]: told for told in found}.values()]


def _sentence(told: dict[str, Any]) -> str:
    rises = ", ".join(f"{name.replace('_mb', ' MB')} {rise:+g}" for name, rise in told["rise"].items())
    return (
        f"- {told['minutes']:g} minutes of traffic with kills and cuts on {told['version']}, {told['date'][:10]}, "
        f"{versions.code_of(told)}: {told['messages']:,} messages, {told['faults']:,} faults, {_ending(told)}; "
        f"{'flat' if told['flat'] else '**' + ', '.join(told['growing']) + ' grew**'} "
        f"(by how much it rose in the judged part: {rises})"
    )


def _ending(told: dict[str, Any]) -> str:
    """What became of the messages. Older runs were watched for growth alone."""
    if "lost" not in told:
        return "watched for growth and not judged for loss"
    broken = f", **{', '.join(told['breaches'])} broken**" if told["breaches"] else ""
    return f"{told['lost']:,} lost, {told['duplicates']:,} done twice{broken}"


async def _watch(told: Stage, pid: int, seconds: float) -> dict[str, Series]:
    series = {name: Series() for name in TOLERATED}
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < seconds:
        for name, value in _look(told, pid).items():
            series[name].add(now, value)
        await asyncio.sleep(max(0.2, seconds / LOOKS))
    return series


def _look(told: Stage, pid: int) -> dict[str, float]:
    client: Any = told.topology.admin
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    sockets = [link for link in _targets(process / "fd") if link.startswith("socket:")]
    return {
        "rss_mb": pages * 4096 / 1e6,
        "sockets": len(sockets),
        "threads": len(list((process / "task").iterdir())),
        "tasks": _tasks(told, pid),
        "keys": client.dbsize(),
        "owners": client.hlen(keys_of(told.stream).owners(GROUP)),
        "connections": client.info("clients")["connected_clients"],
        "pending": client.xpending(told.stream, GROUP)["pending"],
    }


def _tasks(told: Stage, pid: int) -> float:
    """The tasks of its event loop, as it counted them when it was asked last."""
    file = told.folder / f"tasks-{pid}"
    counted = float(file.read_text() or 0) if file.exists() else 0.0
    os.kill(pid, signal.SIGUSR1)
    return counted


def _targets(folder: Path) -> Sequence[str]:
    found = []
    for link in folder.iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue
    return found


async def _trim(told: Stage, seconds: float) -> None:
    """What retention would do: finished entries go, so that the server's own growth hides nobody's."""
    while True:
        await asyncio.sleep(2.0)
        told.topology.admin.xtrim(told.stream, maxlen=20_000, approximate=False)
