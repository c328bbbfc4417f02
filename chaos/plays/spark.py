"""Row 30: the connector's own fault tests, run as they are: drivers killed between write and commit and inside publish,
executors killed, paused and doubled on a standalone cluster, streams cut under a query and under a task."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Final

from chaos.crew import ROOT
from chaos.stage import Stage
from chaos.topology import NotAtHand
from chaos.verdict import Breach, Verdict

TESTS: Final = (
    "tests/spark/test_faults.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_source_cut.py",
)
LIMIT_S: Final = 600.0


async def play(stage: Stage) -> Verdict:
    words = ["-m", "pytest", *TESTS, "-n", "0", "-p", "no:cacheprovider", "--servers", stage.topology.key]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        hung = Breach(1, [f"the Spark tests took longer than {LIMIT_S:.0f} s"])
        return Verdict({"L2": hung}, {})
    return told_by(told.decode(errors="replace"), process.returncode or 0)


def told_by(text: str, code: int) -> Verdict:
    """What pytest said, and how it ended. Only its own word that something is missing makes a skipped row."""
    if missing := re.search(r"^spark: (MISSING .*)", text, re.M):
        raise NotAtHand(missing[1])
    passed, skipped = (sum(map(int, re.findall(rf"(\d+) {word}", text))) for word in ("passed", "skipped"))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    if code == 0 and skipped and not passed:
        raise NotAtHand("every Spark test was skipped: " + text.strip()[-200:])
    faults = {"fault test passed": passed, "fault test skipped": skipped}
    verdict = Verdict({}, {"tests_passed": passed, "faults": {name: times for name, times in faults.items() if times}})
    for name in failed:
        verdict.breaches.setdefault("S1", Breach()).add(name)
    if (code and not failed) or not passed:
        verdict.breaches["run"] = Breach(1, [f"pytest ended with {code}: " + text.strip()[-200:]])
    return verdict
