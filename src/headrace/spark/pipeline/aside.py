"""Where a table's next folders are written before they are moved into place: one for each writing, never shared.

Two drivers may be at the same batch, one of them thought dead. Spark's committer keeps its files below the folder that
it writes, always by the same name, so of two that write to one folder each would move or delete the other's.
"""

from __future__ import annotations

import secrets
from typing import Final

from headrace.spark.pipeline.places import Place

NAME: Final = "_aside"  # the leading underscores hide it from readers, wherever a file system moves a folder to


class Aside:
    """The folder `_aside` of one table."""

    def __init__(self, place: Place, table: str) -> None:
        self._place = place
        self._path = f"{table}/{NAME}"

    def folder(self, query: str, batch: int) -> str:
        """A new name. Removes what drivers left of earlier batches.

        Spark begins a batch when the one before is finished: whoever still writes one of those is late, will count too
        few rows, and move nothing. Of this batch all stays, as somebody may be writing it.
        """
        for name in self._place.names(self._path):
            before, of, rest = name.partition(f"{query}-")
            number = rest.partition("-")[0].partition(".")[0]
            if of and before in ("", "_") and number.isdigit() and int(number) < batch:
                self._place.remove(f"{self._path}/{name}")
        return f"{self._path}/_{query}-{batch}-{secrets.token_hex(4)}"
