"""What one server publishes, read as it comes. Lost on the way is lost: nobody sends it again."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from redis.exceptions import RedisError

from headrace.errors import Unavailable
from headrace.redis.faults import translate
from headrace.redis.line import Line, greeting
from headrace.redis.talk import pack

PING_S: Final = 5.0
SILENT_S: Final = 15.0  # a connection that answers no ping for so long is dead
_PING: Final = pack(("PING",))


class Subscription:
    """One connection that listens to a pattern of channels. Used by one task; ``close`` ends it."""

    def __init__(self, line: Line, pattern: str, name: str) -> None:
        self._line = line
        self._pattern = pattern
        self._name = name
        self._heard_at = 0.0
        self._pings: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and subscribe. Raises what the server says against it: MissingRight, Unavailable, AuthFailed."""
        try:
            async with asyncio.timeout(PING_S):
                await self._line.connect(greeting(self._name, role=False))
                (said,) = await self._line.exchange([pack(("PSUBSCRIBE", self._pattern))])
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise translate(error) from error
        if isinstance(said, Exception):
            raise translate(said)
        self._heard_at = time.monotonic()
        self._pings = asyncio.get_running_loop().create_task(self._keep_alive(), name="headrace subscription")

    async def message(self) -> bytes:
        """The next message. Raises Unavailable when the connection is gone."""
        while True:
            try:
                said: Any = await self._line.connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                raise translate(error) from error
            self._heard_at = time.monotonic()
            if not isinstance(said, list):
                raise Unavailable("the server speaks of something else than what was subscribed to")
            if said[0] == b"pmessage":
                return bytes(said[3])

    async def close(self) -> None:
        if self._pings is not None:
            self._pings.cancel()
            await asyncio.gather(self._pings, return_exceptions=True)
        await self._line.close()

    async def _keep_alive(self) -> None:
        """Without it a server that vanished without a word would never be missed."""
        while time.monotonic() - self._heard_at < SILENT_S:
            await asyncio.sleep(PING_S)
            await self._line.connection.send_packed_command([_PING], check_health=False)
        self._line.abort()
