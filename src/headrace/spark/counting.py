"""Counts along a stream: where it ends, how many rows lie between two points, what was lost on the way. All pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.spark.loss import Loss
from headrace.spark.offsets import ZERO, Position, parse_id
from headrace.spark.planner import backlog
from headrace.spark.state import Look


@dataclass(frozen=True, slots=True)
class Top:
    """Where a stream ends for now."""

    id: str
    n: int | None


def begin(position: Position) -> Position:
    """Where reading begins: at the position, or at the beginning of a stream that was rewound."""
    return position if position.after is None else Position(position.after)


def counted(position: Position, loss: Loss) -> Position:
    lost, unknown = position.lost + (loss.lost or 0), position.unknown + (loss.lost is None)
    if loss.kind == "rewound":
        return Position(ZERO, None, ZERO, lost, unknown)
    return replace(position, lost=lost, unknown=unknown)


def rows_up_to(start: Position, look: Look, top: Top) -> int:
    """How many rows there are at most up to a top."""
    begun = _count_at(start, look)
    if begun is not None and top.n is not None:
        return max(1, min(top.n - begun, look.state.length))
    return backlog(start, look)


def count_after(position: Position, look: Look, rows: int) -> int | None:
    """The count after so many rows more; None where deletions among them would make it wrong."""
    begun, deleted = _count_at(begin(position), look), look.state.max_deleted
    if begun is None or deleted is None or parse_id(deleted) > begin(position).number:
        return None
    return begun + rows


def _count_at(start: Position, look: Look) -> int | None:
    """The stream's count at a position. At the beginning of one that was only trimmed: what was trimmed."""
    state = look.state
    if start.id == ZERO and start.n is None and state.added is not None and state.max_deleted == ZERO:
        return state.added - state.length
    return start.n
