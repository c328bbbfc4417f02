"""The benches can be run, and print what they promise to print. Figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import readme
from bench.__main__ import NAMES, SETS, load, main
from bench.report import Criterion, Report, Run, lowest, markdown, quantile

ROOT = Path(__file__).resolve().parents[1]

KEYS = {
    "worker": "msgs_per_s raw_msgs_per_s ratio commands_per_message cpu_us_per_message rss_mb",
    "claim": "ours_ms xautoclaim_ms ratio",
    "assignments": "takeover_p99_ms renew_cpu_percent order_violations",
    "requeue": "requeued twice live_requeued skipped_alive seconds",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_bench_offers_a_measurement_and_what_it_must_reach(name: str) -> None:
    bench: Any = load(name)
    assert callable(bench.measure)
    assert bench.CRITERIA
    assert bench.report([]).reached  # nothing measured, nothing missed
    assert bench.__doc__


@pytest.mark.parametrize("name", KEYS)
def test_a_tiny_run_prints_one_json_object_with_the_promised_keys(name: str) -> None:
    words = [sys.executable, "-m", "bench", name, "--json", "--server", "embedded", "--scale", "0.001"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for run in [told, *told["runs"]]:
        missing = set(KEYS[name].split()) - run.keys()
        assert not missing
    assert all(verdict["reached"] in (True, False) for verdict in told["criteria"])
    assert {verdict["must"] for verdict in told["criteria"]}
    assert told["bench"] == name


def test_an_unknown_bench_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "worker5ms" in capsys.readouterr().err


def test_a_criterion_judges_the_runs_it_speaks_of() -> None:
    runs = [
        {"server": server, "version": f"server {server}", "size": size, "ratio": ratio}
        for server, size, ratio in (("a", 1, 0.9), ("b", 1, 0.2), ("b", 2, 0.1))
    ]
    criterion = Criterion("ratio", "≥", 0.5, {"size": 1})
    report = Report(
        *("any", "anything", "≥ 0.5", runs, [criterion], ("server", "ratio"), lowest("ratio", size=1)),
        lambda some: f"{some[0]['ratio']:.1f}",
    )
    assert [(verdict["server"], verdict["reached"]) for verdict in report.verdicts] == [("a", True), ("b", False)]
    assert not report.reached
    assert (report.as_json()["server"], report.as_json()["ratio"]) == ("b", 0.2)
    assert "NOT REACHED: server=b size=1 ratio 0.2, must be ≥ 0.5" in report.as_text()
    assert markdown([report]).splitlines() == [
        "| bench | what | must reach | server a | server b |",
        "|---|---|---|---|---|",
        "| `any` | anything | ≥ 0.5 | 0.9 | 0.2 (**not reached**) |",
    ]


def test_the_table_of_a_page_is_written_from_what_was_kept(tmp_path: Path) -> None:
    def judge(name: str, runs: list[Run]) -> Report:
        shown = ("server", "ratio")
        return Report(
            name, "anything", "≥ 0.5", runs, [], shown, lowest("ratio"), lambda some: f"{some[0]['ratio']:.1f}"
        )

    readme.keep(judge("any", [{"server": "a", "version": "server a", "ratio": 0.9}]), tmp_path)
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- bench some -->\nstale\n<!-- /bench some -->\nafter\n")
    readme.write("some", ["any"], judge, page, tmp_path)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == (
        "before",
        "<!-- bench some -->",
        "<!-- /bench some -->",
        "after",
    )
    assert "| `any` | anything | ≥ 0.5 | 0.9 |" in lines
    assert "`python -m bench some --keep`" in lines[2]
    with pytest.raises(LookupError, match="python -m bench other --keep"):
        readme.write("some", ["other"], judge, page, tmp_path)
    with pytest.raises(LookupError, match="no place for the table"):
        readme.write("none", ["any"], judge, page, tmp_path)


def test_the_readme_says_what_the_results_files_say(tmp_path: Path) -> None:
    again = tmp_path / "README.md"
    again.write_text(readme.README.read_text())
    for name, benches in SETS.items():
        readme.write(name, benches, lambda bench, runs: load(bench).report(runs), again)
    assert again.read_text() == readme.README.read_text()


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50.0, 99.0, 7.0)
