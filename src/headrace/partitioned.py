"""A partitioned stream as its users see it: one name, many streams below it (SPEC 51).

Adds go to the partition of their key, handlers read all partitions. Each partition is an ordinary stream with a lane of
its own, so everything that holds for a stream holds for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.config import HandlerSettings
from headrace.deadletters import DeadLetter, Replayed
from headrace.errors import ConfigError, NoGroup, WrongType
from headrace.names import Keys, check_group, keys_of, mirror_group, partition_assignments
from headrace.ordered import check_words, handler_options, make_ordered_job
from headrace.partitions import Partitions
from headrace.producer import Added, Addition, Durability
from headrace.redis import commands, scripts
from headrace.redis.calls import Call
from headrace.stream import Stream

if TYPE_CHECKING:
    from headrace.app import App

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class PartitionedStream(Generic[T]):
    """Made by :meth:`headrace.App.stream` with ``partitions``."""

    def __init__(
        self, app: App, name: str, model: Any = None, *, partitions: int, max_bytes: int | str | None = None
    ) -> None:
        self._app = app
        self.name = name
        self.partitions = Partitions(name, partitions)
        self._parts: list[Stream[T]] = [Stream(app, part, model, max_bytes=max_bytes) for part in self.partitions.names]
        self._turn = itertools.cycle(range(partitions))
        self._agreed = False

    def __repr__(self) -> str:
        return f"<PartitionedStream {self.name!r}, {self.partitions.count} partitions of {self._parts[0].codec.name}>"

    def partition(self, number: int) -> Stream[T]:
        """One partition, a stream like any other."""
        return self._parts[number]

    def partition_of(self, key: str) -> Stream[T]:
        """The partition a key's messages are in."""
        return self._parts[self.partitions.of(key)]

    # ── adding ──

    async def add(
        self,
        payload: T,
        *,
        key: str | None = None,
        partition_key: str | None = None,
        window: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        traceparent: str | None = None,
        durability: Durability = "received",
    ) -> Added:
        """Add one message to the partition of its ``partition_key``, else of its ``key``; without either in turn.

        ``key`` is what it is on every stream: the same one within ``window`` adds once. Messages that share a
        ``partition_key`` (a customer, an account) stay in order and together.
        """
        await self._agree()
        part = self._part(key, partition_key)
        return await part.add(
            payload, key=key, window=window, headers=headers, traceparent=traceparent, durability=durability
        )

    async def add_many(
        self,
        payloads: Iterable[T],
        *,
        keys: Sequence[str] | None = None,
        partition_keys: Sequence[str] | None = None,
        window: float | str | None = None,
    ) -> list[Added]:
        """Add many in pipelines, each to its partition. Raises AddUnknown with the results known so far."""
        items = list(payloads)
        for what, given in (("keys", keys), ("partition_keys", partition_keys)):
            if given is not None and len(given) != len(items):
                raise ConfigError(f"{len(items)} payloads and {len(given)} {what}: give one for each payload, or none")
        await self._agree()
        additions = []
        for at, payload in enumerate(items):
            key = None if keys is None else keys[at]
            by = None if partition_keys is None else partition_keys[at]
            additions.append(self._part(key, by).addition(payload, key, window))
        return await self._app.producer.add_many(additions)

    def add_sync(
        self,
        payload: T,
        *,
        key: str | None = None,
        partition_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Added:
        """The same as add() for code without an event loop: plain ``def`` handlers, scripts."""
        if not self._agreed:
            check_agreed(self.partitions, [self._app.sync_call(call) for call in agreeing(self.partitions)])
            self._agreed = True
        return self._part(key, partition_key).add_sync(payload, key=key, headers=headers)

    def addition(self, payload: T, key: str | None = None, *, headers: Mapping[str, str] | None = None) -> Addition:
        """A message ready to be sent to its partition."""
        return self._part(key, None).addition(payload, key, headers=headers)

    def _part(self, key: str | None, partition_key: str | None) -> Stream[T]:
        by = partition_key if partition_key is not None else key
        return self._parts[next(self._turn)] if by is None else self.partition_of(by)

    async def _agree(self) -> None:
        """Once a program: its number of partitions is everybody's."""
        if not self._agreed:
            answers = [await self._app.link.call(call) for call in agreeing(self.partitions)]
            check_agreed(self.partitions, answers)
            self._agreed = True

    # ── handling ──

    def handler(self, *, group: str, ordered: bool = False, **options: Any) -> Callable[[F], F]:
        """Hang a handler on all partitions. The options are those of :meth:`headrace.Stream.handler`; the concurrency
        is shared by the partitions, with at least one slot each.

        With ``ordered=True`` the messages of a partition come one after the other, in order, and one worker at a time
        owns it (ordered.py). Then ``concurrency`` is how many partitions a worker owns at most, ``rebalance=True``
        hands some on when workers join, and ``prefetch`` says how many messages are read ahead.
        """
        check_group(group)
        if ordered:
            settings = handler_options(options)
        else:
            check_words(options)
            settings = HandlerSettings.of(**options)

        def register(function: F) -> F:
            jobs = [replace(part.job(group, function, settings), partitions=self.partitions) for part in self._parts]
            if ordered:
                self._app.register_owner(make_ordered_job(jobs[0], self.partitions, options))
            else:
                for job in jobs:
                    self._app.register(job)
            return function

        return register

    # ── looking after it ──

    async def backlog(self, group: str) -> int:
        """Unread + pending + waiting in all partitions; for an ordered handler what its owners have not done."""
        check_group(group)
        return sum([await self._backlog(part.keys, group) for part in self._parts])

    async def _backlog(self, keys: Keys, group: str) -> int:
        try:
            return (await self._app.link.call(scripts.levels(keys, group))).backlog
        except NoGroup:
            mirror = mirror_group(partition_assignments(self.name), group)
            return (await self._app.link.call(scripts.levels(keys, mirror))).backlog

    @property
    def dead_letters(self) -> PartitionedDeadLetters:
        return PartitionedDeadLetters(self._parts)


class PartitionedDeadLetters:
    """The dead letters of all partitions. One by its id: ``orders.partition(3).dead_letters``."""

    def __init__(self, parts: Sequence[Stream[Any]]) -> None:
        self._parts = parts

    async def count(self) -> int:
        return sum([await part.dead_letters.count() for part in self._parts])

    async def each(self, *, group: str | None = None) -> AsyncIterator[DeadLetter]:
        """Partition by partition; inside one the oldest first. A letter's ``stream`` names the partition."""
        for part in self._parts:
            async for letter in part.dead_letters.each(group=group):
                yield letter

    async def listed(self, *, group: str | None = None, limit: int | None = None) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async for letter in self.each(group=group):
            if limit is not None and len(found) >= limit:
                break
            found.append(letter)
        return found

    async def replay(
        self,
        *,
        group: str | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        told: Callable[[Replayed], None] | None = None,
    ) -> list[Replayed]:
        """Give back all that ``group`` and ``where`` leave, each to its partition and the group that buried it."""
        done: list[Replayed] = []
        for part in self._parts:
            done += await part.dead_letters.replay(group=group, where=where, told=told)
        return done

    async def purge(self, *, group: str | None = None, where: Callable[[DeadLetter], bool] | None = None) -> int:
        return sum([await part.dead_letters.purge(group=group, where=where) for part in self._parts])


# ── how many there are ───────────────────────────────────────────────────────────────────────────────


def agreeing(partitions: Partitions) -> list[Call[Any]]:
    """Say how many partitions there are, unless somebody said so before; hear it; look at the unpartitioned stream."""
    keys = keys_of(partitions.stream)
    return [scripts.agree(keys, partitions.count), commands.type_of(keys.stream)]


def check_agreed(partitions: Partitions, answers: Sequence[Any]) -> None:
    """Judge the answers. Raises ConfigError where going on would tear keys apart or leave messages behind."""
    known, kind = answers
    if known != partitions.count:
        raise ConfigError(
            f"stream {partitions.stream!r} has {known} partitions, and this program says {partitions.count}: "
            f"write partitions={known}; another number would send keys elsewhere and leave messages unread"
        )
    if kind == "stream":
        raise WrongType(
            f"{partitions.stream!r} exists as a stream without partitions, whose messages nobody would read: "
            "finish them with a handler without partitions, then delete the key, or take another name"
        )
