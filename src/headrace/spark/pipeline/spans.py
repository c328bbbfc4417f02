"""Which hours each batch of a table holds, so that windows are computed from the batches that matter and no others.

`<table>/_spans/query=<id>/<n>.json` tells of a thousand batches, for each column of times: {"<batch>": {"<column>":
[[first, last], ...]}}, in hours from 1970. It may name more hours than a batch has, never fewer. What is not told of a
batch is found out by reading it once, so nothing is lost where such a file is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.spark.pipeline.places import Place

FOLDER: Final = "_spans"  # the leading underscore hides it from readers of the table
BLOCK: Final = 1_000  # batches of one file
RUNS: Final = 8  # that a batch is told with

Run = tuple[int, int]
"""The first hour and the last one."""


def runs(hours: Iterable[int]) -> list[Run]:
    """Hours as a few runs, parted at the widest gaps.

    >>> runs([5, 3, 4, 90])
    [(3, 5), (90, 90)]
    """
    ordered = sorted(set(hours))
    widest = sorted(range(1, len(ordered)), key=lambda at: ordered[at - 1] - ordered[at])[: RUNS - 1]
    cuts = sorted(at for at in widest if ordered[at] - ordered[at - 1] > 1)
    parts = zip([0, *cuts], [*cuts, len(ordered)], strict=True)
    return [(ordered[first], ordered[end - 1]) for first, end in parts] if ordered else []


def meet(some: Iterable[Run], others: Sequence[Run]) -> bool:
    """Whether any run of the one has an hour of the other."""
    return any(first <= end and start <= last for first, last in some for start, end in others)


class Spans:
    """What is told of the batches of one table."""

    def __init__(self, place: Place, table: str) -> None:
        self._place = place
        self._path = f"{table}/{FOLDER}"

    def note(self, query: str, column: str, found: Mapping[int, Iterable[int]]) -> None:
        """Tell the hours of some batches."""
        for block in sorted({batch // BLOCK for batch in found}):
            file = f"{self._folder(query)}/{block}.json"
            told = self._told(file)
            before = json.dumps(told)
            for batch, hours in found.items():
                if batch // BLOCK == block:
                    told.setdefault(str(batch), {})[column] = [list(run) for run in runs(hours)]
            if json.dumps(told) != before:
                self._place.write(file, json.dumps(told))

    def of(self, query: str, column: str) -> dict[int, list[Run]]:
        """The runs of every batch that is told of."""
        names = [name for name in self._place.names(self._folder(query)) if not name.startswith("_")]
        told = [item for name in names for item in self._told(f"{self._folder(query)}/{name}").items()]
        return {int(batch): [(first, last) for first, last in one[column]] for batch, one in told if column in one}

    def _told(self, file: str) -> dict[str, dict[str, Any]]:
        return json.loads(self._place.read(file) or "{}")  # type: ignore[no-any-return]

    def _folder(self, query: str) -> str:
        return f"{self._path}/query={query}"
