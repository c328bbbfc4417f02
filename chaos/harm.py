"""What was done to whom, and when: read from the history, for the judge to excuse by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.support.history import Event

FORGOT_S: Final = 2.0  # before and after a failover: what was on its way, and what an owner held that nobody knows of


@dataclass(slots=True)
class Span:
    """A time in which a server was hurt. ``stream``: of a cluster, whose shard it was."""

    since: float
    until: float = math.inf
    stream: str = ""
    forgets: bool = False


@dataclass(slots=True)
class Harm:
    faults: Counter[str] = field(default_factory=Counter)  # by what happened
    died: dict[int, float] = field(default_factory=dict)  # process -> when
    excused: set[int] = field(default_factory=set)  # processes that may lose what they hold
    touched: set[int] = field(default_factory=set)  # suffered a fault of any kind
    trimmed: set[str] = field(default_factory=set)
    trimmed_held: set[str] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)

    def note(self, event: Event) -> None:
        about = event.about
        if event.op == "fault" and event.kind == "invoke":
            self._note_fault(event)
        elif event.op == "fault" and event.kind == "ok":
            for span in self.spans:
                span.until = min(span.until, event.at)  # one at a time: all before it have ended
        elif event.op == "died" and about["code"] != 0:
            self.died.setdefault(about["pid"], event.at)
            self.excused.add(about["pid"])
        elif event.op == "trim":
            self.trimmed.update(about["ids"])
            self.trimmed_held.update(about["held"])

    def _note_fault(self, event: Event) -> None:
        about = event.about
        pids = about.get("pids", ())
        self.faults[about["what"]] += 1
        self.touched.update(pids)
        if about.get("excuses"):
            self.excused.update(pids)
        if about["what"] == "kill":
            self.died.update(dict.fromkeys(pids, event.at))
        if "stream" in about or about.get("forgets"):
            self.spans.append(Span(event.at, stream=about.get("stream", ""), forgets=bool(about.get("forgets"))))

    @property
    def forgets(self) -> bool:
        return any(span.forgets for span in self.spans)

    def forgot(self, times: Iterable[float]) -> bool:
        """Whether the server may have forgotten what it said at one of these times."""
        spans = [(span.since - FORGOT_S, span.until + FORGOT_S) for span in self.spans if span.forgets]
        return any(since <= at <= until for at in times for since, until in spans)

    def last_death(self, before: float) -> float:
        return max((at for at in self.died.values() if at < before), default=-math.inf)
