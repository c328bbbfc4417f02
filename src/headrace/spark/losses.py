"""What a query has lost and its offset does not say yet: found before a batch, by its tasks, or when it is replayed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from headrace.spark.counting import Top, begin, counted, lost_up_to
from headrace.spark.loss import NONE, REWOUND, Loss, judge, lost_error
from headrace.spark.offsets import Position
from headrace.spark.state import Look

log = logging.getLogger("headrace.spark")


class Losses:
    """Judges, and either fails the query or counts each loss once: with the offset that goes beyond it."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._unread: dict[str, list[Loss]] = {}  # found after a batch was planned: counted with the next one
        self._judged: dict[str, Loss] = {}

    def found(self, by_stream: Mapping[str, list[Loss]]) -> None:
        """The tasks of a committed batch have lost something."""
        for key, losses in by_stream.items():
            self._unread.setdefault(key, []).extend(losses)

    def settle(
        self, positions: Mapping[str, Position], seen: Mapping[str, Look], tops: Mapping[str, Top], gone: set[str]
    ) -> dict[str, Position]:
        """The positions to go on from: those given, except where something was lost and that is allowed."""
        begun: dict[str, Position] = {}
        self._judged = {}
        for key, look in seen.items():
            loss = REWOUND if key in gone else judge(positions[key], look)
            if loss and self._fail:
                raise lost_error(key, positions[key].id, loss)
            loss = lost_up_to(loss, positions[key], look, tops[key])
            if loss:
                self._judged[key] = loss
            begun[key] = counted(self._with_unread(key, positions[key]), loss)
        return begun

    def write_down(
        self, positions: Mapping[str, Position], begun: Mapping[str, Position], ends: dict[str, Position]
    ) -> None:
        """Complete the ends of a batch. What tasks have lost is counted even without rows. What was trimmed or deleted
        behind a position that stays where it is will be found again, and is counted when the position moves; a stream
        that was rewound moves to its beginning."""
        for key, position in begun.items():
            if key not in ends and position.after is not None:
                ends[key] = position
            if key not in ends and key in self._unread:
                ends[key] = self._with_unread(key, positions[key])
            elif key in ends and key in self._judged:
                _tell(key, positions[key].id, self._judged[key])
        for key in ends:
            self._unread.pop(key, None)

    def _with_unread(self, key: str, position: Position) -> Position:
        before = position.lost
        for loss in self._unread.get(key, ()):
            position = counted(position, loss)
        return replace(position, late=position.lost - before)

    def found_again(self, key: str, start: Position, end: Position, look: Look) -> None:
        """A batch is replayed: whatever it has lost since it was planned is counted with the next one."""
        begun = begin(replace(start, after=end.after))
        loss = judge(begun, look)
        if loss and self._fail:
            raise lost_error(key, begun.id, loss)
        loss = _beyond(lost_up_to(loss, begun, look, Top(end.id, end.n)), start, end)
        if loss:
            _tell(key, begun.id, loss)
            self._unread[key] = [loss]


def _beyond(loss: Loss, start: Position, end: Position) -> Loss:
    """What a batch's end has not counted of a loss."""
    if loss.lost is None:
        return loss if end.unknown == start.unknown else NONE
    more = loss.lost - (end.lost - end.late - start.lost)
    return replace(loss, lost=more) if more > 0 else NONE


def _tell(key: str, after: str, loss: Loss) -> None:
    log.warning("spark.lost stream=%s after=%s kind=%s lost=%s", key, after, loss.kind, loss.lost)
