"""A holding: everything one owner has of one group of assignments. Wires the services, as a lane does for a handler.

    acquirer ──▶ takeover ──▶ Room ◀── feed (data streams)
                               │  handler, or listener
                               ├──▶ positions (acks)
                               └──▶ handover (back, failed, finish)

The heartbeat, a thread, keeps one lease for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from headrace import points
from headrace.acquirer import CHUNK, Acquirer
from headrace.assignment import Assignment
from headrace.codec import Codec, decode_fields
from headrace.entrance import Entrance
from headrace.errors import AssignmentTaken, HeadraceError, NoGroup, Verdict, classify
from headrace.feed import Feed
from headrace.gaps import Gaps
from headrace.handover import Handover
from headrace.heartbeat import Post
from headrace.inventory import Inventory
from headrace.janitor import Janitor
from headrace.member import Member
from headrace.names import keys_of, mirror_group
from headrace.ownerjob import OwnerSettings
from headrace.policy import reconnect_delay_ms
from headrace.positions import Positions
from headrace.recorder import Recorder
from headrace.redis import ownership, replies, scripts
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.gather import Gather
from headrace.redis.letters import open_copy
from headrace.redis.ownership import Beat, Place, Take
from headrace.redis.shards import Spread
from headrace.room import OwnedMessage, Room
from headrace.takeover import Takeover
from headrace.tenure import Tenants, Tenure

log = logging.getLogger("headrace")

LAST_WORDS_S = 5.0
ENTRANCE_S = 0.25  # how long the acquirer waits for data streams to be taken over before it goes on
NO_GROUP_S = 0.05  # between two tries to make a group that has vanished

Watch = Callable[[Coroutine[Any, Any, None], str], None]


class Holding:
    def __init__(
        self,
        member: Member,
        settings: OwnerSettings,
        codec: Codec[Any],
        server: Server,
        recorder: Recorder,
        *,
        inherits: bool = True,
    ) -> None:
        self.member = member
        self.settings = settings
        self._recorder = recorder
        self._decode = decode_fields(codec, settings.handler.prefix)
        self._only = f"{settings.handler.prefix}only".encode()
        name = f"headrace:{member.owner}"
        self._read_link = server.link(f"{name}:read", at=member.stream)
        self.calls = Gather(server.link(f"{name}:out", at=member.stream))
        self._data = Spread(server, f"{name}:data")
        self.tenures: dict[bytes, Tenure] = {}
        self.by_name: dict[str, Tenure] = {}
        self._entering: set[bytes] = set()
        self._tenants: Tenants | None = None
        self._fail: Callable[[BaseException], None] = lambda error: None
        self._stopping = False
        self._rebalances = settings.rebalance and inherits  # a listener lets go of rooms itself
        self._mistrusts = False  # an answer did not arrive whole: I may hold what I never saw
        self._idle_turns = 0
        self._asking: asyncio.Task[None] | None = None
        self.post = Post(member, told=self.told, failed=self._failed, join=self.join_call())
        self.acquirer = Acquirer(
            *(member, self._read_link, recorder),
            limit=self._limit,
            held=lambda: self.held,
            inherits=inherits,
            rebalance=settings.rebalance,
        )
        self.handover = Handover(member, self.calls, self._data, recorder, self.place)
        self._entrance = Entrance(
            Takeover(member, self.calls, self._data, self.place, settings.begin),
            self.handover,
            max_attempts=settings.handler.max_attempts,
            room=self._room,
        )
        self._inventory = Inventory(member, self.calls)
        self.positions = Positions(member, server, recorder, place=self.place, lost=self.lose)
        self.feed = Feed(server, member.owner, settings.prefetch, recorder, member.settings.block_ms)
        self.gaps = Gaps(
            *(member, self._data, recorder),
            place=self.place,
            rooms=lambda: [tenure.room for tenure in self.tenures.values()],
        )
        self.janitor = Janitor(
            *(member, self.calls.link, recorder), in_flight=lambda: len(self.tenures), owners_only=True
        )

    def place(self, name: str) -> Place:
        """Where a data stream's ownership is kept."""
        return place_of(self.member.stream, self.member.group, name)

    @property
    def held(self) -> int:
        """How many assignments are in this owner's hands, also those whose data stream cannot be reached just now."""
        return len(self.tenures) + len(self._entering)

    @property
    def known(self) -> list[bytes]:
        """Their ids."""
        return [*self.tenures, *self._entering]

    def _limit(self) -> int:
        """How many assignments may be in hand: what was said, and no more than its tenants can take in just now."""
        assert self._tenants is not None
        return min(self.settings.concurrency, len(self.tenures) + self._tenants.room)

    def join_call(self) -> Call[replies.Joined]:
        member = self.member
        info = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        lease_ms = member.settings.lease_ms
        return scripts.join(member.keys, member.group, member.owner, member.token, lease_ms, info, member.fixed)

    # ── start ──

    async def open(self) -> None:
        """Make the group, take the owner's name, begin the lease. Raises what would fail later."""
        member, link = self.member, self.calls.link
        await link.call(scripts.ensure_group(member.keys, member.group, member.settings.start))
        joined = await link.call(self.join_call())
        if not joined.ok:
            raise joined.taken(member.owner)
        sent_at = time.monotonic()
        self.acquirer.heard(await link.call(self.post.call()))
        points.reached("holding.joined")
        self.post.beat_at = sent_at
        self._mistrusts = member.fixed  # an earlier process of this name may have left something
        self.post.trust(sent_at, self.post.doubts)

    def start(self, tenants: Tenants, watch: Watch, fail: Callable[[BaseException], None]) -> None:
        self._tenants, self._watch, self._fail = tenants, watch, fail
        self.positions.start(watch)
        self.feed.start(watch)
        watch(self._acquire(), f"acquirer of {self.member.stream}")
        watch(self.janitor.run(), f"janitor of {self.member.stream}")
        watch(self.gaps.run(), f"gaps of {self.member.stream}")

    async def _acquire(self) -> None:
        tries = 0
        while not self._stopping:
            try:
                if self._mistrusts:
                    found = await self.acquirer.unknown(self.known)
                    self._mistrusts = len(found) >= CHUNK  # there may be more
                    await self._let_in(found)
                taken = await self.acquirer.turn()
                self._idle_turns = 0 if taken else self._idle_turns + 1
                await self._let_in(taken)
                tries = 0
            except NoGroup:
                await self._make_group()
                await asyncio.sleep(NO_GROUP_S)
            except HeadraceError as error:
                self._mistrusts = True
                self._recorder.count("server_error_total", 1, role="acquirer", error=type(error).__name__)
                if classify(error) is Verdict.FATAL:
                    raise
                if tries in (0, 5) or tries % 20 == 0:
                    log.warning("acquirer.waits stream=%s tries=%d: %s", self.member.stream, tries + 1, error)
                may_move = self._read_link.may_move
                await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=may_move) / 1000)
                tries += 1

    async def _make_group(self) -> None:
        try:
            await self.acquirer.make_group()
        except HeadraceError as error:
            if classify(error) is not Verdict.RETRY:
                raise

    # ── what comes in ──

    async def _let_in(self, assignments: list[Assignment]) -> None:
        """Take over the streams of these, and wait for that a moment only: a data stream whose server is away must not
        keep this owner from acquiring others. It counts as held meanwhile."""
        if assignments:
            entered = asyncio.Event()
            self._watch(self._entered(assignments, entered), f"entrance of {self.member.stream}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENTRANCE_S):
                    await entered.wait()

    async def _entered(self, assignments: list[Assignment], entered: asyncio.Event) -> None:
        try:
            await self.accept(assignments)
        except HeadraceError as error:
            if classify(error) is Verdict.FATAL:
                raise
            self._mistrusts = True
            log.warning("assignments.unsure stream=%s: %s", self.member.stream, error)
        finally:
            entered.set()

    async def accept(self, assignments: list[Assignment]) -> list[Tenure]:
        """Take over the streams of assignments that this owner now holds."""
        fresh = [each for each in assignments if each.id not in self.tenures and each.id not in self._entering]
        if not fresh:
            return []
        self._entering.update(each.id for each in fresh)
        entered = await asyncio.gather(*map(self._enter, fresh))
        self._recorder.gauge("in_flight", len(self.tenures), **self.member.labels)
        log.info("assignments.taken stream=%s: %d, now %d", self.member.stream, len(fresh), len(self.tenures))
        return [tenure for tenure in entered if tenure is not None]

    async def _enter(self, assignment: Assignment) -> Tenure | None:
        try:
            tenure = await self._entrance.enter(assignment)
        finally:
            self._entering.discard(assignment.id)
        if tenure is not None:
            self.tenures[tenure.assignment.id] = tenure
            self.by_name[tenure.room.name] = tenure
            self.feed.open(tenure.room)
            assert self._tenants is not None
            self._tenants.enter(tenure)
        return tenure

    def _room(self, assignment: Assignment, took: Take) -> Room[Any]:
        if took.gap is not None:
            self.gaps.found(assignment.name, took.gap)
        return Room(
            *(self, self.post, assignment.name),
            info=assignment.info,
            owner=self.member.owner,
            epoch=took.epoch,
            position=took.position.encode(),
            tries=took.tries,
            former=assignment.former,
            prefetch=self.settings.prefetch,
            decode=self._decode,
            read=took.read,
        )

    # ── what rooms ask (room.RoomWays) ──

    async def begin(self, room: Room[Any]) -> None:
        begun = await self._data.call(
            ownership.begin(self.place(room.name), self.member.owner, room.epoch, room.noted + 1)
        )
        points.reached("holding.begun")
        if not begun.ok:
            self.lose(room, begun.holder)
            return
        room.begun, room.noted = True, begun.tries

    async def ack(self, room: Room[Any], raw_id: bytes, number: int, *, begins: bool) -> None:
        await self.positions.ack(room, raw_id, number, begins=begins)

    def ack_soon(self, room: Room[Any], raw_id: bytes, number: int) -> None:
        self.positions.put(room, raw_id, number)

    async def bury(self, room: Room[Any], message: OwnedMessage[Any], reason: str, error: str, attempts: int) -> None:
        await self.positions.flushed(room)
        room.check()
        word = await self.handover.set_aside(room, message, reason, error, attempts)
        if word.kind == "taken":
            self.lose(room, word.holder)
            raise AssignmentTaken(stream=room.name, holder=word.holder)
        room.progressed(message.raw_id, message.number)

    def unpacked(self, fields: list[bytes]) -> list[bytes] | None:
        if len(fields) < 4 or fields[2] != self._only:
            return fields
        copy = open_copy(fields, self.settings.handler.prefix)
        if copy is None:
            return fields
        return copy.fields if copy.only == self.member.group else None

    async def finish(self, room: Room[Any], *, delete: bool) -> None:
        tenure = self.by_name.get(room.name)
        if tenure is None or tenure.room is not room:
            room.check()
            return
        tenure.leaving = True
        await self.positions.flushed(room)
        try:
            await self.handover.finish(tenure.assignment, room, delete=delete)
        except AssignmentTaken as taken:
            self.lose(room, taken.holder)
            raise
        self.forget(tenure)

    def hungry(self, room: Room[Any]) -> None:
        self.feed.hungry(room)

    # ── what goes out ──

    def forget(self, tenure: Tenure) -> None:
        """It is in this owner's hands no more."""
        tenure.room.end()
        self.feed.close(tenure.room)
        if self.tenures.get(tenure.assignment.id) is tenure:
            del self.tenures[tenure.assignment.id]
        if self.by_name.get(tenure.room.name) is tenure:
            del self.by_name[tenure.room.name]

    def lose(self, room: Room[Any], holder: str) -> None:
        """Another owner has it."""
        if not room.lose(holder):
            return
        self._recorder.count("lost_total", 1, **self.member.labels)
        log.warning("assignment.lost stream=%s name=%s holder=%s", self.member.stream, room.name, holder or "-")
        tenure = self.by_name.get(room.name)
        if tenure is not None and tenure.room is room:
            self.forget(tenure)
            assert self._tenants is not None
            self._tenants.lost(tenure)

    async def hand_back(self, tenure: Tenure, *, after_ms: int | None = None) -> None:
        """Give it back, once its acks are answered: whoever takes it goes on after the last of them."""
        await self._hand(tenure, lambda: self.handover.back(tenure.assignment, tenure.room, after_ms=after_ms))

    async def hand_failed(self, tenure: Tenure, error: BaseException) -> None:
        await self._hand(tenure, lambda: self.handover.failed(tenure.assignment, tenure.room, error))

    async def _hand(self, tenure: Tenure, how: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self.tenures.get(tenure.assignment.id) is not tenure:
            return
        tenure.leaving = True
        await self.positions.flushed(tenure.room)
        try:
            await how()
        except AssignmentTaken as taken:
            self.lose(tenure.room, taken.holder)
        finally:
            self.forget(tenure)

    # ── what the heartbeat tells, on the loop ──

    def told(self, beat: Beat) -> None:
        self.acquirer.heard(beat)
        self.post.wake()
        differs = self._inventory.differs(beat.mine, self.held)
        if (self.post.in_doubt or differs) and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask_what_is_mine())
            self._asking.add_done_callback(self._asked)
        elif self._rebalances and not self._stopping:
            self._rebalance()

    async def _ask_what_is_mine(self) -> None:
        """The lease had ended, or counts differ: some may be somebody else's by now."""
        known, held, beat_at, doubts = dict(self.tenures), self.held, self.post.beat_at, self.post.doubts
        try:
            mine = await self._inventory.mine()
        except HeadraceError as error:
            log.warning("assignments.unsure stream=%s: %s", self.member.stream, error)
            return  # still in doubt: asked again with the next beat
        for id_, tenure in known.items():
            if mine.get(id_) != tenure.assignment.count and not tenure.leaving:
                self.lose(tenure.room, "")
        self._mistrusts = self._mistrusts or len(mine) > held
        self.post.trust(beat_at, doubts)

    def _asked(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _rebalance(self) -> None:
        """Hand on what is above the fair share, between two messages."""
        excess = self.acquirer.excess() - sum(tenure.moving for tenure in self.tenures.values())
        for tenure in list(self.tenures.values())[::-1]:
            if excess <= 0:
                return
            if not tenure.moving:
                tenure.moving = True
                tenure.room.stop()
                excess -= 1

    def _failed(self, error: BaseException) -> None:
        self._fail(error)

    # ── the end ──

    @property
    def drained(self) -> bool:
        """Nothing to take, and everything that was read is acknowledged (``--burst``)."""
        rooms = [tenure.room for tenure in self.tenures.values()]
        taken_in = self._idle_turns >= 2 and not self._entering
        return taken_in and self.feed.is_quiet and all(room.idle for room in rooms)

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Take nothing more, let the rooms be left between two messages, hand them all on (SPEC 22 for rooms)."""
        self._stopping = self._entrance.closed = self.post.leaving = True
        for tenure in self.tenures.values():
            tenure.room.stop()
        with contextlib.suppress(HeadraceError):  # siblings would only share less fairly
            beat = await self.calls.link.call(self.post.call())
            self.post.in_doubt = self.post.in_doubt or not beat.alive
            points.reached("holding.leaving")
        if self._tenants is not None:
            await self._tenants.leave(grace_s, hurry)
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.gather(*(self.hand_back(tenure, after_ms=0) for tenure in list(self.tenures.values())))
        except (TimeoutError, HeadraceError) as error:
            log.warning("assignments.kept stream=%s: %s; heirs take them after a lease", self.member.stream, error)

    async def close(self) -> None:
        """After the loops have ended: end the lease, so that heirs take at once what could not be handed on."""
        member = self.member
        if self._asking is not None:
            self._asking.cancel()
        if self.calls.link.is_open:
            calls: list[Call[Any]] = [
                ownership.end_lease(member.keys, member.group, member.owner),
                scripts.remove_owner(member.keys, member.group, member.owner, 0),
            ]
            try:
                await self.calls.link.pipe(calls)
            except HeadraceError as error:
                log.debug("owner.stays stream=%s owner=%s: %s", member.stream, member.owner, error)
        await self.close_links()

    async def close_links(self) -> None:
        await self._read_link.close()
        await self.calls.close()
        await self._data.close()
        await self.positions.close_links()
        await self.feed.close_links()

    def silence(self) -> None:
        """From here on nothing of this owner reaches the server: its handlers end as after a loss (testing.crash)."""
        rooms = [tenure.room for tenure in self.tenures.values()]
        self._stopping = True
        self.tenures.clear()
        self.by_name.clear()
        for room in rooms:
            room.lose("")

    def client_ids(self) -> list[int]:
        """The connections that change something: until they are closed, an ack may be on its way."""
        links = (self._read_link, self.calls.link, *self._data.links, *self.positions.links)
        return [link.client_id for link in links if link.client_id]


@functools.lru_cache(maxsize=50_000)  # asked for with every ack
def place_of(stream: str, group: str, name: str) -> Place:
    """Where the ownership of one data stream is kept, for one group of an announcement stream."""
    keys = keys_of(name)
    return Place(name, keys.ownership(stream, group), mirror_group(stream, group))
