"""What was noted of one message, in the order it happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.history import Event


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

    def ended_by_itself(self, start: Event) -> bool:
        """Whether this start came to an outcome of its own that lets the message go on: retry or release."""
        return any(
            event.op in ("retry", "release") and event.owner == start.owner and event.at >= start.at
            for event in (*self.invoked, *self.answered)
        )


def same(one: Event, other: Event) -> bool:
    """Whether two events speak of the same delivery."""
    return _token(one) == _token(other)


def _token(event: Event) -> tuple[str, int]:
    return event.owner, event.attempt
