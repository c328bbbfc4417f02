"""One connection to one server: :class:`Line` for the event loop, :class:`SyncLine` for threads.

A line greets (its name, its id, where asked for its role), sends packed commands and reads raw replies. It knows
nothing of calls, scripts or other servers: that is the link's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from headrace import points
from headrace.errors import MissingRight, Unavailable
from headrace.redis.faults import translate
from headrace.redis.talk import pack

_CLIENT_ID: Final = pack(("CLIENT", "ID"))
_ROLE: Final = pack(("ROLE",))


def greeting(name: str, *, role: bool) -> list[bytes]:
    """The first words on a connection: which number the server gave it, which name it has, what the server is."""
    return [_CLIENT_ID, pack(("CLIENT", "SETNAME", name)), *([_ROLE] if role else [])]


def greeted(replies: Sequence[Any]) -> int:
    """The connection's id, or 0 where the ACL forbids CLIENT: what needs the id is then done the slower way.

    Raises what the server said against us; a server that was asked for its role has to be a master.
    """
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(error := translate(reply), MissingRight):
            raise error
    client_id, _, *role = replies
    if role and isinstance(role[0], list) and role[0][0] != b"master":
        raise Unavailable("the server that the sentinels name as primary is a replica: a failover is under way")
    return client_id if isinstance(client_id, int) else 0


class Line:
    """An asyncio connection."""

    __slots__ = ("client_id", "connection", "loaded")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.client_id = 0
        self.loaded: set[str] = set()  # digests of scripts that were sent over it in full

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that the server has not closed, as far as can be told without asking."""
        if not self.connection.is_connected:
            return False
        reader = getattr(self.connection, "_reader", None)
        return reader is None or not (reader.at_eof() or reader.exception() is not None)

    async def connect(self, hello: list[bytes]) -> None:
        await self.connection.connect()
        if hello:
            self.client_id = greeted(await self.exchange(hello))

    async def exchange(self, packed: list[bytes], at_last: Callable[[], None] | None = None) -> list[Any]:
        """Send, and read as many replies as were sent; an error reply is an error object in its place.

        ``at_last`` is called when all have come but the last one.
        """
        if not packed:
            return []
        connection = self.connection
        await connection.send_packed_command(packed, check_health=False)
        points.reached("link.sent")
        replies: list[Any] = []
        last = len(packed) - 1 if at_last is not None else -1
        for at in range(len(packed)):
            if at == last and at_last is not None:
                at_last()
            try:
                replies.append(await connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies

    async def close(self) -> None:
        writer = getattr(self.connection, "_writer", None)
        await self.connection.disconnect(nowait=True)
        if writer is not None:
            writer.transport.abort()  # nothing is left to be said, and a TLS farewell would outlive the loop
            await asyncio.sleep(0)

    def abort(self) -> None:
        """Drop the connection without a word, as a crash would."""
        writer = getattr(self.connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()


class SyncLine:
    """The same for threads: blocking, not shared between threads."""

    __slots__ = ("client_id", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.client_id = 0

    @property
    def is_open(self) -> bool:
        if not self.connection.is_connected:
            return False
        try:
            # Nothing is on its way between two calls: something to read is the end, or an answer to nothing we asked.
            return not self.connection.can_read(0)
        except (RedisError, OSError):
            return False

    def connect(self, hello: list[bytes]) -> None:
        self.connection.connect()
        if hello:
            self.client_id = greeted(self.exchange(hello))

    def exchange(self, packed: list[bytes]) -> list[Any]:
        connection = self.connection
        if packed:
            connection.send_packed_command([b"".join(packed)], check_health=False)
            points.reached("thread.sent")
        replies: list[Any] = []
        for _ in packed:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies

    def close(self) -> None:
        self.connection.disconnect()
