"""A stream, a group and a connection that sends calls as production does, for tests of single scripts.

Ages are set with XCLAIM ... IDLE instead of waiting for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.names import keys_of, waiting_group
from headrace.redis import commands
from headrace.redis.calls import Call, Entry, Wire, as_is
from headrace.redis.connect import Server as Address
from headrace.redis.replies import PendingRow
from headrace.redis.synclink import SyncLink
from tests.support.servers import Server

T = TypeVar("T")
Pair = tuple[bytes, int]


class Lab:
    """What a test of one script needs. Owners are "me" and whatever else a test calls them."""

    def __init__(self, server: Server, stream: str, group: str = "billing") -> None:
        self.server = server
        self.keys = keys_of(stream)
        self.group = group
        self.waiting = waiting_group(group)
        self._address = Address(server.url)
        self.link = self.dial()

    def dial(self) -> SyncLink:
        """One more connection, for a test that needs several takers."""
        return self._address.sync_link("lab", timeout_ms=30_000)

    def close(self) -> None:
        self.link.close()

    # ── sending ──

    def call(self, call: Call[T]) -> T:
        return self.link.call(call)

    def raw(self, *words: Wire) -> Any:
        """A plain command, answered as the server sent it."""
        return self.link.call(Call(words, as_is))

    # ── setting up ──

    def add(self, count: int = 1, fields: Sequence[Wire] = ("payload", "{}")) -> list[bytes]:
        """Append messages, making the group first."""
        self.make_group()
        calls: list[Call[Any]] = [Call(("XADD", self.keys.stream, "*", *fields), as_is) for _ in range(count)]
        return [id_ for at in range(0, count, 1000) for id_ in self.link.pipe(calls[at : at + 1000])]

    def make_group(self, group: str | None = None, start: str = "0") -> None:
        self.link.pipe([commands.create_group(self.keys, group or self.group, start)])

    def read(self, owner: str = "me", count: int = 10_000, group: str | None = None) -> list[Entry]:
        return self.call(commands.read(self.keys, group or self.group, owner, count))

    def held(self, count: int = 1, owner: str = "me", fields: Sequence[Wire] = ("payload", "{}")) -> list[Pair]:
        """Fresh deliveries in the hands of an owner, as (id, count)."""
        self.add(count, fields)
        return [(id_, attempt) for id_, _, attempt, _ in self.read(owner, count)]

    def age(self, ids: Sequence[bytes], idle_ms: int, owner: str = "me", group: str | None = None) -> None:
        """Make deliveries look idle for so long, with owner and count as they are."""
        for at in range(0, len(ids), 1000):
            chunk = ids[at : at + 1000]
            to = (self.keys.stream, group or self.group, owner)
            self.raw("XCLAIM", *to, 0, *chunk, "IDLE", idle_ms, "JUSTID")

    def steal(self, id_: bytes, owner: str = "thief") -> None:
        """What a rescue does: another owner, count + 1."""
        self.raw("XCLAIM", self.keys.stream, self.group, owner, 0, id_)

    def trim(self, *ids: bytes) -> None:
        self.raw("XDEL", self.keys.stream, *ids)

    # ── looking ──

    def rows(self, group: str | None = None, count: int = 100_000) -> list[PendingRow]:
        return self.call(commands.pending_rows(self.keys, group or self.group, count))

    def pending(self) -> dict[bytes, tuple[str, int]]:
        """id -> (owner, count) in the group's pending list."""
        return {row.id.encode(): (row.owner, row.count) for row in self.rows()}

    def waits(self) -> dict[bytes, tuple[str, int]]:
        """id -> (mark, count) in the waiting group's pending list."""
        names = [info.name for info in self.call(commands.groups(self.keys))]
        if self.waiting not in names:
            return {}
        return {row.id.encode(): (row.owner, row.count) for row in self.rows(self.waiting)}

    def due_set(self) -> dict[bytes, int]:
        flat = self.raw("ZRANGE", self.keys.due(self.group), 0, -1, "WITHSCORES")
        return {id_: int(score) for id_, score in zip(flat[::2], flat[1::2], strict=True)}

    def ids(self, key: str | None = None) -> list[bytes]:
        return [id_ for id_, _ in self.call(commands.entries(key or self.keys.stream, count=100_000))]

    def letters(self) -> list[tuple[bytes, list[bytes]]]:
        return self.call(commands.entries(self.keys.dead_letters, count=100_000))

    def now_ms(self) -> int:
        return self.call(commands.server_ms())

    def at_once(self, takers: int, take: Callable[[int, SyncLink], T]) -> list[T]:
        """Run a function in several threads, each with its own connection, and give the results."""
        links, results = [self.dial() for _ in range(takers)], {}
        gate = threading.Barrier(takers)

        def work(taker: int) -> None:
            gate.wait()
            results[taker] = take(taker, links[taker])

        threads = [threading.Thread(target=work, args=(taker,)) for taker in range(takers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for link in links:
            link.close()
        return [results[taker] for taker in range(takers)]

    @contextmanager
    def without(self, command: str) -> Iterator[SyncLink]:
        """A connection of a user who may do everything but this."""
        user = f"without-{command}"
        self.raw("ACL", "SETUSER", user, "on", ">lab", "~*", "+@all", f"-{command}")
        link = Address(self.server.url.replace("://", f"://{user}:lab@")).sync_link("lab", timeout_ms=30_000)
        try:
            yield link
        finally:
            link.close()
            self.raw("ACL", "DELUSER", user)

    @contextmanager
    def memory_full(self) -> Iterator[None]:
        """Inside, the server has reached maxmemory and evicts nothing."""
        self.raw("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.raw("CONFIG", "SET", "maxmemory", 1)
        try:
            yield
        finally:
            self.raw("CONFIG", "SET", "maxmemory", 0)
