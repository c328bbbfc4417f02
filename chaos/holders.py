"""Who had a message in hand before it was started, and when its last dead holder left it: what L1 is measured by.

A worker that reads ahead dies with messages that no handler has seen. Workers note what they take (worker.py), so such
a message is timed like one that was started. Where the answer to a read came to nobody, nothing was noted, and only an
attempt that nobody started tells of it: then the last death of anybody is the earliest moment that accuses no one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.history import Event


@dataclass(slots=True)
class Holders:
    died: Mapping[int, float]  # process -> when
    _takes: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _added: dict[str, float] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        if event.op == "add":
            self._added[event.id] = event.at
        else:
            for id_ in event.about["ids"]:
                self._takes[id_].append(event)

    def orphaned_at(self, id_: str, former: Event | None, start: Event, *, ended: bool) -> float | None:
        """When the last dead one that had this message left it, before a start. ``former`` is the start before that,
        ``ended`` whether it came to an end of its own. None: nobody is known to have died with it."""
        since = -math.inf if former is None else former.at
        had = [(take.pid, take.at) for take in self._takes.get(id_, ()) if since <= take.at < start.at]
        burnt = start.attempt - 1 - (0 if former is None else former.attempt)
        if former is not None and not ended:
            had.append((former.pid, former.at))
            burnt += 1
        deaths = {pid: self.died[pid] for pid, at in had if at <= self.died.get(pid, -math.inf) < start.at}
        if not deaths:
            return None
        last = max(deaths.values())
        if burnt > len(deaths):  # somebody had it whose answer came to nobody
            return self.last_death(id_, start) or last
        return last

    def last_death(self, id_: str, start: Event) -> float | None:
        """Of anybody who could have had it: what was added after a death was never in that one's hands."""
        deaths = [at for at in self.died.values() if self._added.get(id_, -math.inf) < at < start.at]
        return max(deaths, default=None)
