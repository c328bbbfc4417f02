"""The driver's part of a read: from positions and ends to the shares of tasks, with a look at every stream first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.spark.chunks import Patience, RangeReader, listed
from headrace.spark.counting import Top, rows_up_to
from headrace.spark.loss import Loss, judge
from headrace.spark.offsets import Position, parse_id
from headrace.spark.pace import Pace
from headrace.spark.plan import Range, Share, cut, pack, step_for, task_count, too_long
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import Look
from headrace.spark.wire import Wire

Marks = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Scan:
    """What a walk over a range found: how many rows, the last id, and an id after every so many rows."""

    rows: int
    last_id: str
    marks: Marks = field(default_factory=list)


def range_of(key: str, start: Position, top: Top, look: Look, walked: int | None = None) -> Range | None:
    """The range from a position to a top, if there is anything in it. ``walked``: so many rows were counted in it."""
    if look.next_id is None or parse_id(look.next_id) > parse_id(top.id):
        return None
    witness = start.id if look.at_start else look.next_id
    rows, exact = rows_up_to(start, look, top) if walked is None else (walked, True)
    return Range(key, start, top.id, witness, rows, exact)


def losses(starts: Mapping[str, Position], looks: Mapping[str, Look]) -> Iterator[tuple[str, Loss]]:
    """The streams that lost something."""
    for key, look in looks.items():
        loss = judge(starts[key], look)
        if loss:
            yield key, loss


class Planner:
    """Splits long ranges at ids that are there, and packs short ones."""

    def __init__(self, wire: Wire, settings: SourceSettings) -> None:
        self._wire = wire
        self._settings = settings

    def scan(self, part: Range, step: int, limit: int | None = None) -> Scan:
        """Walk over a range, to its end or for ``limit`` rows, by XRANGE: a script would hold the server up."""
        patience = Patience(self._settings.retry_ms)
        pace = Pace(self._settings.fetch_bytes)
        reader = RangeReader(
            self._wire, part, pace, listed, fail_on_loss=self._settings.fail_on_loss, patience=patience
        )
        rows, last_id, marks, marked = 0, part.start.id, Marks(), 0
        for chunk in reader:
            take = chunk.count if limit is None else min(chunk.count, limit - rows)
            while marked + step <= rows + take:
                marks.append((chunk.id_at(marked + step - rows - 1), step))
                marked += step
            rows += take
            last_id = chunk.id_at(take - 1)
            if rows == limit:
                break
        if self._wire.waiting:  # asked ahead for what is not needed
            self._wire.drop()
        if rows > marked:
            marks.append((last_id, rows - marked))
        return Scan(rows, last_id, marks)

    def step(self, rows: int, ranges: int) -> int:
        """How many rows a split should have when there are so many in all."""
        tasks = task_count(rows, ranges, self._settings.min_partitions, self._settings.max_partition_rows)
        return step_for(rows, tasks, self._settings.max_partition_rows)

    def shares(self, ranges: Sequence[Range], known: Mapping[str, Marks] | None = None) -> list[Share]:
        """What each task reads. ``known`` holds the marks of ranges that have been walked over already."""
        if not ranges:
            return []
        most = self._settings.max_partition_rows
        total = sum(part.rows for part in ranges)
        tasks = task_count(total, len(ranges), self._settings.min_partitions, most)
        step = step_for(total, tasks, most)
        pieces: list[Range] = []
        for part in ranges:
            if not too_long(part, step, most) or (tasks == 1 and most is None):
                pieces.append(part)
            else:
                marks = (known or {}).get(part.key)
                pieces += cut(part, self.scan(part, step).marks if marks is None else marks)
        return pack(pieces, tasks, most)
