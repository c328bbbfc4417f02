"""What an adapter program is told, and the handlers that all peers run. Stands on the standard library alone.

An adapter is started as ``worker`` or as ``add`` with an Order as JSON. A worker runs until it is killed, or until its
stdin ends, which it does with the harness. An enqueuer reads lines of JSON from stdin, such as
``{"kind": "slow", "first": 0, "count": 4, "s": 2.5}``, adds that many messages of about 200 bytes and answers ``ok``.

The kinds of handlers, and what they note in a file outside the server:

    empty, pause   nothing, or 5 ms of sleep; the first and the last of `count` are noted, with the CPU time so far
    tick           noted; for saying hello, and as the traffic that goes on while a message waits for its rescue
    slow           an async handler that sleeps for the message's `s` seconds; its start and its end are noted
    block          an async handler that blocks the event loop for so long
    plain          a sync handler that sleeps for so long
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.peers.pen import Pen

Payload = dict[str, Any]
Add = Callable[[str, list[Payload]], Awaitable[None]]

PAUSE_S: Final = 0.005
AT_ONCE: Final = 500  # messages that an enqueuer makes before it sends them
_NOTE: Final = "x" * 100  # makes a message of about 200 bytes


@dataclass(frozen=True, slots=True)
class Order:
    """``fastest``: with the settings that recover soonest, instead of the peer's defaults."""

    url: str
    history: str
    kinds: list[str]
    concurrency: int = 32
    count: int = 0
    fastest: bool = False
    worker: str = ""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


# ── handlers ──


class _Desk:
    """Where this process writes, once it has its order."""

    pen: Pen
    worker: str = ""
    marks: frozenset[int] = frozenset()
    numbers: Iterator[int] = itertools.count(1)  # next() is atomic, so threads may share it


def begin(words: list[str]) -> tuple[str, Order]:
    """Take the role and the order from the command line."""
    role, order = words[1], Order(**json.loads(words[2]))
    _Desk.pen, _Desk.worker = Pen(order.history), order.worker
    _Desk.marks = frozenset({1, order.count})
    if role == "worker":
        threading.Thread(target=_leash, daemon=True).start()
    return role, order


def _leash() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _note(op: str, payload: Payload) -> None:
    _Desk.pen.note(op, id=str(payload["id"]), owner=_Desk.worker)


def _tally() -> None:
    number = next(_Desk.numbers)
    if number in _Desk.marks:
        _Desk.pen.note("first" if number == 1 else "last", owner=_Desk.worker, cpu_s=time.process_time())


async def empty(payload: Payload) -> None:
    _tally()


async def pause(payload: Payload) -> None:
    await asyncio.sleep(PAUSE_S)
    _tally()


async def tick(payload: Payload) -> None:
    _note("tick", payload)


async def slow(payload: Payload) -> None:
    _note("start", payload)
    try:
        await asyncio.sleep(payload["s"])
    except BaseException:
        _note("cut", payload)
        raise
    _note("end", payload)


async def block(payload: Payload) -> None:
    plain(payload)


def plain(payload: Payload) -> None:
    _note("start", payload)
    time.sleep(payload["s"])
    _note("end", payload)


def empty_sync(payload: Payload) -> None:
    _tally()


def pause_sync(payload: Payload) -> None:
    time.sleep(PAUSE_S)
    _tally()


def tick_sync(payload: Payload) -> None:
    _note("tick", payload)


COROUTINES: Final[dict[str, Callable[[Payload], Awaitable[None]]]] = {
    "empty": empty,
    "pause": pause,
    "tick": tick,
    "slow": slow,
    "block": block,
}
FUNCTIONS: Final[dict[str, Callable[[Payload], None]]] = {
    "empty": empty_sync,
    "pause": pause_sync,
    "tick": tick_sync,
    "plain": plain,
}
EITHER: Final[dict[str, Callable[[Payload], Any]]] = {**FUNCTIONS, **COROUTINES}
"""What a peer with async handlers runs: async wherever there is a choice."""


# ── enqueuers ──


def _batches(line: str) -> Iterator[tuple[str, list[Payload]]]:
    told = json.loads(line)
    numbers = range(told["first"], told["first"] + told["count"])
    for at in range(0, len(numbers), AT_ONCE):
        yield told["kind"], [_payload(number, told["s"]) for number in numbers[at : at + AT_ONCE]]


def _payload(number: int, seconds: float) -> Payload:
    return {"id": number, "s": seconds, "customer": "c-123456", "amount": 12.5, "currency": "EUR", "note": _NOTE}


async def serve_adds(add: Add) -> None:
    """Add what stdin asks for, until it ends."""
    _answer()
    for line in sys.stdin:
        for kind, payloads in _batches(line):
            await add(kind, payloads)
        _answer()


def serve_adds_sync(add: Callable[[str, list[Payload]], None]) -> None:
    """The same for a peer whose enqueuer is not async."""
    _answer()
    for line in sys.stdin:
        for kind, payloads in _batches(line):
            add(kind, payloads)
        _answer()


def _answer() -> None:
    sys.stdout.write("ok\n")
    sys.stdout.flush()


async def some_at_once(calls: Iterable[Awaitable[Any]], width: int = 50) -> None:
    """For peers that cannot add many: some round trips at a time."""
    rest = iter(calls)
    while some := list(itertools.islice(rest, width)):
        await asyncio.gather(*some)


def owner() -> str:
    """A name for this process in a consumer group."""
    return f"{_Desk.worker}-{os.getpid()}"
