"""Which Java counts for Spark: for the commands, for the demo and for `make`, the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.demo.tables import tables
from headrace.errors import ConfigError
from headrace.spark.java import need_java

ROOT = Path(__file__).resolve().parents[2]


def java(folder: Path, says: str) -> Path:
    """A program that only tells a version, as Java does, after what it may say about its environment."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sed", "head", "id"):
        (tools / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tools))


def test_no_java_is_said_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"none was found.*JAVA_HOME"):
        need_java()


def test_a_pipeline_file_is_checked_without_java(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    assert main(["pipeline", "check", str(ROOT / "examples/payments/payments.toml"), "--url", "redis://localhost"]) == 0
    assert "payments, from redis://localhost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ("a Java that tells nobody", True),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ('java version "1.8.0_292"', False),
    ],
)
@pytest.mark.parametrize("where", ["JAVA_HOME", "PATH"])
def test_a_java_that_is_too_old_is_refused_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, says: str, fits: bool
) -> None:
    home = java(tmp_path / "jdk", says)
    monkeypatch.setenv(
        where, str(home if where == "JAVA_HOME" else home / "bin"), prepend=":" if where == "PATH" else None
    )
    if fits:
        need_java()
        return
    with pytest.raises(ConfigError, match=r"Java 17 or 21, and .*java is Java (8|11): install"):
        need_java()


def test_a_java_home_that_is_none_is_not_made_good_by_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(java(tmp_path / "good", 'openjdk version "17.0.1"') / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"JAVA_HOME is .*nowhere"):
        need_java()


def test_a_demo_without_java_says_that_it_made_no_tables_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables("redis://127.0.0.1:1", Path("journal"))
    told = capsys.readouterr().out
    assert "No tables and no report were made: Spark needs Java 17 or 21" in told
    assert "JAVA_HOME" in told


def test_a_demo_takes_the_java_of_java_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", 'openjdk version "17.0.1"')))
    assert tables("redis://127.0.0.1:1", Path("journal"))
    assert "there is no examples/payments/payments.toml here" in capsys.readouterr().out  # the next thing it needs


@pytest.mark.parametrize("version", [17, 11])
def test_make_asks_for_the_same_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int) -> None:
    """What it finds good, Spark starts; JAVA_HOME goes before PATH."""
    monkeypatch.setenv("PATH", str(java(tmp_path / "good", 'openjdk version "17.0.1"') / "bin"), prepend=":")
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", f'openjdk version "{version}.0.1"')))
    ended = subprocess.run(["sh", str(ROOT / "tools" / "java.sh")], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ("JAVA_HOME" in ended.stderr) is (version == 11), ended
