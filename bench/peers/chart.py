"""A bar for each peer, drawn by hand as SVG: messages a second with an empty handler."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from bench.peers.roster import OURS
from bench.report import Run

WIDTH: Final = 720
LEFT: Final = 150
RIGHT: Final = 170
ROW: Final = 30
TOP: Final = 44
_COLOURS: Final = {"ours": "#0b7285", "streams": "#74a9b5", "others": "#b9c0c4"}


def draw(runs: Sequence[Run]) -> str:
    """The longest bar is the quickest; beside the others stands how many times as many Headrace does."""
    measured = sorted((run for run in runs if "msgs_per_s" in run), key=lambda run: -run["msgs_per_s"])
    most = max((run["msgs_per_s"] for run in measured), default=1)
    bars = [_bar(run, TOP + at * ROW, run["msgs_per_s"] / most) for at, run in enumerate(measured)]
    height = TOP + len(bars) * ROW + 34
    return "\n".join([_open(height), *bars, _legend(height - 12), "</svg>", ""])


def _open(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        '<text x="12" y="24" font-size="15" font-weight="600" fill="#1b1f23">'
        "Messages a second, one worker process, empty handler, 32 slots</text>"
    )


def _bar(run: Run, y: int, share: float) -> str:
    ours = run["peer"] == OURS.name
    colour = _COLOURS["ours" if ours else run["on"] if run["on"] in _COLOURS else "others"]
    length = max(1.0, share * (WIDTH - LEFT - RIGHT))
    times = f" · Headrace {run['headrace_is_times']:.0f} ×" if "headrace_is_times" in run else ""
    weight = ' font-weight="600"' if ours else ""
    return (
        f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="#1b1f23"{weight}>{escape(run["peer"])}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="20" fill="{colour}"/>'
        f'<text x="{LEFT + length + 8:.1f}" y="{y + 15}" fill="#444c56"{weight}>{run["msgs_per_s"]:,}{times}</text>'
    )


def _legend(y: int) -> str:
    words = {"streams": "on Redis Streams", "others": "on lists or a sorted set"}
    marks = []
    for at, (kind, text) in enumerate(words.items()):
        x = LEFT + at * 170
        marks.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{_COLOURS[kind]}"/>')
        marks.append(f'<text x="{x + 17}" y="{y}" font-size="12" fill="#444c56">{text}</text>')
    return "".join(marks)
