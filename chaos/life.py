"""What was noted of one message, in the order it happened."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.support.history import Event

ONWARD: Final = frozenset({"retry", "release"})  # outcomes after which a message goes on


@dataclass(slots=True)
class Life:
    """What happened to one message, from its add or its replay on."""

    starts: list[Event] = field(default_factory=list)
    invoked: list[Event] = field(default_factory=list)
    answered: list[Event] = field(default_factory=list)  # ok, fail or info

    def ok(self, op: str) -> list[Event]:
        return [event for event in self.answered if event.op == op and event.kind == "ok"]

    @property
    def has_effect(self) -> bool:
        """Whether an ack was said that the server did not refuse. An answer that is missing may have been a yes, also
        where the ack was said again and refused then. One delivery can be given twice, where a group was set back: each
        ack has its own answer."""
        said = Counter(_token(event) for event in self.invoked if event.op == "ack")
        refused = [event for event in self.answered if event.op == "ack" and event.kind == "fail"]
        said.subtract(_token(event) for event in refused if not event.about.get("resent"))
        return any(left > 0 for left in said.values())

    @property
    def events(self) -> list[Event]:
        return [*self.starts, *self.invoked, *self.answered]

    def ended_by_itself(self, start: Event, before: float) -> bool:
        """Whether this start came to an outcome of its own that lets the message go on: a retry or a release that was
        said before the next start, and not refused. Its answer may come later than that start; one that was sent twice
        may be refused the second time because it was taken the first."""
        heard = [event for event in self.answered if event.op in ONWARD and same(event, start) and event.at >= start.at]
        asked = [event for event in self.invoked if event.op in ONWARD and same(event, start) and event.at >= start.at]
        said = min((event.at for event in (*asked, *heard)), default=math.inf)
        answer = min(heard, key=lambda event: event.at, default=None)
        refused = answer is not None and answer.kind == "fail" and not answer.about.get("resent")
        return said < before and not refused


def same(one: Event, other: Event) -> bool:
    """Whether two events speak of the same delivery."""
    return _token(one) == _token(other)


def _token(event: Event) -> tuple[str, int]:
    return event.owner, event.attempt
