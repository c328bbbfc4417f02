"""What the checker is given: what a scenario promises, what was noted while it ran, and what was left at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.support.history import Event

Level = Literal["received", "disk", "replicated"]


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold under the faults of a scenario. Every field that weakens it names why.

    ``keeps``       False: the server may forget what it has answered (power loss), so work may be done again and only
                    adds confirmed at ``level`` must survive; where faults note when it forgets, only what was touched
                    then is excused
    ``robs``        True: a live owner may lose its message (the server's clock was set forward, a partition)
    ``burns``       how many attempts a death may spend without a start that was noted: one under the supervisor, if the
                    process is killed between the mark of a start and the handler's first line; any number without it,
                    because a plain worker that dies had read ahead
    ``rescue_s``    L1: how long after a death its messages are started again; None: not measured
    """

    level: Level = "received"
    keeps: bool = True
    robs: bool = False
    burns: float = 0
    rescue_s: float | None = None
    max_attempts: int = 20
    ends: tuple[str, ...] = ()  # workers may end by themselves with one of these errors as their last word
    drain_s: float = 60.0
    trims: bool = False  # S8 is judged: messages are trimmed, and nobody dies with a count in hand


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, with the id and the payload of the message it was."""

    original_id: str
    payload: bytes


@dataclass(slots=True)
class Left:
    """What was found after healing, draining and stopping."""

    drained: bool = True
    drain_s: float = 0.0
    ids: set[str] = field(default_factory=set)  # entries of the stream
    pending: dict[str, str] = field(default_factory=dict)  # id -> owner
    waiting: set[str] = field(default_factory=set)
    letters: list[Letter] = field(default_factory=list)
    sink: list[tuple[str, int]] = field(default_factory=list)  # (id, attempt)
    keys: set[str] = field(default_factory=set)  # keys that nobody should have left
    owners: set[str] = field(default_factory=set)
    clients: list[str] = field(default_factory=list)  # names of connections still open
    stuck: list[str] = field(default_factory=list)  # processes that did not end when they were told to
    connections: Mapping[str, int] = field(default_factory=dict)  # of each worker at rest: see Stage
    idle_commands_per_s: float = 0.0  # of each worker, with nothing to do
    log_lines_per_s: Mapping[str, float] = field(default_factory=dict)  # by log event, of the worst process and second
    outcries: list[str] = field(default_factory=list)  # what a log says that nobody asked for: see worklogs
    secrets: list[str] = field(default_factory=list)  # where the canary was found


@dataclass(frozen=True, slots=True)
class Facts:
    """One run."""

    promise: Promise
    events: Sequence[Event]
    left: Left
    poison: Mapping[int, bytes] = field(default_factory=dict)  # number -> payload of what must be buried
    mortal: frozenset[int] = frozenset()  # numbers of what may be buried
    lease_s: float = 0.0
    begun: float = 0.0
    ended: float = 0.0  # of the traffic; draining comes after
    unhappened: Sequence[str] = ()  # faults of the schedule of which not one took place
