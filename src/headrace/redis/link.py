"""The link: what calls are sent over by the event loop. Threads have :class:`SyncLink`.

It drives the conversations of talk.py: connect with the first call, send packed calls to the server that holds their
keys, load a script a server does not know, follow a slot or a primary that has moved, and drop a connection on any
doubt about where in the reply stream it stands. No call that may have happened is re-sent behind the caller's back: a
cut reply raises Unavailable, and the caller knows what may be repeated.

A link that serves one stream (``at``) has one connection, which follows the stream; any other has a connection to each
server that it needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from headrace.errors import HeadraceError, Unavailable
from headrace.redis.calls import Call
from headrace.redis.faults import translate
from headrace.redis.line import Line
from headrace.redis.lines import Dial, Lines, is_plain, values
from headrace.redis.patience import Patience
from headrace.redis.talk import Ask, Failed, Pause, Route, Send, Step, opening, pack
from headrace.redis.topology import Node

DOUBT_S: Final = 1.0  # without an answer for so long: is this still the server to wait for?

T = TypeVar("T")
Result = TypeVar("Result")


class Link(Lines[Line]):
    """The asyncio link, of one user at a time; a lock keeps others waiting."""

    def __init__(self, dial: Dial, route: Route, **settings: Any) -> None:
        super().__init__(dial, route, **settings)
        self._lock = asyncio.Lock()
        self._doubting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect now, so that a bad URL, password or right is known at once."""
        async with self._lock:
            await self._drive(opening(self._route, self._at or None), 0.0)

    async def call(self, call: Call[T], *, wait_ms: int = 0) -> T:
        """Send one call and return its value. ``wait_ms`` is how long the server itself may block on it."""
        (value,) = await self.pipe((call,), wait_ms=wait_ms)
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    async def pipe(self, calls: Sequence[Call[Any]], *, wait_ms: int = 0) -> list[Any]:
        """Send several calls, in one write to each server. A refused one is an error object in its place, the others
        have happened. Raises only if none was answered. ``wait_ms``: how long the server may block on the last one."""
        async with self._lock:
            send = self._plainly(calls, blocks=wait_ms > 0)
            if send is None:
                return values(calls, await self._drive(self._talk(calls, blocks=wait_ms > 0), wait_ms / 1000))
            answer = await self._send(send, wait_ms / 1000)
            if is_plain(answer):
                return [call.parse(reply) for call, reply in zip(calls, answer, strict=True)]
            talk = self._talk(calls, (send, answer), blocks=wait_ms > 0)
            return values(calls, await self._drive(talk, wait_ms / 1000))

    async def masters(self) -> tuple[Node, ...]:
        """All servers that hold keys; ``call.aimed(node)`` is sent to one of them."""
        async with self._lock:
            return await self._drive(self._route.masters(), 0.0)

    async def close(self) -> None:
        if self._doubting is not None:
            self._doubting.cancel()
            await asyncio.gather(self._doubting, return_exceptions=True)
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.close()

    def abort(self) -> None:
        """Drop the connections without a word, as a crash would."""
        if self._doubting is not None:
            self._doubting.cancel()
        for line in self._lines.values():
            line.abort()

    async def _drive(self, steps: Generator[Step, Any, Result], wait_s: float) -> Result:
        """Do what a conversation asks for, and tell it what came of it, until it ends."""
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._do(step, wait_s))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def _do(self, step: Step, wait_s: float) -> Any:
        if isinstance(step, list):
            if len(step) == 1:
                return [await self._send(step[0], wait_s)]
            return list(await asyncio.gather(*(self._send(send, wait_s) for send in step)))
        if isinstance(step, Ask):
            return await self._ask(step)
        assert isinstance(step, Pause)
        await asyncio.sleep(step.seconds)
        return None

    async def _send(self, send: Send, wait_s: float) -> list[Any] | Failed:
        """Connect if needed, send, read as many replies as were sent; any failure on the way drops the connection."""
        sending, patience = False, Patience(self._timeout_s)
        if self._route.moves and not (send.passing or send.aimed):
            patience.is_replaced = self._replaced(send.node, patience)
        try:
            async with patience:
                line = self._lines.get(send.node)
                if line is None or not line.is_open:
                    line = await self._connect(send.node)
                for left in self._serves(send, line):
                    await self._drop(left)
                self.sent += len(send.packed)
                sending = bool(send.packed)
                if not wait_s:
                    return await line.exchange(send.packed)
                return await _unhindered(line, send, lambda: patience.extend(wait_s))
        except BaseException as error:
            await self._drop(send.node)
            if isinstance(error, TimeoutError):
                if patience.replaced:
                    late = f"another server has taken over from {send.node}: what was sent may or may not have happened"
                    return Failed(Unavailable(late), sending)
                late = f"no answer within {patience.seconds:.1f} s: what was sent may or may not have happened"
                return Failed(Unavailable(late), sending)
            if isinstance(error, (RedisError, OSError, HeadraceError)):
                return Failed(translate(error) if sending else await self._explained(send.node, error), sending)
            raise

    def _replaced(self, node: Node, patience: Patience) -> Callable[[], bool]:
        """What tells whether somebody has taken over from a node; long without an answer, it asks the others that."""
        doubt_at = time.monotonic() + DOUBT_S - self._timeout_s

        def replaced() -> bool:
            nonlocal doubt_at
            if not self._route.serves(node):
                return True
            if time.monotonic() >= doubt_at + patience.seconds:  # it may take so much longer where the server blocks
                doubt_at += DOUBT_S
                self._doubt(node)
            return False

        return replaced

    def _doubt(self, node: Node) -> None:
        if self._doubting is None or self._doubting.done():
            self._route.doubted(node)
            self._doubting = asyncio.get_running_loop().create_task(self._look_again(), name="headrace route")

    async def _look_again(self) -> None:
        with contextlib.suppress(HeadraceError):
            await self._drive(self._route.node(None), 0.0)

    async def _explained(self, node: Node, error: Exception) -> HeadraceError:
        """What it means that there is no connection."""
        if self._explain is None:
            return translate(error)
        return await asyncio.to_thread(self._explain, node, error)

    async def _connect(self, node: Node) -> Line:
        await self._drop(node)
        line = self._lines[node] = Line(self._dial(node))
        await line.connect(self._hello)
        self._begun()
        return line

    async def _ask(self, ask: Ask) -> list[Any] | HeadraceError:
        line = Line(self._dial(ask.node, sentinel=ask.sentinel))
        try:
            async with asyncio.timeout(min(ask.within_s or self._timeout_s, self._timeout_s)):
                await line.connect([])
                return await line.exchange(ask.packed)
        except TimeoutError:
            return Unavailable(f"{ask.node} gave no answer in time")
        except (RedisError, OSError) as error:
            return translate(error) if ask.sentinel else await self._explained(ask.node, error)
        finally:
            await line.close()

    async def _drop(self, node: Node) -> None:
        line = self._lines.pop(node, None)
        if line is not None:
            await line.close()


async def _unhindered(line: Line, send: Send, at_last: Callable[[], None]) -> list[Any]:
    """Exchange what the server may block on. A script that it did not know would be heard of only after that, so each
    one ahead of it goes over a connection in full once."""
    unknown = [script for script in send.ahead if script.sha not in line.loaded]
    loads = [pack(("SCRIPT", "LOAD", script.text)) for script in unknown]
    replies = await line.exchange([*loads, *send.packed] if loads else send.packed, at_last)
    line.loaded.update(script.sha for script in unknown)  # who may not load one is told so by the call itself
    return replies[len(loads) :] if loads else replies
