"""The documents say what is true: every test they name exists, and what they import is there."""

import re
from pathlib import Path

from chaos import promises, table
from chaos.outcomes import FILE, Outcomes
from chaos.page import Proof, proofs

ROOT = Path(__file__).resolve().parent.parent


def test_every_promise_has_a_proof_that_ran_and_passed() -> None:
    """A test that was never run, or failed where it ran last, proves nothing."""
    told, ended = promises.load(), Outcomes.load()
    without = {
        f"{promise.says[:60]}: {proof.text}: {proof.wrong}"
        for promise in told.all()
        for proof in proofs(promise, ended) or [Proof("nothing", wrong="no proof")]
        if proof.wrong or not proof.days
    }
    assert len(told.wanted()) > 100
    assert without == set(), f"python -m pytest -k NAME --outcomes={FILE.relative_to(ROOT)} && python -m chaos table"


def test_everything_that_the_guarantees_lead_to_is_there() -> None:
    led = set(re.findall(r"\]\(([^)#]+)[^)]*\)", table.GUARANTEES.read_text()))
    assert {test.partition("::")[0] for test in promises.load().wanted() if "conformance" not in test} <= led
    assert [path for path in sorted(led) if not (ROOT / path).exists()] == []


def test_every_file_that_the_decisions_name_exists() -> None:
    for page in sorted((ROOT / "docs" / "adr").glob("*.md")):
        assert len(page.read_text().splitlines()) <= 60, f"{page.name}: an ADR has at most 60 lines"
        for named in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text()):
            assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_every_line_that_is_cited_stands_in_the_specification() -> None:
    lines = set(re.findall(r"^(\d+\w?)\. ", (ROOT / "docs" / "spec.md").read_text(), re.M))
    assert len(lines) > 60
    for folder in ("src", "tests", "docs", "chaos", "bench"):
        for page in (path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".lua")):
            for cited in re.findall(r"SPEC (\d+\w?(?:(?:,| to| and) \d+\w?\b)*)", page.read_text()):
                numbers = set(re.findall(r"\d+[a-z]?", cited))
                assert numbers <= lines, f"{page.name} cites SPEC {cited}"


def test_the_public_door_exports_what_the_readme_imports() -> None:
    import headrace

    for names in re.findall(r"^from headrace import (.+)$", (ROOT / "README.md").read_text(), re.M):
        for name in names.split(", "):
            assert name in headrace.__all__


def test_the_public_door_exports_exactly_what_it_says() -> None:
    import headrace

    assert sorted(headrace.__all__) == headrace.__all__
    assert all(hasattr(headrace, name) for name in headrace.__all__)
