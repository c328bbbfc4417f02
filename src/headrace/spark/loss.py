"""Whether rows were lost between a position and what the stream holds now.

Redis tells enough to know, mostly to the row: the id last generated, the count of entries ever added, the highest id
ever deleted singly (trimming does not move it), the first entry, and whether the entry at the position is still there.
The rules, in the order they are asked:

1. The key is gone, its last id lies below the position, or fewer entries were ever added than the position has
   counted: rewound. Somebody deleted the stream, and perhaps made another.
2. The entry at the position is there: nothing was trimmed. An id above the position was deleted singly: deleted.
3. It is gone, and nothing is left: lost is what was added since.
4. It is gone, and the first entry lies above it: lost is what was added since and is not there. Below zero: rewound.
5. It is gone, entries before it are there, and no deletion reached it: rewound.
6. The count at the position is not known: whatever 3 and 4 would have counted is unknown. Where nothing was ever
   removed, the entry at the position was in another stream: rewound.

A position at 0-0 with no count stands for "whatever is there" and loses nothing. An id that a user chose, for the query
or for the stream (XSETID), need not be that of an entry: that it is not there says something only where entries were
removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import HeadraceError
from headrace.options import shown
from headrace.spark.offsets import ZERO, Position, parse_id
from headrace.spark.state import Look

Kind = Literal["none", "trimmed", "deleted", "rewound"]


class DataLost(HeadraceError):
    """Rows are gone that this query had not read. ``stream``, ``kind`` and ``lost`` (None: unknown) say which."""

    def __init__(self, message: str = "", *, stream: str = "", kind: str = "", lost: int | None = None) -> None:
        super().__init__(message)
        self.stream = stream
        self.kind = kind
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Loss:
    """What was lost, and how many; None: unknown."""

    kind: Kind = "none"
    lost: int | None = 0

    def __bool__(self) -> bool:
        return self.kind != "none"


NONE = Loss()
REWOUND = Loss("rewound", None)


def judge(start: Position, look: Look) -> Loss:
    """Say what happened to the entries after a position that has not been read beyond."""
    state = look.state
    if start.id == ZERO:
        return _from_zero(start, look)
    if not state.exists or state.last < start.number or _fewer(state.added, start.n):  # 1
        return REWOUND
    deleted_above = state.max_deleted is not None and parse_id(state.max_deleted) > start.number
    if look.at_start:  # 2
        return Loss("deleted", None) if deleted_above and start.n is not None else NONE
    if state.last_id == start.id:  # everything was read, and trimmed afterwards
        return NONE
    if state.first_id is None or parse_id(state.first_id) > start.number:  # 3, 4
        return _behind(start, look)
    return _beside(start, look, deleted_above)  # 5


def _from_zero(start: Position, look: Look) -> Loss:
    """Nothing has been read: only a count of zero, of a stream that did not exist, says that anything is missing."""
    state = look.state
    if start.n is None or state.added is None or state.added <= state.length:
        return NONE
    return Loss("trimmed", state.added - state.length)


def _behind(start: Position, look: Look) -> Loss:
    """The position lies before everything that is left."""
    state = look.state
    if start.n is None or state.added is None:  # 6
        if state.untouched:
            return NONE if start.told else REWOUND
        return Loss("trimmed", None)
    lost = state.added - start.n - state.length
    if lost < 0:
        return REWOUND
    return Loss("trimmed", lost) if lost else NONE


def _beside(start: Position, look: Look, deleted_above: bool) -> Loss:
    """Entries before the position are left, but not the one at it."""
    state = look.state
    if start.told or state.max_deleted is None:
        return NONE  # an id that a user chose, for the query or by XSETID; or a server that does not tell
    if parse_id(state.max_deleted) < start.number:
        return REWOUND
    return Loss("deleted", None) if deleted_above and start.n is not None else NONE


def _fewer(added: int | None, n: int | None) -> bool:
    return added is not None and n is not None and added < n


def lost_error(key: str, position: str, loss: Loss) -> DataLost:
    """The error for a loss: what happened, where, how many, and what to do."""
    what = {
        "trimmed": "was trimmed before it was read",
        "deleted": "had entries deleted before they were read",
        "rewound": "was deleted, or replaced by another one",
    }[loss.kind]
    many = "how many rows are lost is unknown" if loss.lost is None else f"{loss.lost:,} rows are lost"
    return DataLost(
        f"stream {shown(key)} {what}: it had been read up to {position}, and {many}. "
        "Set failOnDataLoss to false to go on with what is there and count the loss, and keep more of the stream: "
        "groupId with onCommit trim, or a larger MAXLEN",
        stream=key,
        kind=loss.kind,
        lost=loss.lost,
    )
