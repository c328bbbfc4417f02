"""The feed: the messages of many data streams over few connections.

    hungry   its queue has space and its stream may have more: read at once, many streams in one write
    asleep   its stream gave less than was asked: a blocking read over at most 200 streams waits for it (a reel)
    full     its queue has no space: not read until half of it is free, so a slow room costs the others nothing

In a cluster a read over two slots is refused and a blocking one would need a connection for each: there rooms that
sleep are looked at again and again, the more rooms the less often: one of 10,000 may wait 2.5 s for its message. Each
shard has a pull of its own: one that is away leaves only its own rooms hungry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any

from headrace.errors import HeadraceError, MissingRight, Verdict, WrongType, classify
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import commands, ownership
from headrace.redis.connect import Server
from headrace.redis.link import Link
from headrace.redis.shards import Shards
from headrace.room import Room

log = logging.getLogger("headrace")

REEL = 200  # streams of one blocking read (SPEC 45)
BLIND_BLOCK_MS = 250  # where CLIENT UNBLOCK is forbidden: how long a new room may wait to be read
FEW, GATHER_S = 20, 0.002  # a read over more streams than a few waits so long for others to have something, too
PULL = 200  # streams read in one write
WAKE_S = 0.002  # rooms that fall asleep together interrupt a blocked read once
POLL_LEAST_S, POLL_MOST_S, POLL_RATE = 0.05, 2.5, 4_000  # in a cluster: looks a second, over all rooms


Watch = Callable[[Coroutine[Any, Any, None], str], None]


class Feed:
    def __init__(self, server: Server, owner: str, prefetch: int, recorder: Recorder, block_ms: int) -> None:
        self._server = server
        self._owner = owner
        self.prefetch = prefetch
        self._recorder = recorder
        self._blocks = server.endpoint.kind != "cluster"
        self._pulls = Shards(server, self._pull)
        self._rooms: dict[bytes, Room[Any]] = {}
        self._hungry: dict[Room[Any], Pull] = {}  # and who reads them
        self._asleep: set[Room[Any]] = set()  # in a cluster
        self._reels: list[Reel] = []
        self._sleepy = asyncio.Event()  # a reel has to begin its read anew
        self.block_ms = block_ms  # no longer than a lease allows: a server that stands still is left so much later

    # ── rooms come and go ──

    def open(self, room: Room[Any]) -> None:
        self._rooms[room.name.encode()] = room
        self.hungry(room)

    def close(self, room: Room[Any]) -> None:
        if self._rooms.get(room.name.encode()) is room:
            del self._rooms[room.name.encode()]
        self._sated(room)
        self._asleep.discard(room)
        for reel in self._reels:
            reel.rooms.pop(room.name.encode(), None)

    def hungry(self, room: Room[Any]) -> None:
        """There is space in its queue again."""
        if self._rooms.get(room.name.encode()) is room and room not in self._hungry:
            pull = self._hungry[room] = self._pulls.at(room.name)
            pull.add(room)

    def _sated(self, room: Room[Any]) -> None:
        pull = self._hungry.pop(room, None)
        if pull is not None:
            pull.rooms.pop(room, None)

    @property
    def is_quiet(self) -> bool:
        """Whether every stream has given what it had."""
        return not self._hungry and not any(room.full for room in self._rooms.values())

    # ── loops ──

    def start(self, watch: Watch) -> None:
        """Start reading; whoever watches ends the loops, and is told what nobody can help."""
        self._watch = watch
        watch(self._wake_reels() if self._blocks else self._wake_asleep(), f"waking of {self._owner}")

    def _pull(self) -> Pull:
        pull = Pull(self, self._server.link(f"headrace:{self._owner}:pull"))
        self._watch(pull.run(self._recorder), f"feed of {self._owner}")
        return pull

    async def close_links(self) -> None:
        for each in (*self._pulls, *self._reels):
            await each.link.close()

    # ── what pulls say ──

    def pulled(self, room: Room[Any], asked: int, answer: ownership.Entries | HeadraceError) -> None:
        """A read of one room was answered; one that failed is not asked again."""
        if isinstance(answer, HeadraceError):
            room.fail(answer)
            self._sated(room)
        elif self._rooms.get(room.name.encode()) is room:
            entries = answer.get(room.name.encode(), [])
            room.put(entries)
            self._settle(room, drained=len(entries) < asked)

    def regroup(self, pull: Pull) -> None:
        """A server was away: rooms that another one serves by now are read there."""
        for room in list(pull.rooms):
            if self._pulls.at(room.name) is not pull:
                self._sated(room)
                self.hungry(room)

    def _settle(self, room: Room[Any], *, drained: bool) -> None:
        """Where a room goes after a read."""
        self._sated(room)
        if room.space == 0:
            room.fill()
        elif drained:
            self._sleep(room)
        else:
            self.hungry(room)  # behind the others: each in its turn

    # ── those that wait for their stream ──

    def _sleep(self, room: Room[Any]) -> None:
        if not self._blocks:
            self._asleep.add(room)
            return
        reel = next((reel for reel in self._reels if len(reel.rooms) < REEL), None)
        if reel is None:
            reel = Reel(self, self._server.link(f"headrace:{self._owner}:reel", at=room.name))
            self._reels.append(reel)
            self._watch(reel.run(self._recorder), f"reel {len(self._reels)} of {self._owner}")
        reel.join(room)
        self._sleepy.set()

    async def _wake_reels(self) -> None:
        """Interrupt blocked reads that do not cover all their rooms yet."""
        while True:
            await self._sleepy.wait()
            self._sleepy.clear()
            await asyncio.sleep(WAKE_S)
            blocked = [reel for reel in self._reels if reel.stale and reel.blocked and reel.link.is_open]
            stale = [reel for reel in blocked if reel.link.client_id]
            if not stale:
                continue
            try:
                unblocks = [commands.unblock(reel.link.client_id) for reel in stale]
                answers = await self._pulls.at("").link.pipe(unblocks)
            except HeadraceError:
                answers = []  # the pull says so; a blocked read ends by itself
            if any(isinstance(answer, MissingRight) for answer in answers):
                self.block_ms = min(self.block_ms, BLIND_BLOCK_MS)
                return
            self._sleepy.set()  # a read that was only about to block is interrupted the next time

    async def _wake_asleep(self) -> None:
        woken: set[Room[Any]] = set()
        while True:  # those who were woken last are asleep again soon: their number says how often that can be
            await asyncio.sleep(min(POLL_MOST_S, max(POLL_LEAST_S, len(woken) / POLL_RATE)))
            woken, self._asleep = self._asleep, set()
            for room in woken:
                self.hungry(room)

    def arrived(self, reel: Reel, entries: ownership.Entries) -> None:
        """A reel's read has answered."""
        for name, rows in entries.items():
            room = reel.rooms.get(name)
            if room is None or self._rooms.get(name) is not room:
                continue
            room.put(rows)
            if room.space == 0:
                del reel.rooms[name]
                room.fill()

    def singly(self, reel: Reel) -> None:
        """A key of a reel holds no stream any more: read alone, each, it is found and the others go on."""
        rooms = list(reel.rooms.values())
        reel.rooms.clear()
        for room in rooms:
            self.hungry(room)


class Pull:
    """The hungry rooms of one shard, read many in one write."""

    def __init__(self, feed: Feed, link: Link) -> None:
        self.rooms: dict[Room[Any], None] = {}  # in the order in which they became hungry
        self.link = link
        self._feed = feed
        self._changed = asyncio.Event()

    def add(self, room: Room[Any]) -> None:
        self.rooms[room] = None
        self._changed.set()

    async def run(self, recorder: Recorder) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            tries = 0
            while self.rooms:
                try:
                    await self._read(list(islice(self.rooms, PULL)))
                    tries = 0
                except HeadraceError as error:
                    await rest(error, tries, recorder, may_move=self.link.may_move)
                    tries += 1
                    self._feed.regroup(self)

    async def _read(self, batch: Sequence[Room[Any]]) -> None:
        """One write. Raises if some of it has to go again; the others have been read."""
        asked = [max(1, room.space) for room in batch]
        calls = [
            ownership.read_after([(room.name, room.cursor)], space) for room, space in zip(batch, asked, strict=True)
        ]
        failed: HeadraceError | None = None
        for room, space, answer in zip(batch, asked, await self.link.pipe(calls), strict=True):
            if not isinstance(answer, HeadraceError) or isinstance(answer, WrongType):  # of this one stream alone
                self._feed.pulled(room, space, answer)
                continue
            if failed is None or classify(failed) is Verdict.RETRY:
                failed = answer
            if room in self.rooms:  # behind the others: they may have better luck
                del self.rooms[room]
                self.rooms[room] = None
        if failed is not None:
            raise failed


class Reel:
    """One blocking read over at most 200 streams."""

    def __init__(self, feed: Feed, link: Link) -> None:
        self.rooms: dict[bytes, Room[Any]] = {}
        self.link = link
        self.blocked = False
        self.stale = False  # rooms joined that the read under way does not cover
        self._feed = feed
        self._changed = asyncio.Event()

    def join(self, room: Room[Any]) -> None:
        self.rooms[room.name.encode()] = room
        self.stale = True
        self._changed.set()

    async def run(self, recorder: Recorder) -> None:
        tries = 0
        while True:
            if not self.rooms:
                self._changed.clear()
                await self._changed.wait()
            self.stale = False
            after = [(room.name, room.cursor) for room in self.rooms.values()]
            block_ms, self.blocked = self._feed.block_ms, True
            try:
                read = ownership.read_after(after, self._feed.prefetch, block_ms)
                entries = await self.link.call(read, wait_ms=block_ms)
                self._feed.arrived(self, entries)
                tries = 0
                if entries and len(self.rooms) > FEW:
                    await asyncio.sleep(GATHER_S)
            except WrongType:
                self._feed.singly(self)
            except HeadraceError as error:
                await rest(error, tries, recorder, may_move=self.link.may_move)
                tries += 1
            finally:
                self.blocked = False


async def rest(error: HeadraceError, tries: int, recorder: Recorder, *, may_move: bool) -> None:
    """Back off after an error of the server; raise it if nobody can help."""
    recorder.count("server_error_total", 1, role="feed", error=type(error).__name__)
    if classify(error) is not Verdict.RETRY:
        raise error
    if tries in (0, 5) or tries % 20 == 0:
        log.warning("feed.waits tries=%d: %s", tries + 1, error)
    await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=may_move) / 1000)
