"""The judge of owned streams: a pure function, as the checker is for messages. Its invariants have the same names.

S1  every message of a room has come to an end
S3  in order, none skipped: each epoch goes on where an end was said, and nobody's word counts after a later epoch began
S4  one end a message, and none is begun again after it
L2  everything is finished: what is left is said by whoever looked at the server
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.verdict import Breach, Verdict
from tests.support.history import Event


@dataclass(slots=True)
class Room:
    """What was noted of one data stream, in order of time."""

    starts: list[Event] = field(default_factory=list)
    said: list[Event] = field(default_factory=list)
    ended: list[Event] = field(default_factory=list)
    refused: list[Event] = field(default_factory=list)

    def note(self, event: Event) -> None:
        if event.op == "room-start":
            self.starts.append(event)
        elif event.kind == "invoke":
            self.said.append(event)
        elif event.kind == "ok":
            self.ended.append(event)
        else:
            self.refused.append(event)

    @property
    def ends(self) -> list[Event]:
        """Ends that may have counted: every one that was said but those that were refused. An answer that is missing
        may have been a yes."""
        return [said for said in self.said if not any(_same(said, refused) for refused in self.refused)]


def judge(events: Iterable[Event], expected: Mapping[str, int], left: Sequence[str] = ()) -> Verdict:
    """``expected``: how many messages each room has, numbered from 0. ``left``: what is not finished."""
    rooms: defaultdict[str, Room] = defaultdict(Room)
    for event in events:
        if event.op in ("room-start", "room-ack"):
            rooms[event.about["name"]].note(event)
    verdict = Verdict(
        {}, {"messages": sum(expected.values()), "refused": sum(len(room.refused) for room in rooms.values())}
    )
    lost = [f"{name}: {n} has come to no end" for name, most in expected.items() for n in _missing(rooms[name], most)]
    twice = [problem for name, room in rooms.items() for problem in _twice(name, room)]
    wrong = [problem for name, room in rooms.items() for problem in (*_disorder(name, room), *_stale(name, room))]
    verdict.figures |= {"lost": len(lost), "duplicates": len(twice)}
    for invariant, found in {"S1": lost, "S3": wrong, "S4": twice, "L2": left}.items():
        for problem in found:
            verdict.breaches.setdefault(invariant, Breach()).add(problem)
    return verdict


def _missing(room: Room, most: int) -> list[int]:
    return sorted({*range(most)} - {event.about["n"] for event in room.ends})


def _disorder(name: str, room: Room) -> Iterable[str]:
    """Each start follows the one before it; a new epoch begins with the first message whose end was never said, or with
    one whose end was said and not answered, or refused."""
    ends = room.ends
    last: dict[int, int] = {}
    for start in room.starts:
        epoch, n = start.about["epoch"], start.about["n"]
        if epoch in last and n != last[epoch] + 1:
            yield f"{name}: epoch {epoch} went from {last[epoch]} to {n}"
        elif epoch not in last and (n > 0 and not any(e.about["n"] == n - 1 and e.at < start.at for e in ends)):
            yield f"{name}: epoch {epoch} began at {n}, and nobody had said the end of {n - 1}"
        last[epoch] = n


def _stale(name: str, room: Room) -> Iterable[str]:
    """An end that was taken although a later owner had begun before it was said."""
    for end in room.ended:
        since = min(said.at for said in room.said if _same(said, end))
        later = [start for start in room.starts if start.about["epoch"] > end.about["epoch"] and start.at < since]
        if later:
            epochs = f"epoch {end.about['epoch']} was taken after epoch {later[0].about['epoch']} had begun"
            yield f"{name}: the end of {end.about['n']} by {epochs}"


def _twice(name: str, room: Room) -> Iterable[str]:
    ended: dict[int, float] = {}
    for end in room.ended:
        n = end.about["n"]
        if n in ended:
            yield f"{name}: {n} was ended twice"
        ended.setdefault(n, end.at)
    for start in room.starts:
        if ended.get(start.about["n"], start.at) < start.at:
            yield f"{name}: {start.about['n']} was begun again after its end"


def _same(one: Event, other: Event) -> bool:
    return (one.about["epoch"], one.about["n"]) == (other.about["epoch"], other.about["n"])
