"""`headrace pipeline run` and `headrace report` where no server answers, or one that wants another password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.support.servers import Server

pytest.importorskip("pyspark")
pytestmark = pytest.mark.servers("redis8")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "payments" / "payments.toml"
WRONG = "s3cret-4711"
COMMANDS = (("pipeline", "run", str(EXAMPLE), "--once"), ("report", str(EXAMPLE)))


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One that can only tell its version: nothing here is so far that Spark is started."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return program


@pytest.mark.parametrize("words", COMMANDS, ids=["run", "report"])
def test_a_server_that_is_not_there_is_one_line_without_the_password(
    run_here: Callable[..., Ran], words: tuple[str, ...]
) -> None:
    ran = run_here(*words, "--url", f"redis://me:{WRONG}@127.0.0.1:1")
    ran.refused(1, "redis://me:***@127.0.0.1:1/0", "check the URL, and that the server runs")
    assert WRONG not in ran.err


@pytest.mark.parametrize("words", COMMANDS, ids=["run", "report"])
def test_a_wrong_password_is_one_line_without_it(
    run_here: Callable[..., Ran], own_server: Callable[..., Server], words: tuple[str, ...]
) -> None:
    server = own_server("redis8", config={"requirepass": "right"})
    ran = run_here(*words, "--url", f"unix://{server.socket}?password={WRONG}")
    ran.refused(1, "password")
    assert WRONG not in ran.err
