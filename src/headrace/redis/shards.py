"""Something for each shard: what waits for a server that is away must not hold up what is at another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from headrace.errors import Unavailable
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.gather import Gather
from headrace.redis.link import Link
from headrace.redis.topology import Node

T = TypeVar("T")


class Shards(Generic[T]):
    """One of a kind for each master of a cluster, made when it is first needed; elsewhere one for everything.

    Slots move and masters change, so whoever keeps something in one of them looks again where it belongs now and then;
    until it does, calls find their way all the same.
    """

    def __init__(self, server: Server, make: Callable[[], T]) -> None:
        self._server = server
        self._make = make
        self._made: dict[Node | None, T] = {}

    def at(self, key: bytes | str | float) -> T:
        """The one of the master that serves a key, as far as is known."""
        place = self._server.place(key)
        found = self._made.get(place)
        if found is None:
            found = self._made[place] = self._make()
        return found

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._made.values()))  # a thread may look while another is made


class Spread:
    """A gather for each shard, for calls that each name their key."""

    def __init__(self, server: Server, name: str) -> None:
        self._gathers = Shards(server, lambda: Gather(server.link(name)))
        self._closed = False

    async def call(self, call: Call[T]) -> T:
        if self._closed:
            raise Unavailable("this worker has ended: its connections are closed")
        key: Any = call.key
        return await self._gathers.at(key).call(call)

    @property
    def links(self) -> list[Link]:
        return [gather.link for gather in self._gathers]

    async def close(self) -> None:
        """Give up what has no answer, and close the links."""
        self._closed = True
        for gather in self._gathers:
            await gather.close()
