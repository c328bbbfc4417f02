"""A ward: a child process as the parent that looks after it sees it, and what it holds, as its hello told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.board import Board
from headrace.names import Keys, keys_of

log = logging.getLogger("headrace")


@dataclass(frozen=True, slots=True)
class Held:
    """One lane of a child, as its hello told."""

    keys: Keys
    group: str
    lease_ms: int
    stall_after_ms: int
    max_attempts: int
    copies: str = ""  # prefix of the fields that requeued copies have, "" where recovery makes none


@dataclass(slots=True)
class Ward:
    """A child as the guardian sees it."""

    pid: int
    owner: str
    lanes: list[Held]
    board: Board
    owned: list[Held] = field(default_factory=list)  # assignments: one lease for all of a group
    fixed: bool = False  # the user chose the owner's name: the next child will have it, too
    cpu: int = -1
    cpu_at: float = 0.0
    renew_at: dict[int, float] = field(default_factory=dict)


def read_hello(hello: dict[str, object], board: Board) -> Ward:
    """From the hello of a child to what is needed to look after it."""
    lanes = [
        Held(
            keys_of(lane["stream"]),
            lane["group"],
            lane["lease_ms"],
            lane["stall_after_ms"],
            lane["max_attempts"],
            lane["copies"],
        )
        for lane in hello["lanes"]  # type: ignore[attr-defined]
    ]
    owned = [
        Held(keys_of(each["stream"]), each["group"], each["lease_ms"], each["stall_after_ms"], 0)
        for each in hello["owned"]  # type: ignore[attr-defined]
    ]
    return Ward(int(str(hello["pid"])), str(hello["owner"]), lanes, board, owned, bool(hello["fixed"]))


def is_alive(ward: Ward, lane: Held, now: float) -> bool:
    """Whether a child shows a sign of life, within what its lane allows."""
    cpu = cpu_ticks(ward.pid)
    if cpu != ward.cpu:
        ward.cpu, ward.cpu_at = cpu, now
    if now - ward.board.loop_stamp > lane.stall_after_ms / 1000:
        return False
    fresh_s = lane.lease_ms / 3000
    return now - ward.board.thread_stamp < fresh_s or now - ward.cpu_at < fresh_s


def cpu_ticks(pid: int) -> int:
    """CPU time of a process in clock ticks, -1 where it cannot be told (then only the stamps count)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return -1
    fields = stat.rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def tell_trimmed(held: Held, ids: Sequence[str]) -> None:
    for id_ in ids:
        log.error("message.trimmed stream=%s group=%s id=%s", held.keys.stream, held.group, id_)
