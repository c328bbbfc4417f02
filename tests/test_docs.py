"""The documents say what is true: every test they name exists, and what they import is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = set(re.findall(r"def (test_\w+)", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))))


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "GUARANTEES.md").read_text()))
    assert len(named) > 20
    assert named - TESTS == set()


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
