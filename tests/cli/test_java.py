"""Which Java counts for Spark: for the commands, for the demo and for `make`, the same."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
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
    for name in ("sh", "sed", "head", "cat", "chmod"):
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


# ── where apt can install one ──

APT_CACHE = """#!/bin/sh
case " $OFFERED " in *" $2:"*) exit 0 ;; esac
exit 100
"""
APT_GET = """#!/bin/sh
echo "$*" >> "$BIN/asked"
[ "$1" = install ] || exit 0
for last in "$@"; do :; done
for offer in $OFFERED; do
  [ "${offer%%:*}" = "$last" ] || continue
  version="${offer#*:}"
  [ "$version" = broken ] && exit 100
  { echo '#!/bin/sh'; echo "echo 'openjdk version \\"$version\\"' >&2"; } > "$BIN/java"
  chmod +x "$BIN/java"
  exit 0
done
exit 100
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """tools/java.sh on a machine whose apt offers these packages, each with a version of Java."""

    def run(user: int = 0, **offers: str) -> subprocess.CompletedProcess[str]:
        programs = {"apt-cache": APT_CACHE, "apt-get": APT_GET, "id": f"#!/bin/sh\necho {user}\n"}
        for name, text in programs.items():
            program = tmp_path / "tools" / name
            program.write_text(text)
            program.chmod(0o755)
        offered = " ".join(f"{name.replace('_', '-')}-jre-headless:{java}" for name, java in offers.items())
        monkeypatch.setenv("OFFERED", offered)
        monkeypatch.setenv("BIN", str(tmp_path / "tools"))
        return subprocess.run(["sh", str(ROOT / "tools" / "java.sh")], capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        ({"openjdk_17": "17.0.15", "openjdk_21": "21.0.1"}, ["openjdk-17"]),
        ({"openjdk_21": "21.0.1", "default": "21.0.1"}, ["openjdk-21"]),
        ({"openjdk_17": "broken", "openjdk_21": "21.0.1"}, ["openjdk-17", "openjdk-21"]),
        ({"default": "25"}, ["default"]),
    ],
)
def test_make_installs_the_first_java_that_there_is_and_that_fits(
    install: Callable[..., subprocess.CompletedProcess[str]], offers: dict[str, str], said: list[str]
) -> None:
    ended = install(**offers)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [f"installing {name}-jre-headless for Spark" for name in said]
    need_java()


@pytest.mark.parametrize("offers", [{}, {"openjdk_11": "11.0.2"}, {"default": "11.0.2"}])
def test_make_says_what_to_do_where_nothing_that_is_offered_fits(
    install: Callable[..., subprocess.CompletedProcess[str]], offers: dict[str, str]
) -> None:
    ended = install(**offers)
    assert ended.returncode == 0
    assert "openjdk-21-jre-headless" in ended.stderr
    assert "JAVA_HOME" in ended.stderr


def test_make_installs_nothing_without_the_right_to(
    install: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    ended = install(user=1000, openjdk_17="17.0.15")
    assert "none was found" in ended.stderr
    assert not (tmp_path / "tools" / "asked").exists()
