"""What was done to whom, and when: read from the history, for the judge to excuse by.

An excuse is as narrow as the fault: these processes, or what this stream's server said, from when it was noted (or so
much before as a server may forget) until it was healed and a little longer.
"""

from __future__ import annotations

import math
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.history import Event

HELD_S: Final = 0.5  # after a server forgot: what an owner had read before, and starts now, nobody knows of
SHAKEN_S: Final = 0.5  # beyond a lease: so long after it was healed a fault is still felt
SHAKEN_MOST_S: Final = 3.0  # also where leases are long
FAILING_S: Final = 3.0  # one that fails for good renews no more: so long before its end, its grace and its last words


@dataclass(slots=True)
class Span:
    """A time in which somebody was hurt. ``stream``: of a cluster, whose shard it was. ``forgets``: what the server
    said in it need not count, and ``since`` is when the oldest of that was said."""

    since: float
    until: float = math.inf
    stream: str = ""
    forgets: bool = False


@dataclass(slots=True)
class Harm:
    lease_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)  # by what happened
    died: dict[int, float] = field(default_factory=dict)  # process -> when, of those that did not end in peace
    ended: dict[int, float] = field(default_factory=dict)  # process -> when, of all
    told: set[int] = field(default_factory=set)  # processes that were told to end (SIGTERM)
    at_work: set[int] = field(default_factory=set)  # processes that have taken messages
    unasked: dict[int, str] = field(default_factory=dict)  # process -> its code and last word, if nobody wanted its end
    trimmed: set[str] = field(default_factory=set)
    trimmed_held: set[str] = field(default_factory=set)
    spans: list[Span] = field(default_factory=list)  # of servers
    stood: list[tuple[float, float]] = field(default_factory=list)  # (until, seconds): nobody could run (witness.py)
    interfered: int = 0  # faults that found their server in the hands of another
    lost_bytes: int = 0  # written and not synced when the power went
    _excused: defaultdict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    _touched: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def note(self, event: Event) -> None:
        about = event.about
        if event.op == "fault":
            self._note_fault(event)
        elif event.op == "told":
            self.told.add(about["pid"])
        elif event.op == "took":
            self.at_work.add(event.pid)
        elif event.op == "died":
            self._note_end(event)
        elif event.op == "trim":
            self.trimmed.update(about["ids"])
            self.trimmed_held.update(about["held"])
        elif event.op == "stood":
            self.stood.append((event.at, about["seconds"]))
        elif event.op == "interfered":
            self.interfered += 1
        elif event.op == "power":
            self.lost_bytes += about["lost_bytes"]

    def _note_fault(self, event: Event) -> None:
        about = event.about
        if event.kind == "invoke":
            self._begin(event.at, about)
        elif event.kind == "ok":
            self._heal(event.at, about)
        else:  # it did not come to it
            self.faults[about["what"]] -= 1

    def _begin(self, at: float, about: dict[str, Any]) -> None:
        self.faults[about["what"]] += 1
        for pid in about.get("pids", ()):
            self._touched[pid].append(at)
            if about.get("excuses"):
                self._excused[pid].append(Span(at))
            if about["what"] == "kill":
                self.died[pid] = at
        if "stream" in about or about.get("forgets"):
            since = at - about.get("before_s", 0.0)
            self.spans.append(Span(since, stream=about.get("stream", ""), forgets=bool(about.get("forgets"))))

    def _heal(self, at: float, about: dict[str, Any]) -> None:
        for pid in about.get("pids", ()):
            self._touched[pid].append(at)
            for span in self._excused[pid]:
                span.until = min(span.until, at)
        if not about.get("pids"):
            for span in self.spans:
                span.until = min(span.until, at)  # one at a time: all before it have ended

    def _note_end(self, event: Event) -> None:
        pid, code = event.about["pid"], event.about["code"]
        self.ended.setdefault(pid, event.at)
        if pid in self.told and (code == 0 or (code == -signal.SIGTERM and pid not in self.at_work)):
            return  # in peace; one that has only just been started dies of the word
        if pid not in self.died and event.pid != pid:  # it would say itself that it is to be killed
            self.unasked[pid] = f"{code}: {event.about.get('word', '')}"
        if code != 0:
            self.died.setdefault(pid, event.at)

    # ── excuses ──

    @property
    def shaken_s(self) -> float:
        """So long after it was healed a process may still begin, or lose, what it had before; and one that ends so soon
        may not have reached the server to take leave."""
        return min(SHAKEN_MOST_S, self.lease_s + SHAKEN_S)

    @property
    def orphaned(self) -> int:
        """How many processes left what they had read to others: by death, else by standing still beyond their lease."""
        return len(self.died) or sum(bool(spans) for spans in self._excused.values())

    def excuses(self, pid: int, since: float, until: float) -> bool:
        """Whether a process may have lost what it held in this time, or have begun late what it had read."""
        failed = self.died.get(pid, math.inf) - (FAILING_S if pid in self.unasked else 0.0)
        if failed <= until:
            return True
        return any(span.since <= until and since <= span.until + self.shaken_s for span in self._excused.get(pid, ()))

    def is_dead(self, pid: int, at: float) -> bool:
        return self.died.get(pid, math.inf) <= at

    def nobody_could_run(self, since: float, until: float, least_s: float) -> bool:
        """Whether the machine, or the stage, stood still for so long in this time."""
        return any(seconds >= least_s and at - seconds <= until and since <= at for at, seconds in self.stood)

    def left_in_trouble(self, pid: int) -> bool:
        """Whether a process ended so soon after a fault, its own or the server's, that its name may be left for the
        janitor."""
        end = self.ended.get(pid, math.inf)
        if pid in self.died or any(span.since <= end <= span.until + self.shaken_s for span in self.spans):
            return True
        return any(0.0 <= end - at <= self.shaken_s for at in self._touched.get(pid, ()))

    @property
    def forgets(self) -> bool:
        return any(span.forgets for span in self.spans)

    def forgot(self, stream: str, times: Iterable[float]) -> bool:
        """Whether the server of this stream may have forgotten what it said at one of these times. "": there is one."""
        spans = [span for span in self.spans if span.forgets and (not stream or span.stream in ("", stream))]
        return any(span.since <= at <= span.until + HELD_S for at in times for span in spans)
