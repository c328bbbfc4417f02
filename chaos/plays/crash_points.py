"""Row 2: a worker is killed at every named point, at each of its first occurrences; then a sibling finishes its work.

Every case has a stream of its own, with messages of every kind, orphans that must be rescued, and three that must
run alone. All workers of a round live side by side; a worker that never came to its point is stopped, and stopping has
points too. Some of them recover by requeue, and are killed at its points too. A supervising parent is killed at its own
points while it hands back what a dead child held. At the end siblings of each kind drain the streams, and everything
is judged together. Owners of streams have a cast of their own (owned_points.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from chaos.checker import judge
from chaos.crew import ROOT
from chaos.plays import owned_points
from chaos.stage import Stage
from chaos.verdict import Breach, Verdict
from chaos.worker import GROUP, VARIABLE
from headrace import points
from tests.support.history import Event
from tests.support.wait import wait_until

OCCURRENCES: Final = 3
AT_ONCE: Final = 28  # cases of one round
LIFE_S: Final = 4.0  # how long a worker may take to its point before it is stopped
CUT_S: Final = 1.3  # nobody rescues for half a lease after a connect: seldom enough for that
EACH: Final = 26  # messages of a case
SIBLINGS: Final = 4  # finish the work: what must run alone in its process runs alone in each of these
LAST: Final = range(2, 5)  # which of them are at their last but one attempt: as many as a point has occurrences
LEFT: Final = 5  # so many were read by an owner that is gone
ONCE: Final = ("worker.joined", "worker.stopping", "worker.released")  # in a process's life
OF_PARENTS: Final = ("guardian.adopting", "guardian.adopted")
OF_REQUEUE: Final = ("locks.", "requeuer.")
REQUEUE: Final = {"interval": "500ms", "min_idle": "200ms", "max_retries": 2}
ENDLESS: Final = "handback"  # a copy that costs no retry is a first attempt again
AGAIN_BY_REQUEUE: Final = (  # what the two strategies do differently between the same points
    *("reader.answered", "outbox.sending", "outbox.answered", "outbox.ended", "lifeline.renewed"),
    *("worker.stopping", "worker.released"),
)


class Case(NamedTuple):
    """Where a worker is killed, and whether it recovers by requeue."""

    point: str
    at: int
    requeues: bool = False


def cases(occurrences: int = OCCURRENCES) -> list[Case]:
    """Every point of a worker with every occurrence; what is the same code elsewhere once more by requeue."""
    others = (*OF_REQUEUE, *owned_points.OF_OWNERS, *OF_PARENTS)
    workers = [name for name in points.NAMES if not name.startswith(others)]
    requeuers = [name for name in points.NAMES if name.startswith(OF_REQUEUE)]
    times = range(1, occurrences + 1)
    return [
        *(Case(name, at) for name in workers for at in times if at == 1 or name not in ONCE),
        *(Case(name, at, requeues=True) for name in requeuers for at in times),
        *(Case(name, 1, requeues=True) for name in AGAIN_BY_REQUEUE),
    ]


async def play(stage: Stage) -> Verdict:
    wanted, owned = cases(), owned_points.cases()
    in_order = await owned_points.play(stage, owned)
    await rounds(stage, wanted)
    verdict = judge(stage.facts(await stage.finish()))
    _add(verdict, in_order)
    # The sibling comes last, so how long a rescue took says nothing here.
    verdict.figures = {name: told for name, told in verdict.figures.items() if not name.startswith("rescue_")}
    found = reached(stage)
    # Not all are reached in each run: a worker that has little to do comes to few points more than once.
    everywhere = {(case.point, case.at) for case in wanted} | {*owned} | {(point, 1) for point in OF_PARENTS}
    verdict.figures |= {
        "rescued": 0,
        "cases": len(wanted) + len(owned) + len(OF_PARENTS),
        "reached": len(found),
        "missed": sorted(f"{name} {at}" for name, at in everywhere - found),
    }
    for name in missed({name for name, _ in found}, native=stage.topology.native):
        verdict.breaches.setdefault("run", Breach()).add(f"nobody came to {name}, so nobody was killed there")
    return verdict


def _add(verdict: Verdict, other: Verdict) -> None:
    """Both casts in one verdict."""
    for name, number in other.figures.items():
        verdict.figures[name] += number
    for invariant, breach in other.breaches.items():
        for example in breach.examples:
            verdict.breaches.setdefault(invariant, Breach()).add(example)


def missed(found: set[str], *, native: bool) -> list[str]:
    """Points that nobody was killed at. Where the server claims by itself the scan is too rare to be among them."""
    return sorted({*points.NAMES} - found - ({"reader.rescued"} if native else set()))


async def rounds(stage: Stage, wanted: list[Case]) -> None:
    stage.qualified = True
    parents = [f"parent-{number}" for number in range(len(OF_PARENTS))]
    stage.streams = [*(f"case-{number}" for number in range(len(wanted))), *parents]
    stage.begun = asyncio.get_running_loop().time()
    placed = dict(zip(stage.streams, wanted, strict=False))
    requeued = [stream for stream, case in placed.items() if case.requeues]
    for stream in stage.streams:
        _prepare(stage, stream, without=ENDLESS if stream in requeued else "")
    for first in range(0, len(wanted), AT_ONCE):
        await _round(stage, list(placed.items())[first : first + AT_ONCE])
    for stream, point in zip(parents, OF_PARENTS, strict=True):
        await _parent(stage, stream, point)
    plain = [each for each in stage.streams if each not in requeued]
    for at in range(SIBLINGS):
        await stage.crew.hire(streams=plain[at::SIBLINGS], qualified=True)
    await stage.crew.hire(streams=requeued, qualified=True, handler=_handler(stage, requeues=True))
    stage.ended = asyncio.get_running_loop().time()


def _handler(stage: Stage, *, requeues: bool) -> dict[str, Any]:
    """The handler's options. How often a message may be tried is said by what recovers it."""
    options: dict[str, Any] = dict(stage.crew.settings["handler"])
    if requeues:
        del options["max_attempts"]
        options["requeue"] = REQUEUE
    return options


def _prepare(stage: Stage, stream: str, *, without: str = "") -> None:
    """Messages of every kind; some were left by an owner that is gone, most of them at their last but one attempt."""
    client: Any = stage.topology.admin
    client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    ids: list[str] = []
    while len(ids) < EACH:
        n, stage.feeder.added = stage.feeder.added, stage.feeder.added + 1
        if len(ids) in LAST:
            stage.mortal.add(n)  # killed at its last attempt, it is buried and no poison
        if stage.orders.order(n).do == without:
            continue
        ids.append(client.xadd(stream, {"payload": stage.orders.payload(n)}).decode())
        stage.pen.note_all([Event(0.0, 0, "add", "ok", f"{stream}/{ids[-1]}", about={"n": n})])
    client.xreadgroup(GROUP, "gone", {stream: ">"}, count=LEFT)
    client.xclaim(stream, GROUP, "gone", 0, ids[: LAST.start], idle=60_000, justid=True)
    last = stage.scenario.promise.max_attempts - 1
    client.xclaim(stream, GROUP, "gone", 0, ids[LAST.start : LAST.stop], idle=60_000, retrycount=last, justid=True)


async def _round(stage: Stage, some: list[tuple[str, Case]]) -> None:
    hired = []
    for stream, case in some:
        options = _handler(stage, requeues=case.requeues)
        crash = (case.point, case.at)
        worker = await stage.crew.hire(streams=[stream], qualified=True, crash=crash, handler=options)
        worker.kept = False
        hired.append(worker)
    cutting = asyncio.create_task(_cut_readers(stage))
    try:
        with suppress(AssertionError):
            await wait_until(lambda: not any(worker.alive for worker in hired), LIFE_S, 0.02)
    finally:
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
    for worker in hired:
        worker.signal(signal.SIGTERM)
    await wait_until(lambda: not any(worker.alive for worker in hired), 20.0, 0.02, what="the round's end")


async def _parent(stage: Stage, stream: str, point: str) -> None:
    """A child dies, its parent begins to hand back what it held, and dies too. The other child drains and ends."""
    settings = {**stage.crew.settings, "streams": [stream], "qualified": True, "crash_parent": (point, 1)}
    log = stage.folder / f"{stream}.log"
    with log.open("ab") as sink:
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chaos.parent"),
            cwd=ROOT,
            env={**os.environ, VARIABLE: json.dumps(settings)},
            stdout=sink,
            stderr=sink,
        )
    await wait_until(lambda: log.read_bytes().count(b"worker.started") == 2, 20.0, 0.02, what="the children")
    children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    stage.pen.note("fault", "invoke", what="kill", pids=children[:1], excuses=True)
    os.kill(children[0], signal.SIGKILL)
    await asyncio.wait_for(parent.wait(), 20.0)
    await wait_until(lambda: not Path(f"/proc/{children[1]}").exists(), 20.0, 0.02, what="the other child's end")


async def _cut_readers(stage: Stage) -> None:
    """Cut the readers' connections now and then, so that what they hold unknowingly has to be found."""
    nodes: list[Any] = [*stage.topology.nodes]
    while True:
        await asyncio.sleep(CUT_S)
        # One that is stopped before it has found what a cut reply brought cannot leave: that is still in its name.
        stage.note_fault("cut", stage.crew.alive)
        for node in nodes:
            for row in node.client_list():
                if row["name"].startswith("headrace:") and ":read:" in row["name"]:
                    node.client_kill_filter(_id=row["id"])


def reached(stage: Stage) -> set[tuple[str, int]]:
    """The cases in which a worker was killed at its point."""
    found = set()
    for file in stage.folder.glob("worker-*.jsonl"):
        for line in file.read_text().splitlines():
            about = json.loads(line).get("about", {})
            if "point" in about:
                found.add((about["point"], about["number"]))
    return found
