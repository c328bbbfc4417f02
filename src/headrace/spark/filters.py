"""What a batch read may leave out because of a filter: whole streams, and times, which are ids.

Filters are only used to read less: all of them go back to Spark, which applies them to the rows. So a bound may be
wider than its filter, and never narrower. An id compares as a text in Spark and as a number in Redis: of filters on
`id` only equality helps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.source import BatchReader, Bounds

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS: Final = timedelta(milliseconds=1)
_ID: Final = re.compile(r"([0-9]{1,18})-[0-9]{1,20}", re.ASCII)


class FilteredReader(BatchReader):
    """A batch read that is told the filters. Spark must not see this class where filters are not pushed: it refuses."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's word
        self._bounds = bounds_of(filters)
        return filters


def bounds_of(filters: Sequence[Filter]) -> Bounds:
    """What is common to all filters that bound anything."""
    found = Bounds()
    for one in filters:
        found = _narrowed(found, one)
    return found


def _narrowed(bounds: Bounds, one: Filter) -> Bounds:
    column = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if column == ("stream",) and isinstance(one, EqualTo | In):
        wanted = frozenset(value if isinstance(one, In) else (value,))
        return replace(bounds, streams=wanted if bounds.streams is None else bounds.streams & wanted)
    if column == ("id",) and isinstance(one, EqualTo):
        number = _ID.fullmatch(value) if isinstance(value, str) else None
        return _within(bounds, int(number[1]), int(number[1]) + 1) if number else bounds
    if column == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        ms = (value - EPOCH) // MS
        lowest = ms if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual) else None
        highest = ms + 1 if isinstance(one, EqualTo | LessThan | LessThanOrEqual) else None
        return _within(bounds, lowest, highest)
    return bounds


def _within(bounds: Bounds, from_ms: int | None, until_ms: int | None) -> Bounds:
    """Both bounds together; a time before 1970 is the beginning."""
    lowest = max((ms for ms in (bounds.from_ms, from_ms) if ms is not None), default=None)
    highest = min((ms for ms in (bounds.until_ms, until_ms) if ms is not None), default=None)
    return replace(bounds, from_ms=lowest, until_ms=highest)
