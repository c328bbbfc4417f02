"""Claims of keys in Redis: the row that claimed a key first keeps it for a window, on every replay the same row.

A claim is `SET <space>:hr:claim:<key> <stream>/<id> NX GET PX window`: it answers the holder, and writes only where
there is none. So a task may run twice or half, and a batch may be replayed, and the answers stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import CommandRefused
from headrace.names import claim_key
from headrace.redis.calls import Call, as_is
from headrace.spark.options import Address
from headrace.spark.sink_rows import texts
from headrace.spark.staging import PatientLink

AT_ONCE: Final = 1_000  # claims in one write to the server
KEY_BYTES: Final = 200  # longer keys are hashed
RETRY_MS: Final = 30_000


Key = str | bytes
Ask = Callable[[Sequence[Key], Sequence[str]], list[str | None]]
"""(keys, who asks) -> who holds each key; None: the one who asked, just now."""


def claimed(rows: DataFrame, address: Address, space: str, window_ms: int, *, out: str, duplicate: str) -> DataFrame:
    """Mark rows whose `_key` another row holds as duplicates, and name that row in `_winner`."""

    def winners(parts: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        with PatientLink(address, RETRY_MS, "headrace-claims") as link:
            ask = claims(link, space, window_ms)
            for keys, selves in parts:
                yield _others(keys, selves, ask)

    # Only key and id travel to Python. The function may run twice for a row: its answer is the same.
    find = F.arrow_udf(winners, "string")  # type: ignore[attr-defined]  # its stubs lack it
    me = F.concat("entry_stream", F.lit("/"), "entry_id")
    held = rows.withColumn("_winner", find(F.when(F.col("_status") == out, F.col("_key")), me))
    lost = F.col("_winner").isNotNull()
    return held.withColumn("_status", F.when(lost, duplicate).otherwise(F.col("_status")))


def _others(keys: pa.Array, selves: pa.Array, ask: Ask) -> pa.Array:
    """Who holds each key, where it is another; null for the winners and for rows that claim nothing."""
    valid = keys.is_valid()
    at = pc.indices_nonzero(valid).to_numpy(zero_copy_only=False).tolist()
    mine = selves.filter(valid).to_numpy(zero_copy_only=False).tolist()
    found: list[str | None] = [None] * len(keys)
    holders = ask(texts(keys.filter(valid)), mine)
    for row, me, holder in zip(at, mine, holders, strict=True):
        if holder is not None and holder != me:
            found[row] = holder
    return pa.array(found, pa.string())


def claims(link: PatientLink, space: str, window_ms: int) -> Ask:
    """Ask with one command a key, or on servers before 7.0, which do not know it, with two."""
    two_commands = False

    def ask(keys: Sequence[Key], selves: Sequence[str]) -> list[str | None]:
        nonlocal two_commands
        holders: list[str | None] = []
        for start in range(0, len(keys), AT_ONCE):
            names = [claim_name(space, key) for key in keys[start : start + AT_ONCE]]
            mine = selves[start : start + AT_ONCE]
            if not two_commands:
                try:
                    holders += link.pipe([_set_and_get(*pair, window_ms) for pair in zip(names, mine, strict=True)])
                    continue
                except CommandRefused as error:
                    if "syntax error" not in str(error):
                        raise
                    two_commands = True
            holders += _in_two(link, names, mine, window_ms)
        return holders

    return ask


def claim_name(space: str, key: Key) -> str:
    """The key of a claim. Long ones are hashed: a claim costs about a hundred bytes, whatever its key. So is what is no
    text: Spark's strings need not be UTF-8, and one such among many makes bytes of them all."""
    raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
    try:
        short = raw.decode("utf-8", "surrogatepass") if len(raw) <= KEY_BYTES else ""
    except UnicodeDecodeError:
        short = ""
    return claim_key(space, short or "sha:" + hashlib.sha256(raw).hexdigest())


def _holder(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


def _set_and_get(name: str, me: str, window_ms: int) -> Call[str | None]:
    return Call(("SET", name, me, "NX", "GET", "PX", window_ms), _holder)


def _in_two(link: PatientLink, names: Sequence[str], mine: Sequence[str], window_ms: int) -> list[str | None]:
    """Nobody deletes claims, so between the two commands a claim can only expire: then the next asker has it."""
    link.pipe([Call(("SET", name, me, "NX", "PX", window_ms), as_is) for name, me in zip(names, mine, strict=True)])
    found: list[str | None] = link.pipe([Call(("GET", name), _holder) for name in names])
    return found
