"""`make audit` answers from what is known here, and says so when it could not ask anybody else."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headrace.doctor.cves import CVES
from tools import audit

ROOT = Path(__file__).resolve().parents[2]


def _answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> list[str]:
    asked: list[str] = []

    def run(words: list[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:  # noqa: A002
        asked.append(input)
        return subprocess.CompletedProcess(words, code, out, err)

    monkeypatch.setattr(audit.subprocess, "run", run)
    return asked


def test_no_version_with_a_known_hole_is_let_in() -> None:
    """The least versions of pyproject.toml are at or above the first ones without each hole."""
    assert audit.too_low(audit.requirements()) == []
    assert audit.too_low({"redis": "4.5.4"}) != []


def test_every_floor_is_told_in_the_security_page() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    for name, (floor, what) in audit.FLOORS.items():
        assert f"`{name}` {floor}" in page
        assert what.partition(",")[0].partition(":")[0] in page


def test_every_installed_dependency_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answer(monkeypatch, 0)
    assert audit.main() == audit.OK
    assert "redis==" in asked[0]
    assert "msgspec==" in asked[0]


def test_what_the_dependencies_pull_in_is_asked_about_and_what_is_not_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hole in what nobody named is one all the same."""
    needs = {"redis": ["pulled[deep]>=1", "never; python_version < '3'"], "pulled": ["deeper; extra == 'deep'"]}
    versions = {"redis": "9.0", "pulled": "1.2"}

    def installed(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(audit.metadata, "requires", lambda name: needs.get(name))
    monkeypatch.setattr(audit.metadata, "version", installed)
    asked = _answer(monkeypatch, 0)
    audit.main()
    assert asked == ["pulled==1.2\nredis==9.0\n"]
    assert "never" not in audit.whole()
    said = capsys.readouterr().out
    assert "not asked about, because not installed here: " in said
    assert "deeper" in said
    assert "Spark's jars" in said


@pytest.mark.parametrize(
    ("code", "out", "err", "ends", "said"),
    [
        (1, "Found 1 known vulnerability in 1 package", "", audit.HOLES, "known vulnerability"),
        (1, "", "No module named pip_audit", audit.NOT_DONE, "pip install pip-audit"),
        (1, "", "ConnectionError: no route to host", audit.NOT_DONE, "NOT DONE"),
        (2, "", "", audit.NOT_DONE, "NOT DONE"),
    ],
)
def test_an_audit_that_did_not_happen_is_no_clean_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    out: str,
    err: str,
    ends: int,
    said: str,
) -> None:
    _answer(monkeypatch, code, out, err)
    assert audit.main() == ends != 0
    assert said in capsys.readouterr().err


def test_an_index_that_does_not_answer_ends_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("pip-audit", 1)

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == audit.NOT_DONE


def test_the_list_of_server_holes_is_whole() -> None:
    """SPEC 58: each names at least one version to go to, and no line twice."""
    for cve in CVES:
        assert cve.redis or cve.valkey, cve.id
        for lines in (cve.redis, cve.valkey):
            assert len({version[:2] for version in lines}) == len(lines), cve.id
