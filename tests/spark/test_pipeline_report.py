"""The report's page: whole, safe to open, and showing what it was given."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from headrace.spark.report import DIFFERS
from headrace.spark.report_page import page

FOUND: dict[str, Any] = {
    "pipeline": "payments",
    "headrace": "0.1.0",
    "made_ms": 1_772_409_600_000,
    "totals": {
        "batches": 2,
        "rows_in": 30,
        "out": 20,
        "duplicates": 7,
        "quarantined": 3,
        "routes": {"review": 4},
        "exact": True,
    },
    "ledger": [
        {"batch": 0, "rows_in": 0, "out": 0, "duplicates": 0, "quarantined": 0, "rows_per_s": 0.0, "seconds": 0.1},
        {"batch": 1, "rows_in": 30, "out": 20, "duplicates": 7, "quarantined": 3, "rows_per_s": 9.5, "seconds": 3.1},
    ],
    "throughput": [{"at_ms": 1_772_409_600_000 + n * 3_600_000, "rows": n * n} for n in range(24)],
    "columns": {"tier": [{"what": "tiny", "rows": 15}, {"what": "huge", "rows": 5}]},
    "quarantine": [{"what": "<script>alert(1)</script>", "rows": 3}],
    "dead_letters": {"count": 2, "ranking": [{"what": "LookupError: no rate", "rows": 2}], "age_ms": {"p50": 12.0}},
    "attempts": {
        "buried": [{"attempts": 5, "rows": 2}],
        "all": [{"attempts": 1, "rows": 28}, {"attempts": 2, "rows": 2}],
    },
    "rescues": {"count": 3, "ms": [900.0, 1100.0, 1500.0], "p50": 1100.0, "p95": 1500.0, "p99": 1500.0},
}


class Outline(HTMLParser):
    """Tags that were opened and not closed, and everything that would be fetched or run."""

    VOID = ("meta", "line", "rect", "polyline", "polygon", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("script", "link", "img", "iframe") or any(name in ("src", "href") for name, _ in attrs):
            self.foreign.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


def outline(found: dict[str, Any]) -> Outline:
    parser = Outline()
    parser.feed(page(found))
    assert parser.open == []
    return parser


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    seen = outline(FOUND)
    assert seen.foreign == []
    assert "&lt;script&gt;" in page(FOUND)
    wanted = {
        "Throughput",
        "Ledger",
        "Speed",
        "Poison ranking",
        "Rescue latency",
        "Attempts of all messages",
        "By tier",
    }
    assert wanted <= set(seen.titles)


def test_books_that_do_not_balance_are_said_so() -> None:
    found = copy.deepcopy(FOUND)
    found["totals"]["exact"] = False
    assert "NOT balanced" in page(found)
    assert "NOT balanced" not in page(FOUND)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_little_or_nothing_to_show_is_no_trouble(rows: int) -> None:
    found = copy.deepcopy(FOUND)
    found["throughput"] = found["throughput"][:rows]
    found["ledger"] = found["ledger"][:rows]
    found["columns"], found["quarantine"] = {}, []
    found["dead_letters"] = {"count": 0, "ranking": [], "age_ms": {}}
    found["attempts"], found["rescues"] = {"buried": [], "all": []}, {"count": 0, "ms": []}
    assert "Rescue latency" not in outline(found).titles


@pytest.mark.parametrize(
    "reason",
    [
        'expected Payment, found b\'\\xff{"id":"pay-001","created":"2026-0',
        'expected Payment, found b\'\\xfe{"id":"pay-1234"}\'',
        'expected Payment, found "17"',
    ],
)
def test_what_differs_from_one_dead_letter_to_the_next_makes_no_row_of_its_own_in_the_ranking(reason: str) -> None:
    assert re.sub(DIFFERS, "…", reason) == "expected Payment, found …"
