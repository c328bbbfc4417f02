"""One dedicated connection that calls are sent over: :class:`Link` for the event loop, :class:`SyncLink` for threads.

Both do the same: connect with the first call, send packed calls, read raw replies, load a script the server does not
know (NOSCRIPT) and send it again, and drop the connection on any doubt about where in the reply stream it stands. No
call is re-sent behind the caller's back: a cut reply raises Unavailable, and the caller knows what may be repeated.

``epoch`` counts connects and ``connected_at`` (monotonic seconds) says when, for the rule that nobody rescues right
after a reconnect (SPEC 20). ``client_id`` is the server's name for the connection: CLIENT UNBLOCK, LIST, KILL use it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis
from redis.exceptions import RedisError, ResponseError

from headrace import points
from headrace.errors import HeadraceError, MissingRight, NoScript, Unavailable
from headrace.redis.calls import Call, Script, Wire
from headrace.redis.faults import translate

T = TypeVar("T")

_pack: Callable[[tuple[Wire, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub says 1-tuple
_CLIENT_ID = _pack(("CLIENT", "ID"))
_COMMAND = re.compile(r"redis\.p?call\('([A-Z]+)'|\{'(X[A-Z]+)'")


def _packed(call: Call[Any]) -> bytes:
    if call.script is None:
        return _pack(call.words)
    return _pack(("EVALSHA", call.script.sha, *call.words))


def _loading(call: Call[Any]) -> bytes:
    assert call.script is not None
    return _pack(("SCRIPT", "LOAD", call.script.text))


def _read(call: Call[T], reply: Any) -> T | HeadraceError:
    """Turn one raw reply into the call's value, or into the error it stands for."""
    if isinstance(reply, Exception):
        error = translate(reply)
        return _named(error, call.script) if isinstance(error, MissingRight) and call.script is not None else error
    return call.parse(reply)


def _named(error: MissingRight, script: Script) -> MissingRight:
    """Servers before 7.0 do not say which command of a script is forbidden: name those it uses."""
    if error.command:
        return error
    used = sorted({first or second for first, second in _COMMAND.findall(script.text)})
    return MissingRight(f"{error} (script {script.name} uses {', '.join(used)})", command=" ".join(used), key=error.key)


class Link:
    """An asyncio connection of one user at a time; a lock keeps others waiting."""

    def __init__(self, dial: Callable[[], Any], *, name: str, timeout_ms: int) -> None:
        self._dial = dial
        self._hello = [_CLIENT_ID, _pack(("CLIENT", "SETNAME", name))]
        self._timeout_s = timeout_ms / 1000
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self.epoch = 0
        self.connected_at = 0.0
        self.client_id = 0
        self.sent = 0  # commands sent, for the bench and the tests

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that the server has not closed, as far as can be told without asking."""
        connection = self._connection
        if connection is None or not connection.is_connected:
            return False
        reader = getattr(connection, "_reader", None)
        return reader is None or not (reader.at_eof() or reader.exception() is not None)

    async def open(self) -> None:
        """Connect now, so that a bad URL, password or right is known at once."""
        async with self._lock:
            await self._guarded([], 0.0)

    async def call(self, call: Call[T], *, wait_ms: int = 0) -> T:
        """Send one call and return its value. ``wait_ms`` is how long the server itself may block on it."""
        (value,) = await self.pipe((call,), wait_ms=wait_ms)
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    async def pipe(self, calls: Sequence[Call[Any]], *, wait_ms: int = 0) -> list[Any]:
        """Send several calls in one write. A refused one is an error object in its place, the others have happened."""
        async with self._lock:
            replies = await self._guarded([_packed(call) for call in calls], wait_ms / 1000)
            values = [_read(call, reply) for call, reply in zip(calls, replies, strict=True)]
            for at, value in enumerate(values):
                if isinstance(value, NoScript):
                    again = await self._guarded([_loading(calls[at]), _packed(calls[at])], wait_ms / 1000)
                    values[at] = _read(calls[at], again[1])
            return values

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            writer = getattr(connection, "_writer", None)
            await connection.disconnect(nowait=True)
            if writer is not None:
                writer.transport.abort()  # nothing is left to be said, and a TLS farewell would outlive the loop
                await asyncio.sleep(0)

    def abort(self) -> None:
        """Drop the connection without a word, as a crash would."""
        writer = getattr(self._connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _guarded(self, packed: list[bytes], wait_s: float) -> list[Any]:
        """Connect if needed, send, read as many replies as were sent; any failure on the way drops the connection."""
        try:
            async with asyncio.timeout(self._timeout_s + wait_s):
                if not self.is_open:
                    await self._connect()
                return await self._exchange(packed)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"no answer within {self._timeout_s + wait_s:.1f} s: what was sent may or may not have happened"
                ) from error
            if isinstance(error, (RedisError, OSError)):
                raise translate(error) from error
            raise

    async def _connect(self) -> None:
        await self.close()
        self._connection = self._dial()
        await self._connection.connect()
        self.client_id = _greeted(*await self._exchange(self._hello))
        self.epoch += 1
        self.connected_at = time.monotonic()

    async def _exchange(self, packed: list[bytes]) -> list[Any]:
        if not packed:
            return []
        connection = self._connection
        self.sent += len(packed)
        await connection.send_packed_command(packed, check_health=False)
        points.reached("link.sent")
        replies: list[Any] = []
        for _ in packed:
            try:
                replies.append(await connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies


class SyncLink:
    """The same for threads: blocking, not shared between threads."""

    def __init__(self, dial: Callable[[], Any], *, name: str, timeout_ms: int) -> None:
        self._dial = dial
        self._hello = [_CLIENT_ID, _pack(("CLIENT", "SETNAME", name))]
        self._timeout_s = timeout_ms / 1000
        self._connection: Any = None
        self.epoch = 0
        self.connected_at = 0.0
        self.client_id = 0

    @property
    def is_open(self) -> bool:
        if self._connection is None or not self._connection.is_connected:
            return False
        try:
            # Nothing is on its way between two calls: something to read is the end, or an answer to nothing we asked.
            return not self._connection.can_read(0)
        except (RedisError, OSError):
            return False

    def open(self) -> None:
        self._guarded([])

    def call(self, call: Call[T]) -> T:
        (value,) = self.pipe((call,))
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    def pipe(self, calls: Sequence[Call[Any]]) -> list[Any]:
        replies = self._guarded([_packed(call) for call in calls])
        values = [_read(call, reply) for call, reply in zip(calls, replies, strict=True)]
        for at, value in enumerate(values):
            if isinstance(value, NoScript):
                values[at] = _read(calls[at], self._guarded([_loading(calls[at]), _packed(calls[at])])[1])
        return values

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _guarded(self, packed: list[bytes]) -> list[Any]:
        try:
            if not self.is_open:
                self._connect()
            return self._exchange(packed)
        except BaseException as error:
            self.close()
            if isinstance(error, (RedisError, OSError)):
                raise translate(error) from error
            raise

    def _connect(self) -> None:
        self.close()
        self._connection = self._dial()
        self._connection.connect()
        self.client_id = _greeted(*self._exchange(self._hello))
        self.epoch += 1
        self.connected_at = time.monotonic()

    def _exchange(self, packed: list[bytes]) -> list[Any]:
        connection = self._connection
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


def _greeted(client_id: Any, named: Any) -> int:
    """The connection's id, or 0 where the ACL forbids CLIENT: what needs the id is then done the slower way."""
    for reply in (client_id, named):
        if isinstance(reply, Exception) and not isinstance(error := translate(reply), MissingRight):
            raise error
    return client_id if isinstance(client_id, int) else 0
