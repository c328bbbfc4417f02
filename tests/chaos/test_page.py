"""GUARANTEES.md is made of data: promises, how their tests ended, which code was tried, and what broke."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos import broken, long, page, table, versions
from chaos.outcomes import Outcomes
from chaos.promises import Promise, Promises, Section, load, meant_by
from tests.support.digest import digest
from tests.support.outcomes import plain

ROOT = Path(__file__).resolve().parents[2]
PROVEN = "test_a_key_always_goes_to_the_same_partition_and_others_can_compute_it"
FILE = "tests/unit/test_partitions.py"
LINK = f"[a key always goes to the same partition and others can compute it]({FILE})"
TEST = f"{FILE}::{PROVEN}"
RUN = "2026-01-02 1a2b3c4d5e"
ABOUT = {"python": "3.11", "servers": {"redis8": "8.10.2", "redis6": "6.2.14", "valkey9": "MISSING"}}


def _page(outcomes: Outcomes, *tests: str) -> str:
    told = Promises("# Head", (Section("Keys", "Words.", (Promise("A key stays.", tests),)),))
    return page.render(told, outcomes, "")


def _ended(found: dict[tuple[str, str], bool], run: str = RUN) -> Outcomes:
    outcomes = Outcomes()
    outcomes.add(run, ABOUT, found)
    return outcomes


def test_a_promise_names_its_tests_the_servers_they_passed_on_and_the_day() -> None:
    text = _page(_ended({(TEST, "redis8"): True}), PROVEN)
    assert f"| A key stays. | {LINK}: 8.10 | 2026-01-02 |" in text
    assert "All 1 tests behind the promises have passed (2026-01-02, code 1a2b3c4d5e)" in text
    assert f"{LINK}: all |" in _page(_ended({(TEST, "redis8"): True, (TEST, "redis6"): True}), PROVEN)
    assert f"{LINK} | 2026-01-02 |" in _page(_ended({(TEST, ""): True}), PROVEN)


def test_a_promise_without_a_run_that_passed_is_called_that() -> None:
    assert f"| {LINK} **not run** | **not run** |" in _page(Outcomes(), PROVEN)
    assert "**there is no such test**" in _page(Outcomes(), "test_nobody_wrote")
    failed = _ended({(TEST, "redis8"): False, (TEST, "redis6"): True})
    assert f"{LINK}: 6.2 **failed on redis8**" in _page(failed, PROVEN)
    assert "**no proof**" in _page(Outcomes())
    many = len(meant_by(FILE))
    assert f"(0 of {many} tests) **not run**" in _page(Outcomes(), FILE)
    assert f"(1 of {many} tests) | 2026" in _page(_ended({(TEST, ""): True}), FILE)


def test_what_a_run_did_not_play_keeps_its_own_date_and_the_newest_says_how_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "promises.json"
    outcomes = _ended({(TEST, "redis8"): True, (TEST, "redis6"): True, ("gone", ""): True})
    outcomes.add("2026-01-03 1a2b3c4d5e", ABOUT, {(TEST, "redis8"): False})
    outcomes.keep({TEST})
    outcomes.write(file)
    kept = Outcomes.load(file)
    assert kept.passed == {TEST: {"redis6": RUN}}
    assert kept.failed == {TEST: {"redis8": "2026-01-03 1a2b3c4d5e"}}
    kept.add("2026-01-04 1a2b3c4d5e", ABOUT, {(TEST, "redis8"): True, (TEST, "redis6"): True})
    kept.keep({TEST})
    assert kept.failed == {}
    assert set(kept.runs) == {"2026-01-04 1a2b3c4d5e"}


def test_a_failure_that_names_no_server_is_over_when_the_test_passes_on_one() -> None:
    """A process of xdist that dies takes the server's name with it."""
    outcomes = _ended({(TEST, ""): False})
    outcomes.add(RUN, ABOUT, {(TEST, "redis8"): True})
    assert (outcomes.passed, outcomes.failed) == ({TEST: {"redis8": RUN}}, {})


@pytest.mark.parametrize("processes", ["0", "2"])
def test_outcomes_are_noted_by_one_process_and_by_several(tmp_path: Path, processes: str) -> None:
    file = tmp_path / "promises.json"
    words = ["-q", "-n", processes, "--servers=redis8", f"--outcomes={file}", TEST]
    words.append("tests/conformance/test_lua_fence.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    kept = Outcomes.load(file)
    assert kept.passed[TEST].keys() == {""}
    assert {*map(tuple, kept.passed.values())} == {("",), ("redis8",)}
    assert [run.split()[1] for run in kept.runs] == [digest()]


def test_a_test_is_known_without_its_parameters_its_class_and_its_group() -> None:
    assert plain("tests/a.py::test_b[redis8-x::y]@group") == "tests/a.py::test_b"
    assert plain("tests/a.py::TestC::test_b@group") == "tests/a.py::test_b"


def test_a_word_that_promises_do_not_know_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "promises.toml"
    source.write_text('head = ""\n[[section]]\ntitle = "a"\n[[section.promise]]\nsays = "b"\nproof = ["c"]\n')
    with pytest.raises(LookupError, match="no such word: proof; there are says, tests, benches"):
        load(source)


def test_a_digest_is_that_of_paths_and_contents_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    before = digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    assert digest(tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    moved = digest(tmp_path)
    (tmp_path / "b.py").write_text("two")
    assert len({before, moved, digest(tmp_path)}) == 3


def _told(name: str, **figures: Any) -> dict[str, Any]:
    about = {"row": 2, "name": name, "seed": 1, "version": "redis 8.10.2", "topology": "single", "lease_s": 1.0}
    more = {"date": "2026-01-02T03:04:05", "machine": "2 cores", "durability": "received", "fsync": "no"}
    return {**about, **more, "skipped": "", "holds": True, "breaches": {}, "messages": 1, **figures}


def test_runs_of_other_code_are_named() -> None:
    runs = [_told("kill", row=1), _told("pause", row=3, code="0a"), *[_told("cut", row=13, code="1b")] * 2]
    assert "- code 1b: 2 runs; code 0a: 1 run (3 pause); code before digests: 1 run (1 kill)" in table.text(runs)


def test_points_that_nobody_came_to_and_losses_that_a_fault_excused_are_shown_where_they_were_counted() -> None:
    plain_text = table.text([_told("crash-points", cases=4, reached=3)])
    assert "- killed at a crash point: in 3 of 4 cases\n" in plain_text
    assert "| excused |" not in plain_text
    more = table.text([_told("crash-points", cases=4, reached=3, missed=["reader.answered 3"], excused=7)])
    assert "in 3 of 4 cases; nobody came to reader.answered 3\n" in more
    assert "| excused |" in more
    assert "| `crash-points` | - | - | - | - | 7 |" in more


def test_mutants_and_kept_runs_are_shown_with_the_invariants_they_broke(tmp_path: Path) -> None:
    assert broken.text(tmp_path) == ""
    mutant = {"name": "no-renewal", "mistake": "leases that nobody renews", "scenario": "slow", "server": "redis8"}
    mutants = [{**mutant, "seed": 1, "caught_by": caught} for caught in (["S5"], [])]
    (tmp_path / broken.MUTANTS).write_text(
        json.dumps({"date": "2026-01-02", "servers": {"redis8": "8.10.2"}, "mutants": mutants})
    )
    (tmp_path / "before-fixes").mkdir()
    run = _told("cut", what="a cut", breaches={"S8": {"count": 2, "examples": ["one", "two"]}})
    (tmp_path / "before-fixes" / "02-cut.json").write_text(json.dumps(run))
    text = broken.text(tmp_path)
    assert "; 2026-01-02, redis 8.10.2): it caught 1 of 2." in text
    assert "| leases that nobody renews | `no-renewal` | `slow` on redis8 | S5 |" in text
    assert "| **not caught** |" in text
    assert "- S5: tries within the limit" in text
    assert "S8 (2: one) | became a fix (`chaos/results/before-fixes`) |" in text
    assert table.load(tmp_path) == []


def test_the_last_long_run_on_a_server_is_told_with_its_code(tmp_path: Path) -> None:
    about = {"minutes": 30.0, "version": "redis 8.10.2", "server": "redis8", "messages": 9, "faults": 2}
    more = {"rise": {"rss_mb": 0.1}, "growing": [], "flat": True}
    (tmp_path / "long").mkdir()
    for day, extra in (("01", {}), ("02", {"code": "1b", "lost": 0, "duplicates": 0, "breaches": {}})):
        told = {**about, **more, "date": f"2026-01-{day}T00:00:00", **extra}
        (tmp_path / "long" / f"{day}.json").write_text(json.dumps(told))
    (line,) = long.sentences(tmp_path)
    assert "2026-01-02, code 1b: 9 messages, 2 faults, 0 lost, 0 done twice; flat" in line


def test_servers_are_called_short_and_in_order() -> None:
    names = ["valkey 9.1.2", "redis 8.10.2", "redis 6.2.14"]
    assert versions.joined(names) == "6.2, 8.10, V9.1"
    assert versions.joined(names, names) == "all"
    assert versions.joined(names[:1], names[:1]) == "V9.1"
