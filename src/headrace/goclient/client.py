"""A consumer of redis-stream-client-go's load balancer stream, beside Go pods or in their place (SPEC 47).

One task reads, one scans, one listens; a thread keeps the locks (holder.py). What is mine is in one table, by the id of
the entry: two announcements of one data stream are two entries with two locks, and both are finished by done_stream().
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import (
    AlreadyClaimed,
    DecodeError,
    HeadraceError,
    NoGroup,
    NotOwned,
    Verdict,
    classify,
)
from headrace.goclient import calls, protocol
from headrace.goclient.calls import Seat
from headrace.goclient.events import Added, Disowned, Event, Expired, Terminated
from headrace.goclient.holder import Holder, Holding
from headrace.goclient.protocol import Announcement, GoNames, consumer_name, read_lock
from headrace.goclient.scanner import Rules, Scanner
from headrace.goclient.ways import Ways
from headrace.hints import Hints
from headrace.names import check_owner, keys_of
from headrace.options import Duration, duration_ms, whole_number
from headrace.policy import reconnect_delay_ms
from headrace.redis import commands, scripts

if TYPE_CHECKING:
    from headrace.app import App

log = logging.getLogger("headrace")

READ_LIMIT = 100  # entries read at once: the Go client takes all there are
BLOCK_MS = 1_000
MAX_STREAMS = 10_000


class GoClient:
    """``consumer`` is `redis-consumer-<POD_NAME or POD_IP>` unless given; the defaults are the Go client's.

    ``max_streams`` is how many data streams this process takes at most. What is read is mine only once it is locked.
    """

    def __init__(
        self,
        app: App,
        service: str,
        *,
        consumer: str | None = None,
        max_streams: int = MAX_STREAMS,
        lock: Duration = protocol.LOCK_MS / 1000,
        interval: Duration = protocol.INTERVAL_MS / 1000,
        min_idle: Duration = protocol.MIN_IDLE_MS / 1000,
        batch: int = protocol.BATCH,
        max_retries: int = protocol.MAX_RETRIES,
        dead_letters_maxlen: int = protocol.DEAD_LETTERS_MAXLEN,
    ) -> None:
        self._app = app
        self.consumer = consumer_name() if consumer is None else check_owner(consumer)
        self._limit = whole_number(max_streams, name="max_streams", least=1, most=1_000_000)
        lock_ms = whole_number(duration_ms(lock, name="lock"), name="lock", least=200, most=86_400_000)
        # Two processes of one pod, or two lives of it, share the consumer's name and must not share a lock.
        self._seat = Seat(GoNames(service), self.consumer, f"{self.consumer}#{token_hex(4)}", lock_ms)
        self._rules = Rules(
            interval_ms=duration_ms(interval, name="interval"),
            min_idle_ms=duration_ms(min_idle, name="min_idle"),
            batch=whole_number(batch, name="batch", least=1, most=1_000),
            max_retries=whole_number(max_retries, name="max_retries", least=0, most=1_000_000),
            dead_letters_maxlen=whole_number(dead_letters_maxlen, name="dead_letters_maxlen", least=0, most=2**53),
        )
        self._held: dict[str, Holding] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._expired: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._freed = asyncio.Event()
        self._groupless = False  # the server said NOGROUP
        self._blocked = False
        self._stopping = False
        self._ended = False

    def __repr__(self) -> str:
        return f"<GoClient {self._seat.names.service!r} as {self.consumer!r}, {len(self._held)} streams>"

    @property
    def names(self) -> GoNames:
        return self._seat.names

    @property
    def streams(self) -> list[str]:
        """The data streams that are mine now."""
        return sorted({one.announcement.stream for one in self._held.values()})

    # ── from start to end ──

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.done()

    async def start(self) -> None:
        """Begin to read. The group is made at 0: what was announced before the first consumer counts too."""
        server = self._app.server
        name = f"headrace:{self.consumer}"
        self._read_link = server.link(f"{name}:go-read", at=self.names.stream)
        self._link = server.link(f"{name}:go")
        self._seat = self._seat._replace(spreads=self._link.spreads)
        self._ways = Ways(self._seat, self._link, maxlen=self._rules.dead_letters_maxlen)
        try:
            await self._ensure_group()
            await self._read_link.open()
        except BaseException:
            await self._link.close()
            raise
        self._scanner = Scanner(self._seat, self._link, self._ways, self._rules, self._app.recorder, self._held)
        self._holder = Holder(server, self._seat, self._held, lost=self._lost, failed=self._fail)

        def expired(key: str) -> None:
            if (found := read_lock(key)) is not None:
                self._expired.put_nowait(found)

        self._hints = Hints(server, self.consumer, expired)
        self._holder.start()
        self._hints.start()
        for work in (self._read(), self._scanner.run(), self._listen()):
            self._watch(work)

    async def events(self) -> AsyncIterator[Event]:
        """Added, Expired, Disowned as they come; Terminated is the last."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, Terminated):
                return

    async def done(self) -> None:
        """Stop. What is unfinished goes back into the pool at once, and no retry is burnt. May be called twice."""
        if self._ended:
            return
        self._ended = self._stopping = True
        self._freed.set()
        if not self._tasks:
            self._events.put_nowait(Terminated("done"))
            return
        reading, *others = self._tasks
        if self._blocked and self._read_link.is_open and self._read_link.client_id:
            unblock = commands.unblock(self._read_link.client_id).aimed(self.names.stream)
            await self._quietly(self._link.call(unblock))
        await asyncio.wait({reading}, timeout=2 * BLOCK_MS / 1000)
        for task in (reading, *others):
            task.cancel()
        await asyncio.gather(reading, *others, return_exceptions=True)
        for one in list(self._held.values()):
            back = self._ways.requeue(one.announcement.stream, one.id, "release", max_retries=self._rules.max_retries)
            await self._quietly(back)
            self._held.pop(one.id, None)
        await self._holder.stop()
        await self._hints.stop()
        await self._read_link.close()
        await self._link.close()
        self._events.put_nowait(Terminated("done"))

    # ── what a consumer does ──

    async def announce(self, stream: str, info: Mapping[str, Any] | None = None) -> str:
        """Give a data stream to the pool: some consumer, Go or not, gets it. Answers the id of the entry."""
        return await self._app.link.call(calls.announce(self.names, Announcement(stream, info or {})))

    async def claim(self, expired: Expired) -> None:
        """Put what a dead owner had back into the pool; whoever reads it gets Added. Raises AlreadyClaimed."""
        move = await self._scanner.recover(expired.id, self._seat.lock_ms)
        if move.kind not in ("requeued", "buried"):
            raise AlreadyClaimed(
                f"{expired.stream!r} ({expired.id}) is {move.kind}: nothing is left to be claimed",
                stream=expired.stream,
            )
        self._count("recovery_keyspace_requeued_total" if move.kind == "requeued" else "recovery_dlq_total")

    async def done_stream(self, stream: str) -> None:
        """A data stream is finished: acked, deleted, unlocked in one step. Raises NotOwned."""
        mine = [one for one in self._held.values() if one.announcement.stream == stream]
        if not mine:
            raise NotOwned(f"{stream!r} is not {self.consumer}'s: it was not added, or disowned, or is done")
        for one in mine:
            await self._finish(one)

    async def _finish(self, one: Holding) -> None:
        again, one.finishing = one.finishing, True
        said = await self._ways.done(one.announcement.stream, one.id)
        self._held.pop(one.id, None)
        self._freed.set()
        if said.kind == "ok" or (said.kind == "gone" and again):
            return
        self._count("recovery_duplicate_ack_total")
        self._events.put_nowait(Disowned(one.announcement.stream, one.id))
        raise NotOwned(f"{one.announcement.stream!r} ({one.id}) is {said.kind} {said.holder}: it was taken over")

    # ── the tasks ──

    async def _read(self) -> None:
        tries = 0
        while not self._stopping:
            try:
                await self._read_once()
                tries = 0
            except NoGroup:
                self._groupless = True
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    raise
                log.warning("goclient.reader_waits stream=%s: %s", self.names.stream, error)
                await asyncio.sleep(reconnect_delay_ms(tries, random.random()) / 1000)
                tries += 1

    async def _ensure_group(self) -> None:
        await self._link.call(scripts.ensure_group(keys_of(self.names.stream), self.names.group, "0"))
        self._groupless = False

    async def _read_once(self) -> None:
        if self._groupless:
            await self._ensure_group()
        free = self._limit - len(self._held)
        if free <= 0:
            self._freed.clear()
            await self._freed.wait()
            return
        self._blocked = True
        try:
            entries = await self._read_link.call(
                calls.read(self._seat, min(free, READ_LIMIT), BLOCK_MS), wait_ms=BLOCK_MS
            )
        finally:
            self._blocked = False
        for raw_id, fields, *_ in entries:
            await self._take(raw_id.decode(), fields)

    async def _take(self, id_: str, fields: list[bytes]) -> None:
        try:
            announcement = Announcement.read(fields)
        except DecodeError as error:
            log.warning("goclient.unparseable stream=%s id=%s: %s", self.names.stream, id_, error)
            await self._scanner.bury(id_)
            return
        said = await self._ways.hold(announcement.stream, id_)
        if said.kind != "ok":
            log.warning("goclient.not_mine stream=%s id=%s: %s", announcement.stream, id_, said)
            return
        self._held[id_] = Holding(id_, announcement)
        attempt = announcement.retries + 1
        self._events.put_nowait(Added(announcement.stream, announcement.info, id_, attempt))

    async def _listen(self) -> None:
        """From a lock that ran out to Expired: only what is pending in this service's group, with who had it."""
        while True:
            stream, id_ = await self._expired.get()
            if id_ in self._held:
                continue  # mine: the holder takes the lock again, or hears that it is lost
            try:
                rows = await self._link.call(calls.pending(self._seat, id_, 1, end=id_))
            except HeadraceError as error:
                log.debug("goclient.hint_dropped %s: %s", stream, error)
                continue
            if rows:
                self._events.put_nowait(Expired(stream, rows[0].owner, id_))

    # ── what happens to it ──

    def _lost(self, one: Holding) -> None:
        if self._held.get(one.id) is one and not one.finishing:
            del self._held[one.id]
            self._freed.set()
            self._count("lost_total")
            self._events.put_nowait(Disowned(one.announcement.stream, one.id))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), HeadraceError):
            self._fail(error)

    def _fail(self, error: HeadraceError) -> None:
        log.error("goclient.failed consumer=%s: %s", self.consumer, error)
        self._stopping = True
        self._events.put_nowait(Terminated(str(error)))

    def _count(self, name: str) -> None:
        self._app.recorder.count(name, 1, stream=self.names.stream, group=self.names.group)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """At the end: what fails is left to the scans of the others."""
        try:
            await work
        except HeadraceError as error:
            log.warning("goclient.leaves consumer=%s: %s", self.consumer, error)
