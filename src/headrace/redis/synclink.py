"""The link of threads: what :class:`Link` does, blocking, and not shared between threads."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from headrace.errors import HeadraceError
from headrace.redis.calls import Call
from headrace.redis.faults import translate
from headrace.redis.line import SyncLine
from headrace.redis.lines import Lines, is_plain, values
from headrace.redis.talk import Ask, Failed, Send, Step, opening
from headrace.redis.topology import Node

T = TypeVar("T")
Result = TypeVar("Result")


class SyncLink(Lines[SyncLine]):
    """Of one thread, and opened by its first call."""

    def open(self) -> None:
        self._drive(opening(self._route, self._at or None))

    def call(self, call: Call[T]) -> T:
        (value,) = self.pipe((call,))
        if isinstance(value, HeadraceError):
            raise value
        return value  # type: ignore[no-any-return]

    def pipe(self, calls: Sequence[Call[Any]]) -> list[Any]:
        send = self._plainly(calls)
        if send is None:
            return values(calls, self._drive(self._talk(calls)))
        answer = self._send(send)
        if is_plain(answer):
            return [call.parse(reply) for call, reply in zip(calls, answer, strict=True)]
        return values(calls, self._drive(self._talk(calls, (send, answer))))

    def masters(self) -> tuple[Node, ...]:
        return self._drive(self._route.masters())

    def close(self) -> None:
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            line.close()

    def ready(self, key: Any) -> Any:
        """The open connection of redis-py to the server that holds a key, for who reads its socket (spark/wire.py)."""
        node = self._drive(opening(self._route, self._at or key))
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
            limit_s = min(ask.within_s, self._timeout_s)
            line.connection.socket_timeout = line.connection.socket_connect_timeout = limit_s
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
