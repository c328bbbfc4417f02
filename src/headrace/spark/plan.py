"""How rows are shared out: among streams when there are more than a batch may take, and among tasks. All pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql.datasource import InputPartition

from headrace.spark.offsets import Position, parse_id

ROWS_PER_TASK: Final = 50_000  # below that a task's own cost (25 to 56 ms) is felt
TASKS_AT_MOST: Final = 8  # by default
RANGE_WEIGHT: Final = 20  # a range costs as much as so many rows, before its first row
UNEVEN: Final = 1.2  # a range is split when it is so much larger than a task's share

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one stream: after ``start``, up to ``upto``.

    ``witness`` is the id that was there when the range was planned, the entry at ``start`` or else the first of the
    range: reading begins with it, and if it is not there any more, something was taken away meanwhile.
    """

    key: str
    start: Position
    upto: str
    witness: str
    rows: int  # at most; an estimate where entries were deleted
    exact: bool = False  # so many were there when it was planned: a task that finds fewer has lost some


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.batch = ""  # under which the task counts what it lost; "": nobody asks

    def __repr__(self) -> str:
        return f"Share({len(self.ranges)} ranges, {sum(part.rows for part in self.ranges)} rows)"


def water_fill(backlogs: Mapping[str, int], limit: int, after: str = "") -> dict[str, int]:
    """Share a limit: small backlogs are taken whole, the others get equal parts. The sum is exact.

    >>> water_fill({"cold": 3, "warm": 40, "hot": 1000}, 100)
    {'cold': 3, 'warm': 40, 'hot': 57}

    Where there is not one for each, they take turns, from the one ``after`` which it is; the last share is the last
    one served.

    >>> water_fill({"cold": 3, "hot": 1000, "warm": 40}, 2, after="cold")
    {'hot': 1, 'warm': 1, 'cold': 0}
    """
    if limit < len(backlogs):
        in_turn = sorted(backlogs, key=lambda key: (key <= after, key))
        return {key: int(at < limit) for at, key in enumerate(in_turn)}
    shares: dict[str, int] = {}
    left = limit
    ordered = sorted(backlogs, key=lambda key: (backlogs[key], key))
    for at, key in enumerate(ordered):
        shares[key] = min(backlogs[key], left // (len(ordered) - at))
        left -= shares[key]
    for key in reversed(ordered):  # what does not divide goes to the largest
        more = min(left, backlogs[key] - shares[key])
        shares[key] += more
        left -= more
    return shares


def task_count(rows: int, ranges: int, least: int | None, most_rows: int | None) -> int:
    """Into how many tasks so many rows go."""
    wanted = least or min(TASKS_AT_MOST, -(-(rows + RANGE_WEIGHT * ranges) // ROWS_PER_TASK))
    if most_rows is not None:
        wanted = max(wanted, -(-rows // most_rows))
    return max(1, min(wanted, max(rows, 1)))


def step_for(rows: int, tasks: int, most_rows: int | None) -> int:
    """How many rows a split of a long range has."""
    step = max(1, -(-rows // tasks))
    return min(step, most_rows) if most_rows is not None else step


def too_long(part: Range, step: int, most_rows: int | None) -> bool:
    """Whether a range must be split."""
    return part.rows > (most_rows if most_rows is not None else step * UNEVEN)


def cut(part: Range, marks: Sequence[tuple[str, int]]) -> list[Range]:
    """Split a range at ids that are there: (id, rows since the last mark). The last one is the range's end.

    What went between the look that planned the range and the walk that set the marks is missed by the last piece.
    """
    pieces: list[Range] = []
    start, witness = part.start, part.witness
    for id_, rows in marks:
        pieces.append(Range(part.key, start, id_, witness, rows, exact=True))
        n = None if start.n is None else start.n + rows
        start, witness = Position(id_, n), id_
    if not pieces:
        return [part]
    if parse_id(pieces[-1].upto) < parse_id(part.upto):  # nothing was there behind the last mark
        pieces[-1] = replace(pieces[-1], upto=part.upto)
    if part.exact:
        missed = max(0, part.rows - sum(rows for _, rows in marks))
        pieces[-1] = replace(pieces[-1], rows=pieces[-1].rows + missed)
    return pieces


def pack(ranges: Sequence[Range], tasks: int, most_rows: int | None) -> list[Share]:
    """Put ranges into tasks of even weight, long ones first; a task gets no more than ``most_rows``."""
    ordered = sorted(ranges, key=lambda part: (-part.rows, part.key, parse_id(part.start.id)))
    bins = even(ordered, tasks, most_rows, lambda part: part.rows)
    return [Share(sorted(held, key=lambda part: (part.key, parse_id(part.start.id)))) for held in bins]


def even(parts: Sequence[T], tasks: int, most_rows: int | None, rows: Callable[[T], int]) -> list[list[T]]:
    """Put parts, the largest first, into bins of even weight. One more where a bin would get over ``most_rows``."""
    bins: list[tuple[int, int, list[T]]] = [(0, at, []) for at in range(max(1, min(tasks, len(parts))))]
    for part in parts:
        weight, at, held = heapq.heappop(bins)
        if held and most_rows is not None and sum(map(rows, held)) + rows(part) > most_rows:
            heapq.heappush(bins, (weight, at, held))
            weight, at, held = 0, len(bins), []
        held.append(part)
        heapq.heappush(bins, (weight + rows(part) + RANGE_WEIGHT, at, held))
    return [held for _, _, held in sorted(bins, key=lambda one: one[1]) if held]
