"""The connections of a link, by node: what :class:`Link` and :class:`SyncLink` know about themselves.

``epoch`` counts connects and moves, and ``connected_at`` (monotonic seconds) says when the last one was, for the rule
that nobody rescues right after it (SPEC 20). ``client_id`` is the server's name for the connection: CLIENT UNBLOCK,
LIST, KILL use it, at the server ``node``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from headrace.errors import HeadraceError, MissingRight
from headrace.redis.calls import Call, Script
from headrace.redis.faults import translate
from headrace.redis.line import Line, SyncLine, greeting
from headrace.redis.talk import Failed, Route, Send, Step, ahead, packed, talk
from headrace.redis.topology import Node

T = TypeVar("T")
AnyLine = TypeVar("AnyLine", Line, SyncLine)

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


def values(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
    """One value for each call. Raises if none of them was answered."""
    if replies and all(isinstance(reply, Failed) for reply in replies):
        raise replies[0].error
    return [_read(call, reply) for call, reply in zip(calls, replies, strict=True)]


def is_plain(answer: list[Any] | Failed) -> TypeGuard[list[Any]]:
    return type(answer) is list and not any(isinstance(reply, Exception) for reply in answer)


def _named(error: MissingRight, script: Script) -> MissingRight:
    """Servers before 7.0 do not say which command of a script is forbidden: name those it uses."""
    if error.command:
        return error
    used = sorted({name for found in _COMMAND.findall(script.text) for name in found if name})
    return MissingRight(f"{error} (script {script.name} uses {', '.join(used)})", command=" ".join(used), key=error.key)


class Lines(Generic[AnyLine]):
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
        self, calls: Sequence[Call[Any]], begun: tuple[Send, list[Any] | Failed] | None = None, *, blocks: bool = False
    ) -> Generator[Step, Any, list[Any]]:
        """A conversation that waits no longer than an answer may take."""
        return talk(calls, self._route, self._at, begun, patience_s=self._timeout_s, blocks=blocks)

    @property
    def _line(self) -> AnyLine | None:
        return None if self.node is None else self._lines.get(self.node)

    def _plainly(self, calls: Sequence[Call[Any]], *, blocks: bool = False) -> Send | None:
        """The one write that is nearly always all there is. None: several servers, or nobody knows which."""
        if not self._one or any(call.at is not None for call in calls):
            return None
        node = self._route.settled(self._at)
        if node is None:
            return None
        of = list(range(len(calls)))
        return Send(node, [packed(call) for call in calls], of, ahead=ahead(calls, of) if blocks else ())

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
