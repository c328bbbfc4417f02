"""Losses that tasks find while they read, told to the driver through the server.

A task has no way to answer its driver beside its rows. So it writes what a range lost into a hash beside the stream:

    {orders}:hr:lost:<batch>     <first id>/<last id> -> <rows> <times that the number was unknown>
                                 <id> -> 1 0, in group mode

The field is the range or the message and the value its total, so a task that runs again replaces what it said, and a
copy of it says the same. The driver adds the hash of a batch to the offset when Spark has committed that batch, and
deletes it; one that nobody asks for leaves after a day. Nothing here can fail a read: what may not be counted is in the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from headrace.errors import HeadraceError, Verdict, classify
from headrace.names import keys_of
from headrace.redis.calls import Call, as_is
from headrace.redis.synclink import SyncLink
from headrace.spark.chunks import Chunk, RangeReader
from headrace.spark.loss import Loss
from headrace.spark.state import in_parts

KEPT_S: Final = 86_400
AT_ONCE: Final = 250  # streams in one write

log = logging.getLogger("headrace.spark")


class TalliedReader(RangeReader):
    """Reads a range, and counts what it lost under ``batch``."""

    def __init__(self, *words: Any, batch: str, **more: Any) -> None:
        super().__init__(*words, **more)
        self._batch = batch
        self._losses: list[Loss] = []

    def __iter__(self) -> Iterator[Chunk]:
        given = 0
        for chunk in super().__iter__():
            given += chunk.count
            yield chunk
        if self._losses:
            self._write(given)

    def _write(self, given: int) -> None:
        """A loss is judged from where the task stood to the end of the stream; the range lost what it lacks of it."""
        sure = all(loss.lost is not None for loss in self._losses)
        lost = min(sum(loss.lost or 0 for loss in self._losses), max(0, self._part.rows - given)) if sure else 0
        field, total = f"{self._part.start.id}/{self._part.upto}", f"{lost} {0 if sure else 1}"
        _write(self._wire.link, self._batch, self._part.key, {field: total})

    def _note(self, loss: Loss) -> None:
        super()._note(loss)
        self._losses.append(loss)


def tally_ids(link: SyncLink, batch: str, stream: str, ids: Sequence[str]) -> None:
    """Count messages that a task was to read by their ids. However the batch is split the next time, each counts once.

    The ids of one batch are all there is to count: nothing of it is unknown.
    """
    _write(link, batch, stream, dict.fromkeys(ids, "1 0"))


def _write(link: SyncLink, batch: str, stream: str, totals: Mapping[str, str]) -> None:
    try:
        key = keys_of(stream).lost(batch)
        words = [word for pair in totals.items() for word in pair]
        answers = link.pipe([Call(("HSET", key, *words), as_is), Call(("EXPIRE", key, KEPT_S), as_is)])
        for answer in answers:
            if isinstance(answer, HeadraceError):
                raise answer
    except HeadraceError as error:
        log.warning("spark.lost.uncounted stream=%s lost=%s error=%s", stream, list(totals.values()), error)


def collect(link: SyncLink, batch: str, streams: Iterable[str], told: set[str]) -> dict[str, list[Loss]]:
    """What the tasks of a committed batch have lost, by stream.

    A server that is away raises: the question is asked again. One that refuses ends no query: what it refuses is said
    in the log, unless it was ``told`` before, and those losses are in the log of the tasks alone.
    """
    found: dict[str, list[Loss]] = {}
    for some in in_parts(_hashes(batch, streams).items(), AT_ONCE):
        answers = link.pipe([Call(("HVALS", key), as_is) for _, key in some])
        there = [(stream, key, totals) for (stream, key), totals in zip(some, answers, strict=True) if totals]
        there = [one for one in there if not _refused(one[0], one[2], told)]
        # EXPIRE, because the tasks need that right, and DEL would be one more. What stays would be counted again.
        for (stream, _, totals), answer in zip(
            there, link.pipe([Call(("EXPIRE", key, 0), as_is) for _, key, _ in there]), strict=True
        ):
            if not _refused(stream, answer, told):
                found[stream] = [loss for total in totals for loss in _read(total)]
    return found


def _hashes(batch: str, streams: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for stream in streams:
        with suppress(HeadraceError):  # a name that no key of ours can be made from: such losses are in the log alone
            found[stream] = keys_of(stream).lost(batch)
    return found


def _refused(stream: str, answer: Any, told: set[str]) -> bool:
    """Whether an answer is an error. Raises one that is worth another try."""
    if not isinstance(answer, HeadraceError):
        return False
    if classify(answer) is Verdict.RETRY:
        raise answer
    if type(answer).__name__ not in told:
        told.add(type(answer).__name__)
        log.warning("spark.lost.uncounted stream=%s error=%s", stream, answer)
    return True


def _read(total: bytes) -> list[Loss]:
    lost, unknown = map(int, total.split())
    return ([Loss("trimmed", lost)] if lost else []) + [Loss("trimmed", None)] * unknown
