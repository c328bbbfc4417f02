"""A consumer of redis-stream-client-go's load balancer stream, beside Go pods or in their place (SPEC 47).

One task reads, one scans, one listens; a thread keeps the locks (holder.py). What is mine is in one table, by the id of
the entry: two announcements of one data stream are two entries with two locks, and both are finished by done_stream().
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import (
    AlreadyClaimed,
    DecodeError,
    HeadraceError,
    NotOwned,
    Unavailable,
)
from headrace.goclient import calls, protocol
from headrace.goclient.calls import Seat
from headrace.goclient.events import Added, Disowned, Event, Expired, Terminated
from headrace.goclient.holder import Holder, Holding
from headrace.goclient.protocol import Announcement, GoNames, consumer_name, read_lock
from headrace.goclient.reader import BLOCK_MS, Reader
from headrace.goclient.scanner import Rules, Scanner
from headrace.goclient.ways import Ways
from headrace.hints import Hints
from headrace.names import check_owner, keys_of
from headrace.options import Duration, duration_ms, whole_number
from headrace.redis import commands, scripts
from headrace.redis.replies import Move
from headrace.redis.trust import Trust

if TYPE_CHECKING:
    from headrace.app import App

log = logging.getLogger("headrace")

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
        self._trust = Trust(self._link, self._seat.lock_ms, quiet_ms=self._seat.lock_ms)
        self._ways = Ways(self._seat, self._link, self._trust, maxlen=self._rules.dead_letters_maxlen)
        try:
            await self._ensure_group()
            await self._read_link.open()
        except BaseException:
            await self._link.close()
            raise
        self._scanner = Scanner(
            self._seat, self._link, self._ways, self._trust, self._rules, self._app.recorder, self._held
        )
        self._reader = Reader(
            *(self._seat, self._read_link, self._ways, self._held),
            limit=self._limit,
            added=self._added,
            bury=self._scanner.bury,
            regroup=self._ensure_group,
        )
        self._holder = Holder(server, self._seat, self._held, lost=self._lost, failed=self._fail)

        def expired(key: str) -> None:
            if (found := read_lock(key)) is not None:
                self._expired.put_nowait(found)

        self._hints = Hints(server, self.consumer, expired)
        self._holder.start()
        self._hints.start()
        for work in (self._reader.run(), self._scanner.watch(), self._scanner.run(), self._listen()):
            self._watch(work)

    async def _ensure_group(self) -> None:
        await self._link.call(scripts.ensure_group(keys_of(self.names.stream), self.names.group, "0"))

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
        if not self._tasks:
            self._events.put_nowait(Terminated("done"))
            return
        self._reader.stop()
        reading, *others = self._tasks
        if self._reader.blocked and self._read_link.is_open and self._read_link.client_id:
            unblock = commands.unblock(self._read_link.client_id).aimed(self.names.stream)
            await self._quietly(self._link.call(unblock))
        await asyncio.wait({reading}, timeout=2 * BLOCK_MS / 1000)
        for task in (reading, *others):
            task.cancel()
        await asyncio.gather(reading, *others, return_exceptions=True)
        for one in self._held.values():
            one.finishing = True  # that its lock is gone then is no loss to tell
        for one in list(self._held.values()):
            await self._quietly(self._hand_back(one.announcement.stream, one.id))
            self._held.pop(one.id, None)
        for id_, fields in self._reader.unheld:
            with contextlib.suppress(DecodeError):  # whoever scans buries it
                await self._quietly(self._hand_back(Announcement.read(fields).stream, id_))
        await self._holder.stop()
        await self._hints.stop()
        await self._read_link.close()
        await self._link.close()
        self._events.put_nowait(Terminated("done"))

    def _hand_back(self, stream: str, id_: str) -> Coroutine[Any, Any, Move]:
        return self._ways.requeue(stream, id_, "release", max_retries=self._rules.max_retries)

    def reset_topology(self) -> None:
        """Read the map of the cluster again, and listen for locks at the master that is this consumer's by it."""
        self._app.reset_topology()
        if self._tasks:
            self._hints.reset_topology()

    # ── what a consumer does ──

    async def announce(self, stream: str, info: Mapping[str, Any] | None = None) -> str:
        """Give a data stream to the pool: some consumer, Go or not, gets it. Answers the id of the entry."""
        return await self._app.link.call(calls.announce(self.names, Announcement(stream, info or {})))

    async def claim(self, expired: Expired) -> None:
        """Put what a dead owner had back into the pool; whoever reads it gets Added. Raises AlreadyClaimed.

        Right after an outage it waits for a lock's life: its owner may be alive, and locks it again then (SPEC 20).
        """
        while (move := await self._scanner.recover(expired.id, self._seat.lock_ms)).kind == "unsure":
            await self._trust.pause()
            if self._stopping:
                raise Unavailable(f"{expired.stream!r} ({expired.id}) is not claimed: this client has ended")
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
        self._reader.freed()
        if said.kind == "ok" or (said.kind == "gone" and again):
            return
        self._count("recovery_duplicate_ack_total")
        self._events.put_nowait(Disowned(one.announcement.stream, one.id))
        raise NotOwned(f"{one.announcement.stream!r} ({one.id}) is {said.kind} {said.holder}: it was taken over")

    # ── the tasks ──

    async def _listen(self) -> None:
        """From a lock that ran out to Expired: only what is pending in this service's group, with who had it."""
        while True:
            stream, id_ = await self._expired.get()
            while not self._trust.until_ms:
                await self._trust.pause()  # live owners lock first
            if id_ in self._held:
                continue  # mine: the holder takes the lock again, or hears that it is lost
            try:
                rows = await self._link.call(calls.pending(self._seat, id_, 1, end=id_))
                holder = await self._link.call(calls.holder(self._seat, stream, id_)) if rows else ""
            except HeadraceError as error:
                log.debug("goclient.hint_dropped %s: %s", stream, error)
                continue
            if rows and not holder:
                self._events.put_nowait(Expired(stream, rows[0].owner, id_))

    # ── what happens to it ──

    def _added(self, one: Holding) -> None:
        told = one.announcement
        self._events.put_nowait(Added(told.stream, told.info, one.id, told.retries + 1))

    def _lost(self, one: Holding) -> None:
        if self._held.get(one.id) is one and not one.finishing:
            del self._held[one.id]
            self._reader.freed()
            self._count("lost_total")
            self._events.put_nowait(Disowned(one.announcement.stream, one.id))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Without this task or thread a client is half a client: whoever listens has to know, and to call done()."""
        reason = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        log.error("goclient.failed consumer=%s: %s", self.consumer, reason)
        self._stopping = True
        self._reader.stop()
        self._events.put_nowait(Terminated(reason))

    def _count(self, name: str) -> None:
        self._app.recorder.count(name, 1, stream=self.names.stream, group=self.names.group)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """At the end: what fails is left to the scans of the others."""
        try:
            await work
        except HeadraceError as error:
            log.warning("goclient.leaves consumer=%s: %s", self.consumer, error)
