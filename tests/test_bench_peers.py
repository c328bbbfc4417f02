"""The comparison with other libraries can be run and told. No figures are tested, and nothing is installed here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.arena import Arena, arena
from bench.peers import chart, faults, findings, page, program, rate, roster, venvs
from bench.peers.roster import OURS, Peer

ROOT = Path(__file__).resolve().parents[1]
FOUND: dict[str, Any] = {
    "date": "2026-11-16",
    "machine": {"cores": 2, "system": "Linux", "python": "3.11"},
    "runs": [
        {
            "server": "redis8",
            "version": "redis 8.10",
            "peer": name,
            "peer_version": "1",
            "on": on,
            "errors": [],
            "msgs_per_s": speed,
            "all_msgs_per_s": [speed],
            "others_cores": 1.2,
            "default_late_s": "> 60",
            "fastest_late_s": 1.5,
            "async": "",
            "async_tally": {"messages": 4, "executions": runs, "ended": 4},
        }
        for name, on, speed, runs in (("Headrace", "streams", 30_000, 4), ("A <b>", "streams", 1_500, 12))
    ],
}


@pytest.fixture
def server() -> Iterator[Arena]:
    with arena("embedded") as one:
        yield one


@pytest.mark.long
def test_the_program_measures_headrace_and_prints_one_json_object() -> None:
    words = ["peers", "--only=headrace", "--part=rates", "--rounds=1", "--seconds=0.05", "--server=embedded", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["errors"] == []
    for kind in findings.KINDS.values():
        assert run[f"{kind}msgs_per_s"] > 0
        assert run[f"{kind}cpu_us_per_message"] > 0
        assert run[f"{kind}requests_per_message"] > 0


def test_what_a_killed_worker_held_starts_on_the_other_and_is_timed(server: Arena) -> None:
    found = faults.recovery(OURS, server, fastest=True, wait_s=20)
    assert found["came_back"] == found["held"] >= 1
    assert found["late_s"] > 0


def test_live_slow_handlers_are_counted(server: Arena) -> None:
    found = faults.live(OURS, server, "sync")
    assert found is not None
    assert (found["messages"], found["executions"], found["ended"]) == (faults.MESSAGES,) * 3


def test_a_peer_that_is_installed_here_runs_in_its_own_environment(server: Arena) -> None:
    peer = next((peer for peer in roster.PEERS if venvs.at_hand(peer) and peer.slots > 1), None)
    if peer is None:
        pytest.skip("no peer is installed: `python -m bench peers` does that")
    assert venvs.at_hand(peer) != Path(sys.executable)
    assert rate.measure(peer, server, "empty", 100)["msgs_per_s"] > 0


def test_a_peer_in_trouble_is_told_in_its_row_and_stops_nobody() -> None:
    broken = Peer("Broken", "broken", (), "lists", 1)  # has no adapter
    plan = findings.Plan(parts=("rates",), rounds=1, seconds=0.01)
    runs = {run["peer"]: run for run in findings.measure([broken, OURS], plan, lambda line: None, "embedded")}
    assert any("bench.peers.adapters.broken" in why for why in runs["Broken"]["errors"])
    assert "Broken: rate of empty handlers" in page.tables(list(runs.values()))
    assert runs[OURS.name]["msgs_per_s"] > 0


def test_every_peer_is_pinned_and_says_how_it_is_set_up() -> None:
    for peer in roster.PEERS:
        assert peer.pins
        assert all("==" in pin and "/" not in pin for pin in peer.pins)
    assert all("Fastest recovery:" in peer.about for peer in roster.EVERYBODY)
    with pytest.raises(SystemExit):
        program.main(["--only", "nobody"])


def test_the_page_keeps_what_stands_around_the_findings(tmp_path: Path) -> None:
    runs = {run["peer"]: dict(run) for run in FOUND["runs"]}
    findings._compare(runs)
    told = {**FOUND, "runs": list(runs.values())}
    document, picture, source = tmp_path / "peers.md", tmp_path / "peers.svg", tmp_path / "found.json"
    source.write_text(json.dumps(told))
    document.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    for _ in range(2):
        assert program.main([f"--from={source}", f"--write={document}", f"--chart={picture}"]) == 0
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("20 times what A <b>") == 1
    assert "| **12 for 4** |" in text
    assert "(peers.svg)" in text
    assert "not quiet: other things took up to 1.2 cores" in text
    assert "Headrace 20 ×" in "".join(ET.parse(picture).getroot().itertext())
    document.write_text("nothing")
    with pytest.raises(ValueError, match="no place for the findings"):
        page.write(document, told, None)


def test_rounds_are_compared_with_themselves_also_where_one_failed() -> None:
    ours = {"peer": OURS.name, "on": "streams", "msgs_per_s": 900, "all_msgs_per_s": [900, 1_000, 300]}
    rival = {"peer": "A", "on": "streams", "msgs_per_s": 20, "all_msgs_per_s": [None, 25, 15]}
    never = {"peer": "B", "on": "streams", "msgs_per_s": 30, "all_msgs_per_s": [None, None, None]}
    findings._compare({OURS.name: ours, "A": rival, "B": never})
    assert rival["headrace_is_times"] == 30
    assert "headrace_is_times" not in never
    assert (ours["best_on_streams"], ours["ratio"]) == ("A", 30)


def test_a_round_that_failed_is_told_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([{"msgs_per_s": 5}, {"msgs_per_s": 7}, None, {"msgs_per_s": 8}, {"msgs_per_s": 6}, {"msgs_per_s": 9}])

    def measure(*_: object) -> dict[str, int]:
        if found := next(rates):
            return found
        raise findings.Trouble("no worker")

    monkeypatch.setattr(rate, "probe", lambda *_: 1)
    monkeypatch.setattr(rate, "measure", measure)
    runs: dict[str, Any] = {OURS.name: {"peer": OURS.name, "errors": []}}
    findings._rates([OURS], runs, findings.Plan(rounds=3), lambda line: None, "embedded")
    assert runs[OURS.name]["all_msgs_per_s"] == [5, None, 6]
    assert runs[OURS.name]["pause_all_msgs_per_s"] == [7, 8, 9]


def test_the_ratio_by_rounds_and_the_one_by_medians_are_told_apart() -> None:
    ours = {"peer": "Headrace", "on": "streams", "msgs_per_s": 90, "ratio": 21.9, "best_on_streams": "A"}
    rivals = [{"peer": name, "on": "streams", "msgs_per_s": speed} for name, speed in (("A", 3), ("B", 4))]
    text = page._verdict(ours, [ours, *rivals, {"peer": "C", "on": "lists", "msgs_per_s": 5}])
    assert "21.9 times what A does, the closest of the peers on Redis Streams where round is compared with" in text
    assert "By the medians of the table B is the closest of them: 22.5 times." in text


def test_the_page_of_the_peers_is_what_the_results_file_says(tmp_path: Path) -> None:
    """Nothing between its markers is written by hand, and the chart is drawn from the same runs."""
    document, told = tmp_path / "peers.md", json.loads((ROOT / "bench/results/peers.json").read_text())
    document.write_text((ROOT / "docs/peers.md").read_text())
    page.write(document, told, "peers.svg")
    assert document.read_text() == (ROOT / "docs/peers.md").read_text()
    assert chart.draw(told["runs"]) == (ROOT / "docs/peers.svg").read_text()


def test_the_chart_and_the_criterion_need_no_complete_run() -> None:
    assert ET.fromstring(chart.draw([])).tag.endswith("svg")
    assert findings.report([]).reached
