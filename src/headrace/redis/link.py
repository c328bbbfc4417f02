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
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from headrace.errors import HeadraceError, Unavailable
from headrace.redis.calls import Call
from headrace.redis.faults import translate
from headrace.redis.line import Line
from headrace.redis.lines import Dial, Lines, is_plain, values
from headrace.redis.patience import Patience
from headrace.redis.talk import Ask, Failed, Pause, Route, Send, Step
from headrace.redis.topology import Node

T = TypeVar("T")
Result = TypeVar("Result")


class Link(Lines[Line]):
    """The asyncio link, of one user at a time; a lock keeps others waiting."""

    def __init__(self, dial: Dial, route: Route, **settings: Any) -> None:
        super().__init__(dial, route, **settings)
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Connect now, so that a bad URL, password or right is known at once."""
        async with self._lock:
            node = await self._drive(self._route.node(self._at or None), 0.0)
            (answer,) = await self._drive(_hand_over([Send(node, [], [])]), 0.0)
            if isinstance(answer, Failed):
                self._route.lost(node)
                raise answer.error

    async def call(self, call: Call[T], *, wait_ms: int = 0) -> T:
        """Send one call and return its value. ``wait_ms`` is how long the server itself may block on it."""
        (value,) = await self.pipe((call,), wait_ms=wait_ms)
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    async def pipe(self, calls: Sequence[Call[Any]], *, wait_ms: int = 0) -> list[Any]:
        """Send several calls, in one write to each server. A refused one is an error object in its place, the others
        have happened. Raises only if none was answered."""
        async with self._lock:
            send = self._plainly(calls)
            if send is None:
                return values(calls, await self._drive(self._talk(calls), wait_ms / 1000))
            answer = await self._send(send, wait_ms / 1000)
            if is_plain(answer):
                return [call.parse(reply) for call, reply in zip(calls, answer, strict=True)]
            return values(calls, await self._drive(self._talk(calls, (send, answer)), wait_ms / 1000))

    async def masters(self) -> tuple[Node, ...]:
        """All servers that hold keys; ``call.aimed(node)`` is sent to one of them."""
        async with self._lock:
            return await self._drive(self._route.masters(), 0.0)

    async def close(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await line.close()

    def abort(self) -> None:
        """Drop the connections without a word, as a crash would."""
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
        sending = False
        try:
            async with Patience(self._timeout_s + wait_s):
                line = self._lines.get(send.node)
                if line is None or not line.is_open:
                    line = await self._connect(send.node)
                for left in self._serves(send, line):
                    await self._drop(left)
                self.sent += len(send.packed)
                sending = bool(send.packed)
                return await line.exchange(send.packed)
        except BaseException as error:
            await self._drop(send.node)
            if isinstance(error, TimeoutError):
                late = f"no answer within {self._timeout_s + wait_s:.1f} s: what was sent may or may not have happened"
                return Failed(Unavailable(late), sending)
            if isinstance(error, (RedisError, OSError, HeadraceError)):
                return Failed(translate(error) if sending else await self._explained(send.node, error), sending)
            raise

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
            async with asyncio.timeout(ask.within_s or self._timeout_s):
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


def _hand_over(sends: list[Send]) -> Generator[Step, Any, list[Any]]:
    """A conversation of one step."""
    answers: list[Any] = yield sends
    return answers
