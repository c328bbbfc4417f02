"""What the processes of a run wrote into their logs, as far as it is judged: how much at once, and errors of nobody's.

Every process writes lines as `headrace run` does: date, time, level, process, message. The traceback of what a handler
raised stands below the line that says so; a traceback anywhere else is one that nobody expected.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

LINES: Final = "%(asctime)s %(levelname)s %(process)d %(message)s"
_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ ([A-Z]+) (\d+) (?:([a-z]+\.[a-z_]+)\b)?(.*)")
_ABOUT: Final = re.compile(r"\b(?:stream|name)=[^\s:]+")  # a worker of many streams says the same of each
_OUTCRY: Final = re.compile(
    r"never retrieved|never awaited|destroyed but it is pending|Exception in |Exception ignored|Fatal Python error"
)
_TRACE: Final = re.compile(r"\s*(?:\+ Exception Group )?Traceback \(most recent call last\):")
_CHAIN: Final = ("During handling of the above", "The above exception was")
OF_A_MESSAGE: Final = frozenset(
    {
        "message.rescued",
        "message.requeued",
        "message.buried",
        "message.trimmed",
        "delivery.lost",
        "outcome.refused",
        "handler.raised",
        "handler.raised_after_outcome",
    }
)
"""Log events that speak of one message each: as many as there are messages is no flood."""
RAISED: Final = frozenset({"handler.raised", "handler.raised_after_outcome", "owner.failed"})
"""Log events with the traceback of what a handler raised."""


def rates(folder: Path) -> dict[str, float]:
    """Lines by log event, of the process, the stream and the second with most; those of single messages left out."""
    worst: Counter[str] = Counter()
    for log in folder.glob("*.log"):
        told = Counter(
            (found[3], found[1], found[4] or "(no event)", tuple(_ABOUT.findall(found[5])))
            for found in map(_LINE.match, log.read_text(errors="replace").splitlines())
            if found
        )
        for (_, _, name, _), lines in told.items():
            if name not in OF_A_MESSAGE:
                worst[name] = max(worst[name], lines)
    return dict(worst)


def outcries(folder: Path) -> list[str]:
    """What nobody asked for, each as the log's name and a line."""
    return [f"{log.name}: {line}" for log in sorted(folder.glob("*.log")) for line in _outcries_of(log)]


def _outcries_of(log: Path) -> list[str]:
    found: list[str] = []
    event = before = ""  # of the last line of the log; the last line of any kind
    unnamed = False  # the end of a traceback, which says what it was, is to come
    for line in filter(str.strip, log.read_text(errors="replace").splitlines()):
        if told := _LINE.match(line):
            event, unnamed = told[4] or "", False
        if (told and told[2] == "CRITICAL") or _OUTCRY.search(line):
            found.append(line)
        elif _TRACE.match(line) and not (event in RAISED and _belongs_to(before)):
            found.append(f"a traceback after {before}")
            unnamed = True
        elif unnamed and not line.startswith(" "):
            found[-1], unnamed = line, False
        before = line
    return found


def _belongs_to(before: str) -> bool:
    """Whether a traceback after this line goes on with what the log's line began."""
    return _LINE.match(before) is not None or before.strip().startswith(_CHAIN)
