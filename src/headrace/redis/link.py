"""What calls are sent over: :class:`Link` for the event loop, :class:`SyncLink` for threads.

Both drive the conversations of talk.py: connect with the first call, send packed calls to the server that holds their
keys, load a script a server does not know, follow a slot or a primary that has moved, and drop a connection on any
doubt about where in the reply stream it stands. No call that may have happened is re-sent behind the caller's back: a
cut reply raises Unavailable, and the caller knows what may be repeated.

A link that serves one stream (``at``) has one connection, which follows the stream; any other has a connection to each
server that it needs. ``epoch`` counts connects and moves, and ``connected_at`` (monotonic seconds) says when the last
one was, for the rule that nobody rescues right after it (SPEC 20). ``client_id`` is the server's name for the
connection: CLIENT UNBLOCK, LIST, KILL use it, at the server ``node``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from redis.exceptions import RedisError

from headrace.errors import HeadraceError, MissingRight, Unavailable
from headrace.redis.calls import Call, Script
from headrace.redis.faults import translate
from headrace.redis.line import Line, SyncLine, greeting
from headrace.redis.talk import Ask, Failed, Pause, Route, Send, Step, packed, talk
from headrace.redis.topology import Node

T = TypeVar("T")
Result = TypeVar("Result")

_COMMAND = re.compile(r"redis\.p?call\('([A-Z]+)'|\{'(X[A-Z]+)'|command == '([A-Z]+)'")


class Dial(Protocol):
    """Makes (and does not open) a connection of redis-py to a node."""

    def __call__(self, node: Node, *, sentinel: bool = False) -> Any: ...


Explain = Callable[[Node, Exception], HeadraceError]
"""What it means that a connection to a node ended before its first answer. May ask the server, and blocks then."""


def _read(call: Call[T], reply: Any) -> T | HeadraceError:
    """Turn one raw reply into the call's value, or into the error it stands for."""
    if isinstance(reply, Failed):
        return reply.error
    if isinstance(reply, Exception):
        error = translate(reply)
        return _named(error, call.script) if isinstance(error, MissingRight) and call.script is not None else error
    return call.parse(reply)


def _values(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
    """One value for each call. Raises if none of them was answered."""
    if replies and all(isinstance(reply, Failed) for reply in replies):
        raise replies[0].error
    return [_read(call, reply) for call, reply in zip(calls, replies, strict=True)]


def _is_plain(answer: list[Any] | Failed) -> TypeGuard[list[Any]]:
    return type(answer) is list and not any(isinstance(reply, Exception) for reply in answer)


def _named(error: MissingRight, script: Script) -> MissingRight:
    """Servers before 7.0 do not say which command of a script is forbidden: name those it uses."""
    if error.command:
        return error
    used = sorted({name for found in _COMMAND.findall(script.text) for name in found if name})
    return MissingRight(f"{error} (script {script.name} uses {', '.join(used)})", command=" ".join(used), key=error.key)


AnyLine = TypeVar("AnyLine", Line, SyncLine)


class _Lines(Generic[AnyLine]):
    """The connections of a link, by node; what both kinds of links know about themselves."""

    def __init__(
        self,
        dial: Dial,
        route: Route,
        *,
        name: str,
        timeout_ms: int,
        at: str = "",
        explain: Explain | None = None,
    ) -> None:
        self._dial = dial
        self._route = route
        self._explain = explain  # where there may be more to say than that it is away
        self._at = at
        self._one = at != "" or not route.spreads  # one server at a time is enough
        self.name = name  # of its connections, as CLIENT LIST shows it
        self._hello = greeting(name, role=route.asks_role)
        self._timeout_s = timeout_ms / 1000
        self._lines: dict[Node, AnyLine] = {}
        self.node: Node | None = None  # where the last call went
        self.epoch = 0
        self.connected_at = 0.0
        self.client_id = 0  # also when the connection is gone: the server may still have it
        self.sent = 0  # commands sent, for the bench and the tests

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that the server has not closed, as far as can be told without asking."""
        line = self._line
        return line is not None and line.is_open

    @property
    def client_ids(self) -> list[int]:
        """The ids of all its connections, each at its own server."""
        return [line.client_id for line in list(self._lines.values()) if line.client_id]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The servers it has connections to."""
        return tuple(self._lines)

    @property
    def spreads(self) -> bool:
        """Whether keys are on several servers, and one call may not name keys of two slots."""
        return self._route.spreads

    @property
    def may_move(self) -> bool:
        """Whether another server may take over, so that it is worth looking for it every moment."""
        return self._route.moves

    def _talk(
        self, calls: Sequence[Call[Any]], begun: tuple[Send, list[Any] | Failed] | None = None
    ) -> Generator[Step, Any, list[Any]]:
        """A conversation that waits no longer than an answer may take."""
        return talk(calls, self._route, self._at, begun, patience_s=self._timeout_s)

    @property
    def _line(self) -> AnyLine | None:
        return None if self.node is None else self._lines.get(self.node)

    def _plainly(self, calls: Sequence[Call[Any]]) -> Send | None:
        """The one write that is nearly always all there is. None: several servers, or nobody knows which."""
        if not self._one or any(call.at is not None for call in calls):
            return None
        node = self._route.settled(self._at)
        if node is None:
            return None
        return Send(node, [packed(call) for call in calls], list(range(len(calls))))

    def _begun(self) -> None:
        """There is a new connection, or another server: whoever counts on the leases' clock has to wait."""
        self.epoch += 1
        self.connected_at = time.monotonic()

    def _serves(self, send: Send, line: AnyLine) -> list[Node]:
        """Note where the calls go now. Answers the servers that are of no use any more because the stream has moved."""
        if send.passing:
            return []
        self.client_id = line.client_id
        if send.node == self.node:
            return []
        moved = self._one and self.node is not None
        self.node = send.node
        if not moved:
            return []
        self._begun()
        return [node for node in self._lines if node != send.node]


class Link(_Lines[Line]):
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
                return _values(calls, await self._drive(self._talk(calls), wait_ms / 1000))
            answer = await self._send(send, wait_ms / 1000)
            if _is_plain(answer):
                return [call.parse(reply) for call, reply in zip(calls, answer, strict=True)]
            return _values(calls, await self._drive(self._talk(calls, (send, answer)), wait_ms / 1000))

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
            async with asyncio.timeout(self._timeout_s + wait_s):
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


class SyncLink(_Lines[SyncLine]):
    """The same for threads: blocking, not shared between threads."""

    def open(self) -> None:
        node = self._drive(self._route.node(self._at or None))
        answer = self._send(Send(node, [], []))
        if isinstance(answer, Failed):
            self._route.lost(node)
            raise answer.error

    def call(self, call: Call[T]) -> T:
        (value,) = self.pipe((call,))
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    def pipe(self, calls: Sequence[Call[Any]]) -> list[Any]:
        send = self._plainly(calls)
        if send is None:
            return _values(calls, self._drive(self._talk(calls)))
        answer = self._send(send)
        if _is_plain(answer):
            return [call.parse(reply) for call, reply in zip(calls, answer, strict=True)]
        return _values(calls, self._drive(self._talk(calls, (send, answer))))

    def masters(self) -> tuple[Node, ...]:
        return self._drive(self._route.masters())

    def close(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            line.close()

    def ready(self, key: Any) -> Any:
        """The open connection of redis-py to the server that holds a key, for who reads its socket (spark/wire.py)."""
        node = self._drive(self._route.node(self._at or key))
        answer = self._send(Send(node, [], []))
        if isinstance(answer, Failed):
            self._route.lost(node)
            raise answer.error
        return self._lines[node].connection

    def _drive(self, steps: Generator[Step, Any, Result]) -> Result:
        try:
            step = next(steps)
            while True:
                step = steps.send(self._do(step))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    def _do(self, step: Step) -> Any:
        if isinstance(step, list):
            return [self._send(send) for send in step]
        if isinstance(step, Ask):
            return self._ask(step)
        time.sleep(step.seconds)
        return None

    def _send(self, send: Send) -> list[Any] | Failed:
        sending = False
        try:
            line = self._lines.get(send.node)
            if line is None or not line.is_open:
                line = self._connect(send.node)
            for left in self._serves(send, line):
                self._drop(left)
            self.sent += len(send.packed)
            sending = bool(send.packed)
            return line.exchange(send.packed)
        except BaseException as error:
            self._drop(send.node)
            if isinstance(error, (RedisError, OSError, HeadraceError)):
                return Failed(translate(error) if sending else self._explained(send.node, error), sending)
            raise

    def _explained(self, node: Node, error: Exception) -> HeadraceError:
        return translate(error) if self._explain is None else self._explain(node, error)

    def _connect(self, node: Node) -> SyncLine:
        self._drop(node)
        line = self._lines[node] = SyncLine(self._dial(node))
        line.connect(self._hello)
        self._begun()
        return line

    def _ask(self, ask: Ask) -> list[Any] | HeadraceError:
        line = SyncLine(self._dial(ask.node, sentinel=ask.sentinel))
        if ask.within_s is not None:
            line.connection.socket_timeout = line.connection.socket_connect_timeout = ask.within_s
        try:
            line.connect([])
            return line.exchange(ask.packed)
        except (RedisError, OSError) as error:
            return translate(error) if ask.sentinel else self._explained(ask.node, error)
        finally:
            line.close()

    def _drop(self, node: Node) -> None:
        line = self._lines.pop(node, None)
        if line is not None:
            line.close()


def _hand_over(sends: list[Send]) -> Generator[Step, Any, list[Any]]:
    """A conversation of one step."""
    answers: list[Any] = yield sends
    return answers
