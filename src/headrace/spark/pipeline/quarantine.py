"""What the quarantine's stream is told: an entry as it came, why it is there, and where it came from.

Spark's own functions refuse a map with a name twice, so one such entry would stop a pipeline for ever. Redis allows it,
and the fields of an entry are put together here, in Python: of quarantined rows alone, which are few.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from headrace.redis.letters import WIDE

REASON: Final = "_quarantined"
FROM: Final = "_from"
PACKED: Final = "_packed"  # as in dead letters: <length>:<word> for every name and value in turn

Field = tuple[str, bytes]


def told() -> Column:
    """The fields of a quarantined row for the stream: its own, then the reason and `stream/id`.

    An entry that comes from a quarantine already has those two; they give way to the newer ones.
    """
    where = F.concat("entry_stream", F.lit("/"), "entry_id")
    put = F.arrow_udf(_put, "map<string,binary>")  # type: ignore[attr-defined]  # its stubs lack it
    return put(F.col("_raw"), F.col("_reason"), where).alias("fields")  # type: ignore[no-any-return]


def _put(entries: pa.Array, reasons: pa.Array, places: pa.Array) -> pa.Array:
    rows = zip(entries.to_pylist(), reasons.to_pylist(), places.to_pylist(), strict=True)
    found = [[*_own(entry), (REASON, reason.encode()), (FROM, place.encode())] for entry, reason, place in rows]
    return pa.array(found, pa.map_(pa.string(), pa.binary()))


def _own(entry: list[Field]) -> list[Field]:
    """The fields as they came. More of them than Lua can pass to one command become one field."""
    kept = [field for field in entry if field[0] not in (REASON, FROM)]
    if 2 * len(kept) <= WIDE:
        return kept
    words = [word for name, value in kept for word in (name.encode(), value)]
    return [(PACKED, b"".join(b"%d:%s" % (len(word), word) for word in words))]
