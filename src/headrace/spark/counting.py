"""Counts along a stream: where it ends, how many rows lie between two points, what was lost on the way. All pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.spark.loss import NONE, Loss
from headrace.spark.offsets import ZERO, Position, parse_id
from headrace.spark.state import Look, State


@dataclass(frozen=True, slots=True)
class Top:
    """Where a stream ends for now, or a batch. ``told``: by an id that no entry is known to have had."""

    id: str
    n: int | None
    told: bool = False


def top_of(state: State) -> Top:
    """Where a stream ends, by what it says of itself."""
    return Top(state.last_id, state.added, told=not state.ends_in_entry)


def begin(position: Position) -> Position:
    """Where reading begins: at the position, or at the beginning of a stream that was rewound."""
    return position if position.after is None else Position(position.after)


def counted(position: Position, loss: Loss) -> Position:
    """A position with a loss more. A stream that was rewound is read from its beginning, and was rewound once."""
    if loss.kind == "rewound" and position.after is not None:
        return position
    lost, unknown = position.lost + (loss.lost or 0), position.unknown + (loss.lost is None)
    if loss.kind == "rewound":
        return Position(ZERO, None, ZERO, lost, unknown)
    return replace(position, lost=lost, unknown=unknown)


def lost_up_to(loss: Loss, start: Position, look: Look, top: Top) -> Loss:
    """The part of a loss that lies before a top. The rest is found again from there, and must not count twice."""
    state = look.state
    all_before = state.first_id is not None and parse_id(state.first_id) <= parse_id(top.id)
    if loss.kind != "trimmed" or all_before or parse_id(top.id) >= state.last:
        return loss
    if parse_id(top.id) <= start.number:
        return NONE
    if loss.lost is None or top.n is None or start.n is None:
        return loss
    lost = min(loss.lost, top.n - start.n)
    return Loss("trimmed", lost) if lost > 0 else NONE


def rows_up_to(start: Position, look: Look, top: Top) -> tuple[int, bool]:
    """How many rows there are at most between a position and a top, and whether there are just so many.

    They are where nothing is left of what was before the position: the length says it. Else where both counts are
    known and nothing was taken away between them.
    """
    state = look.state
    to_the_end = parse_id(top.id) >= state.last
    if to_the_end and state.first_id is not None and parse_id(state.first_id) > start.number:
        return state.length, True
    begun, ended = _count_at(start, look), state.added if to_the_end else top.n
    if begun is None or ended is None:
        return max(1, min(state.length - look.at_start, _all_since(begun, look))), False
    rows = ended - begun
    return max(1, min(rows, state.length)), 0 < rows <= state.length and _untouched_since(start, begun, look)


def _all_since(begun: int | None, look: Look) -> int:
    """What was added since a count, as far as one can tell."""
    state = look.state
    return state.length if begun is None or state.added is None else state.added - begun


def _untouched_since(start: Position, begun: int, look: Look) -> bool:
    """Whether all that was added since a position is there: neither deleted singly nor trimmed."""
    state = look.state
    if state.max_deleted is None or parse_id(state.max_deleted) > start.number or state.first_id is None:
        return False
    return parse_id(state.first_id) <= start.number or state.added == begun + state.length


def count_after(position: Position, look: Look, rows: int) -> int | None:
    """The count after so many rows more; None where deletions among them would make it wrong."""
    begun, deleted = _count_at(begin(position), look), look.state.max_deleted
    if begun is None or deleted is None or parse_id(deleted) > begin(position).number:
        return None
    return begun + rows


def _count_at(start: Position, look: Look) -> int | None:
    """The stream's count before the first entry behind a position: where nothing else is left, what was trimmed.

    That is more than the count at the position when entries behind it were lost.
    """
    state = look.state
    if state.added is None or state.max_deleted is None or state.first_id is None:
        return start.n
    only_trimmed = parse_id(state.max_deleted) <= start.number < parse_id(state.first_id)
    return state.added - state.length if only_trimmed else start.n
