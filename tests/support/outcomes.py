"""`--outcomes=FILE`: how the tests that promises name have ended is added to a file, for `python -m chaos table`.

Under pytest-xdist every process names the server of a test, and the one that leads them collects and writes.
"""

from __future__ import annotations

import datetime as dt
import platform
import re
from pathlib import Path
from typing import Final

import pytest

from chaos import promises
from chaos.outcomes import NONE, Outcomes
from tests.support.digest import digest
from tests.support.servers import KEYS, versions

_SERVER: Final = "server of the matrix"


class Watch:
    """Sees every report of a run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._wanted = promises.load().wanted()
        self._run = f"{dt.datetime.now(dt.UTC).date()} {digest()}"
        self._found: dict[tuple[str, str], bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        params = getattr(getattr(item, "callspec", None), "params", {})
        key = params.get("server_key")
        item.user_properties.append((_SERVER, key if key in KEYS else NONE))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = plain(report.nodeid)
        if test not in self._wanted or not (report.failed or (report.when == "call" and report.passed)):
            return
        which = (test, str(dict(report.user_properties).get(_SERVER, NONE)))
        self._found[which] = self._found.get(which, True) and not report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or not self._found:
            return
        about = {"python": platform.python_version(), "servers": versions()}
        kept = Outcomes.load(self._file)
        kept.add(self._run, about, self._found)
        kept.keep(self._wanted)
        kept.write(self._file)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tests = {test for test, _ in self._found}
        failed = {test for (test, _), good in self._found.items() if not good}
        terminalreporter.write_line(
            f"of {len(self._wanted)} tests that promises name {len(tests)} were played, {len(failed)} failed: "
            f"added to {self._file}"
        )


def plain(nodeid: str) -> str:
    """A test's file and name, without its class, its parameters and its group."""
    file, _, names = re.split(r"[\[@]", nodeid, maxsplit=1)[0].partition("::")
    return f"{file}::{names.rpartition('::')[2]}"
