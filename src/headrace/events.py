"""What happens to assignments, for those who want to decide themselves (SPEC 44).

    async for event in rooms.events():
        match event:
            case events.Added(room): ...           # this owner has it now: read it, ack it, finish it
            case events.Expired() as expired: ...  # its owner's lease has ended: rooms.claim(expired) may take it
            case events.Disowned(name): ...        # another owner has it now: nothing said from here counts
            case events.Terminated(reason): ...    # no more events: everything unfinished was handed back

Import the module, not its names: `headrace.Added` is what an add answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.room import Room


@dataclass(frozen=True, slots=True)
class Added:
    """This owner has been given an assignment: a new one, or one that somebody handed back."""

    room: Room[Any]

    @property
    def name(self) -> str:
        return self.room.name


@dataclass(frozen=True, slots=True)
class Expired:
    """The lease of an assignment's owner has ended. Told to every listener, once a lease, until somebody claims it."""

    name: str
    info: Any
    owner: str  # who had it
    id: str  # of the announcement
    count: int  # with the id: claimed only if nobody has taken it since


@dataclass(frozen=True, slots=True)
class Disowned:
    """This owner has lost an assignment to another one."""

    name: str
    holder: str  # "": not known


@dataclass(frozen=True, slots=True)
class Terminated:
    """The last event."""

    reason: str


Event = Added | Expired | Disowned | Terminated
