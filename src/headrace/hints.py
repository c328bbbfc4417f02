"""Keyspace hints: a key has expired, so somebody may have died. A hint, never an authority (DESIGN 3, SPEC 21, 50).

Expired events are told by the master that held the key, to whoever listens there, once, and late under load. So each
owner listens to one master, the same one whoever computes it, and owners together cover all of them; what nobody heard
is found by the next scan. Events that are switched off, or not allowed, cost nothing but a line in the debug log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.errors import HeadraceError, MissingRight, Verdict, classify
from headrace.policy import reconnect_delay_ms
from headrace.redis import commands
from headrace.redis.connect import Server
from headrace.redis.link import Link
from headrace.redis.topology import Node, chosen

log = logging.getLogger("headrace")

LOOK_S: Final = 30.0  # how often it is looked whether this owner's master is still one, and events are on
SETTING: Final = "notify-keyspace-events"


class Hints:
    """Calls ``on_expired(key)`` on the event loop for keys that expired at this owner's master.

    Starting twice, stopping twice and stopping before starting are fine.
    """

    def __init__(self, server: Server, owner: str, on_expired: Callable[[str], None]) -> None:
        self._server = server
        self._owner = owner
        self._on_expired = on_expired
        self._task: asyncio.Task[None] | None = None
        self._afresh = asyncio.Event()
        self._said = ""
        self.node: Node | None = None  # the master that is listened to; None while there is none

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="headrace hints")
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing is missed without hints, only later: the work goes on, and the mistake is told."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("hints.failed owner=%s: they stay off", self._owner, exc_info=error)

    def reset_topology(self) -> None:
        """Read the map of the cluster again, and listen to the master that is this owner's now (SPEC 50)."""
        self._server.reset_topology()
        self._afresh.set()

    async def _run(self) -> None:
        link, tries = self._server.link(f"headrace:{self._owner}:hints"), 0
        try:
            while True:
                self._afresh.clear()
                try:
                    await self._listen(link)
                    tries = 0
                except HeadraceError as error:
                    self._say(str(error))
                    wait_s = reconnect_delay_ms(tries, random.random(), may_move=link.may_move) / 1000
                    tries += 1
                    await self._pause(LOOK_S if classify(error) is Verdict.FATAL else wait_s)
                finally:
                    self.node = None
        finally:
            await link.close()

    async def _listen(self, link: Link) -> None:
        """Listen until the master is another owner's, or somebody asks to look again."""
        node = chosen(self._owner, await link.masters())
        if node is None or not await self._are_told(link, node):
            await self._pause(LOOK_S)
            return
        channel = f"__keyevent@{self._server.endpoint.db}__:expired"
        heard = self._server.listening(node, channel, f"headrace:{self._owner}:hints")
        try:
            await heard.open()
            self.node = node
            self._said = ""
            await self._forward(heard.message, link, node)
        finally:
            await heard.close()

    async def _forward(self, message: Callable[[], Awaitable[bytes]], link: Link, node: Node) -> None:
        reading = asyncio.ensure_future(_read(message, self._on_expired))
        afresh = asyncio.ensure_future(self._afresh.wait())
        try:
            while not afresh.done() and chosen(self._owner, await link.masters()) == node:
                await asyncio.wait({reading, afresh}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()  # raises what ended it
        finally:
            reading.cancel()
            afresh.cancel()
            await asyncio.gather(reading, afresh, return_exceptions=True)

    async def _are_told(self, link: Link, node: Node) -> bool:
        """Whether the master tells of expired keys. Where CONFIG is forbidden nobody knows, and listening is cheap."""
        try:
            flags = await link.call(commands.config(SETTING).aimed(node)) or ""
        except MissingRight:
            return True
        if "E" in flags and ("x" in flags or "A" in flags):
            return True
        self._say(f"{node} does not tell of expired keys ({SETTING} is {flags!r}): nothing is missed, only later")
        return False

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for of 3.11 swallows a stop that comes with the event
                await self._afresh.wait()

    def _say(self, why: str) -> None:
        """Once, until something changes: correctness never depends on a hint."""
        if why != self._said:
            self._said = why
            log.debug("hints.off owner=%s: %s", self._owner, why)


async def _read(message: Callable[[], Awaitable[bytes]], tell: Callable[[str], None]) -> None:
    while True:
        tell((await message()).decode("utf-8", "backslashreplace"))
