"""Typed calls for plain commands: the read of every turn, and what doctors, janitors and listings ask.

Replies are read raw, because redis-py's own parsers break on CLAIM and JUSTID and drop repeated field names.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.names import Keys
from headrace.redis.calls import Call, Entry, Wire, nothing, text
from headrace.redis.replies import (
    ConsumerInfo,
    GroupInfo,
    OwnerInfo,
    Pending,
    PendingRow,
    StreamInfo,
    owner_entry,
)

NEVER_IDLE_MS: Final = 10**15

# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def read(keys: Keys, group: str, owner: str, count: int, block_ms: int = 0) -> Call[list[Entry]]:
    """New messages. ``block_ms`` 0: at once."""
    words: list[Wire] = ["XREADGROUP", "GROUP", group, owner, "COUNT", count]
    if block_ms > 0:  # BLOCK 0 would be for ever
        words += ("BLOCK", block_ms)
    words += ("STREAMS", keys.stream, ">")
    return Call(tuple(words), _new)


def _new(reply: Any) -> list[Entry]:
    if reply is None:
        return []
    return [(id_, fields, 1, 0) for id_, fields in reply[0][1]]


def create_group(keys: Keys, group: str, start: str = "0") -> Call[None]:
    """Make the group, and the stream if need be. BusyGroup says that it is there."""
    return Call(("XGROUP", "CREATE", keys.stream, group, start, "MKSTREAM"), nothing)


def purge_trimmed(
    keys: Keys, group: str, owner: str, cursor: str = "0-0", count: int = 100
) -> Call[tuple[str, list[str]]]:
    """Drop pending entries whose message was deleted, and name them. Claims nothing. Cursor "0-0": all done.

    From 7.0 on XAUTOCLAIM looks whether an entry exists before it looks at its age. On 6.2 this does nothing;
    there rescue finds them.
    """
    words = ("XAUTOCLAIM", keys.stream, group, owner, NEVER_IDLE_MS, cursor, "COUNT", count, "JUSTID")
    return Call(words, _purged)


def _purged(reply: list[Any]) -> tuple[str, list[str]]:
    return reply[0].decode(), [text(id_) for id_ in reply[2]] if len(reply) > 2 else []


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────


def pending(keys: Keys, group: str) -> Call[Pending]:
    """How many deliveries are out, and with whom. Of a waiting group: how many wait, and why."""
    return Call(("XPENDING", keys.stream, group), _pending)


def _pending(reply: list[Any]) -> Pending:
    total, lowest, highest, owners = reply
    held = {text(name): int(count) for name, count in owners or ()}
    return Pending(total, text(lowest or b""), text(highest or b""), held)


def pending_rows(
    keys: Keys,
    group: str,
    count: int = 100,
    *,
    start: str = "-",
    end: str = "+",
    owner: str | None = None,
    min_idle_ms: int = 0,
) -> Call[list[PendingRow]]:
    """The deliveries themselves, by id. For the next page start at "(" and the last id."""
    words: list[Wire] = ["XPENDING", keys.stream, group]
    if min_idle_ms > 0:
        words += ("IDLE", min_idle_ms)
    words += (start, end, count)
    if owner is not None:
        words.append(owner)
    return Call(tuple(words), _pending_rows)


def _pending_rows(reply: list[Any]) -> list[PendingRow]:
    return [PendingRow(text(id_), text(owner), idle_ms, count) for id_, owner, idle_ms, count in reply]


def groups(keys: Keys) -> Call[list[GroupInfo]]:
    """The stream's groups, waiting groups among them."""
    return Call(("XINFO", "GROUPS", keys.stream), _groups)


def _groups(reply: list[Any]) -> list[GroupInfo]:
    return [_group(_by_name(row)) for row in reply]


def _group(row: dict[bytes, Any]) -> GroupInfo:
    return GroupInfo(
        name=text(row[b"name"]),
        owners=row[b"consumers"],
        pending=row[b"pending"],
        last_id=text(row[b"last-delivered-id"]),
        lag=row.get(b"lag"),
    )


def consumers(keys: Keys, group: str) -> Call[list[ConsumerInfo]]:
    """The group's owners as the server knows them."""
    return Call(("XINFO", "CONSUMERS", keys.stream, group), _consumers)


def _consumers(reply: list[Any]) -> list[ConsumerInfo]:
    rows = (_by_name(row) for row in reply)
    return [ConsumerInfo(text(row[b"name"]), row[b"pending"], row[b"idle"]) for row in rows]


def owners(keys: Keys, group: str) -> Call[list[OwnerInfo]]:
    """The group's owners as they entered themselves."""
    return Call(("HGETALL", keys.owners(group)), _owners)


def _owners(reply: list[bytes]) -> list[OwnerInfo]:
    found = []
    for name, entry in zip(reply[::2], reply[1::2], strict=True):
        about = owner_entry(entry)
        about.pop("token", None)  # tells process starts apart: nobody else's business
        about.pop("owner", None)  # the field's own name
        if about:
            found.append(OwnerInfo(text(name), about.pop("lease_ms"), about.pop("seen_ms"), about))
    return found


def owner_entries(keys: Keys, group: str) -> Call[list[dict[str, Any]]]:
    """What the group's owners entered about themselves, each with its name as ``owner``: HVALS is a right that every
    worker has. Anybody may have written there: what is read here is a hint, never a reason."""
    return Call(("HVALS", keys.owners(group)), _owner_entries)


def _owner_entries(reply: list[bytes]) -> list[dict[str, Any]]:
    return [entry for raw in reply if (entry := owner_entry(raw))]


def stream_info(keys: Keys) -> Call[StreamInfo]:
    return Call(("XINFO", "STREAM", keys.stream), _stream_info)


def _stream_info(reply: list[Any]) -> StreamInfo:
    row = _by_name(reply)
    first = row[b"first-entry"]
    last_id = text(row[b"last-generated-id"])
    return StreamInfo(row[b"length"], row[b"groups"], text(first[0]) if first else "", last_id)


def length(key: str) -> Call[int]:
    """How many entries a stream has."""
    return Call(("XLEN", key), int)


def entries(
    key: str, start: str = "-", end: str = "+", count: int = 100, *, newest_first: bool = False
) -> Call[list[tuple[bytes, list[bytes]]]]:
    """Entries as (id, fields). For the next page start (or, newest first, end) at "(" and the last id."""
    if newest_first:
        return Call(("XREVRANGE", key, end, start, "COUNT", count), _entries)
    return Call(("XRANGE", key, start, end, "COUNT", count), _entries)


def _entries(reply: list[Any]) -> list[tuple[bytes, list[bytes]]]:
    return [(id_, fields) for id_, fields in reply]


def delete(key: str, ids: Sequence[str]) -> Call[int]:
    """Delete entries of a stream; answers how many were there. For dead letters: purge."""
    return Call(("XDEL", key, *ids), int)


def remove(keys: Sequence[str]) -> Call[int]:
    """Delete whole keys, all in one slot. Answers how many there were."""
    return Call(("DEL", *keys), int)


def values(keys: Sequence[str]) -> Call[list[bytes | None]]:
    """The strings at some keys of one slot, None where there is none."""
    return Call(("MGET", *keys), list)


def type_of(key: str) -> Call[str]:
    return Call(("TYPE", key), text)


# ── server and connections ───────────────────────────────────────────────────────────────────────────


def server_ms() -> Call[int]:
    """The server's clock in ms."""
    return Call(("TIME",), _milliseconds)


def _milliseconds(reply: list[bytes]) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def info(section: str) -> Call[dict[str, str]]:
    """One section of INFO."""
    return Call(("INFO", section), parse_info)


def parse_info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text(reply).splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}


def config(name: str) -> Call[str | None]:
    """One setting of the server; None if it knows no such."""
    return Call(("CONFIG", "GET", name), _setting)


def appendfsync() -> Call[str | None]:
    """How the append-only file is written; "always" means that every answer is on disk."""
    return config("appendfsync")


def _setting(reply: list[bytes]) -> str | None:
    return text(reply[1]) if reply else None


def unblock(client_id: int) -> Call[bool]:
    """End another connection's blocked read: it answers as if its time was over. False: it did not block."""
    return Call(("CLIENT", "UNBLOCK", client_id), bool)


class Connection(NamedTuple):
    """A connection as the server sees it."""

    name: str  # "": none, or the right to give itself one is missing
    address: str


def connection(client_id: int) -> Call[Connection | None]:
    """Who has the connection of that id; None: nobody. After a restart the server gives the same numbers again."""
    return Call(("CLIENT", "LIST", "ID", client_id), _connection)


def _connection(reply: bytes) -> Connection | None:
    rows = _client_rows(reply)
    return Connection(text(rows[0].get(b"name", b"")), text(rows[0].get(b"addr", b""))) if rows else None


def kill(client_id: int, address: str) -> Call[int]:
    """Close another connection; answers 0 if there is none of that id and address."""
    return Call(("CLIENT", "KILL", "ID", client_id, "ADDR", address), int)


def still_connected(client_ids: Sequence[int], owner: str = "") -> Call[set[int]]:
    """Which of these connections the server still has. With an owner: of those that carry its name, or none.

    In a cluster every server has numbers of its own, and after a restart they begin anew: one of ours may be somebody
    else's there. Those without a name count, because the right to have one may be missing.
    """
    return Call(("CLIENT", "LIST", "ID", *client_ids), functools.partial(_client_ids, f":{owner}:".encode()))


def _client_ids(owner: bytes, reply: bytes) -> set[int]:
    rows = _client_rows(reply)
    return {int(row[b"id"]) for row in rows if owner in (b"::", b":") or not row.get(b"name") or owner in row[b"name"]}


def _client_rows(reply: bytes) -> list[dict[bytes, bytes]]:
    lines = (line for line in reply.splitlines() if line)
    return [{name: value for name, _, value in (word.partition(b"=") for word in line.split())} for line in lines]


def replicated(timeout_ms: int, replicas: int = 1) -> Call[bool]:
    """Wait until so many replicas have what this connection wrote. False: unknown."""
    return Call(("WAIT", replicas, timeout_ms), replicas.__le__)


def on_disk(timeout_ms: int) -> Call[bool]:
    """Wait until the append-only file has what this connection wrote (7.2+). False: unknown."""
    return Call(("WAITAOF", 1, 0, timeout_ms), _on_disk)


def _on_disk(reply: list[int]) -> bool:
    return reply[0] >= 1


def _by_name(row: list[Any]) -> dict[bytes, Any]:
    return dict(zip(row[::2], row[1::2], strict=True))
