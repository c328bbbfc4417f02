"""What a GoClient tells: the Go client's four notifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Added:
    """A data stream is mine now: read it, and call done_stream() when it is finished."""

    stream: str
    info: Mapping[str, Any] = field(default_factory=dict)  # what was announced with it
    id: str = ""  # of the entry in the load balancer stream
    attempt: int = 1  # how often it was handed out: 1 + the retries it carries


@dataclass(frozen=True, slots=True)
class Expired:
    """The lock of a data stream ran out: its owner died or hangs. Give it to claim()."""

    stream: str
    owner: str = ""  # who had it, as the pending list says
    id: str = ""


@dataclass(frozen=True, slots=True)
class Disowned:
    """A data stream of mine was taken over. Stop working on it: nothing I say about it is heard any more."""

    stream: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The last event."""

    reason: str


Event: TypeAlias = Added | Expired | Disowned | Terminated
