"""Adding messages. Concurrent adds share a write: whoever comes while one is on its way goes with the next.

An add with a key is safe to repeat, so an answer that was lost is asked for again until there is one (SPEC 35). An add
without a key is sent once; when its answer is lost the error says that it is unknown, not that it failed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.errors import AddUnknown, DurabilityUnmet, HeadraceError, Unavailable, Verdict, classify
from headrace.names import Keys
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import commands, replies, scripts
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.link import Link

Durability = Literal["received", "disk", "replicated"]
DURABILITIES: tuple[Durability, ...] = ("received", "disk", "replicated")
PIPE_LIMIT = 500  # adds in one write
PATIENCE_S = 30.0  # how long an add with a key is repeated
CONFIRM_MS = 2_000  # how long a durable add waits for disk or replica


@dataclass(frozen=True, slots=True)
class Added:
    """Where a message is, and whether this call put it there (False: an earlier add of the key did)."""

    id: str
    first: bool = True


@dataclass(frozen=True, slots=True)
class Addition:
    """One message on its way: its fields, and the key that makes it safe to repeat."""

    keys: Keys
    fields: Sequence[bytes | str]
    key: str | None = None
    window_ms: int = 86_400_000

    def call(self) -> Call[replies.Added]:
        return scripts.add(self.keys, self.fields, key=self.key, window_ms=self.window_ms)


class Producer:
    """Adds for one event loop, over one link for plain adds, one for many at once and one for those that wait."""

    def __init__(self, server: Server, recorder: Recorder) -> None:
        self._server = server
        self._recorder = recorder
        # One of each for every shard of a cluster: one that is away holds up no other.
        self._senders: dict[object, Sender] = {}
        self._links: dict[tuple[object, str], Link] = {}

    async def add(self, addition: Addition, durability: Durability = "received") -> Added:
        """Add one message. Raises Unavailable (unknown) without a key, DurabilityUnmet when not confirmed."""
        if addition.key is None:
            return await self._once(addition, durability)
        deadline, tries = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                return await self._once(addition, durability)
            except HeadraceError as error:
                if classify(error) is not Verdict.RETRY or time.monotonic() > deadline:
                    raise
                if isinstance(error, DurabilityUnmet):
                    raise
            await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=self._server.route.moves) / 1000)
            tries += 1

    async def add_many(self, additions: Sequence[Addition]) -> list[Added]:
        """Add many in pipelines; the results come in the order given. Raises AddUnknown with what is known."""
        results: list[Added | None] = []
        for at in range(0, len(additions), PIPE_LIMIT):
            chunk = additions[at : at + PIPE_LIMIT]
            try:
                link = self._link_to(chunk[0], "many")
                answers = await link.pipe([addition.call() for addition in chunk])
            except Unavailable as error:
                results += [None] * (len(additions) - len(results))
                raise AddUnknown(results=results) from error
            for addition, answer in zip(chunk, answers, strict=True):
                if isinstance(answer, HeadraceError):
                    results.append(None)
                else:
                    results.append(self._counted(addition, answer))
            failed = next((answer for answer in answers if isinstance(answer, HeadraceError)), None)
            if failed is not None:
                results += [None] * (len(additions) - len(results))
                raise AddUnknown(f"{failed}; see .results for what was added", results=results) from failed
        return [result for result in results if result is not None]

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()
        self._senders.clear()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    # ── one try ──

    def _link_to(self, addition: Addition, kind: str) -> Link:
        shard = (self._server.place(addition.keys.stream), kind)
        link = self._links.get(shard)
        if link is None:
            link = self._links[shard] = self._server.link(f"headrace:producer:{kind}")
        return link

    async def _once(self, addition: Addition, durability: Durability) -> Added:
        if durability != "received":
            return await self._confirmed(addition, durability)
        shard = self._server.place(addition.keys.stream)
        sender = self._senders.get(shard)
        if sender is None:
            sender = self._senders[shard] = Sender(self._server.link("headrace:producer"))
        answer = await sender.add(addition)
        if isinstance(answer, HeadraceError):
            self._recorder.count("add_unknown_total", 1, stream=addition.keys.stream)
            raise answer
        return self._counted(addition, answer)

    async def _confirmed(self, addition: Addition, durability: Durability) -> Added:
        """Add and wait, in one write on one connection: WAIT speaks of what that connection wrote."""
        confirm = commands.on_disk(CONFIRM_MS) if durability == "disk" else commands.replicated(CONFIRM_MS)
        link = self._link_to(addition, "durable")
        answers = await link.pipe([addition.call(), confirm], wait_ms=CONFIRM_MS)
        if isinstance(answers[0], HeadraceError):
            raise answers[0]
        added = self._counted(addition, answers[0])
        if answers[1] is True or (durability == "disk" and await self._always_on_disk(link, addition)):
            return added
        raise DurabilityUnmet(id=added.id, wanted="on disk" if durability == "disk" else "on a replica")

    async def _always_on_disk(self, link: Link, addition: Addition) -> bool:
        """Servers before 7.2 cannot be asked, but with appendfsync always every answer means: on disk."""
        try:
            return await link.call(commands.appendfsync().aimed(addition.keys.stream)) == "always"
        except HeadraceError:
            return False

    def _counted(self, addition: Addition, answer: replies.Added) -> Added:
        name = "added_total" if answer.first else "add_duplicate_total"
        self._recorder.count(name, 1, stream=addition.keys.stream)
        return Added(answer.id, answer.first)


Answer = replies.Added | HeadraceError


class Sender:
    """Adds to one shard: those that come while a write is on its way go together with the next."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue: list[tuple[Addition, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, addition: Addition) -> Answer:
        """The server's answer, or the error in its place."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((addition, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send(), name="headrace producer")
        return await answer

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._link.close()

    async def _send(self) -> None:
        """Send what is queued, and what is queued meanwhile, until nothing is left."""
        while self._queue:
            batch, self._queue = self._queue[:PIPE_LIMIT], self._queue[PIPE_LIMIT:]
            answers: list[Answer]
            try:
                answers = await self._link.pipe([addition.call() for addition, _ in batch])
            except HeadraceError as error:
                answers = [error] * len(batch)
            except BaseException:
                for _, future in batch:
                    future.cancel()
                raise
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
