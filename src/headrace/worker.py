"""A worker: all lanes of one process, started, watched and stopped together.

    start   connect, learn what the server can do, make the groups, take the owner's name, start the loops
    stop    reading ends, what was not started is released, running handlers get their grace, finished work is
            acknowledged, the rest is released (attempt not burnt), the owner leaves its groups (SPEC 22)

Stopping twice, or before starting, is fine. A loop that fails for good (a missing right, a wrong type) fails the
worker: :meth:`Worker.wait` raises its error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace import points
from headrace.announcer import Announcer
from headrace.board import Board
from headrace.errors import HeadraceError, Verdict, WrongType, classify
from headrace.gate import Gate
from headrace.handling import Handlers
from headrace.hints import Hints
from headrace.holding import Holding
from headrace.job import Job
from headrace.keepers import Keepers
from headrace.lane import Lane
from headrace.marks import Marks, NoMarks
from headrace.member import Member
from headrace.names import keys_of
from headrace.ownerjob import OwnerJob
from headrace.partitioned import agreeing, check_agreed
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import capabilities, commands, scripts
from headrace.redis.connect import Server
from headrace.tenure import Tenants

log = logging.getLogger("headrace")

LAST_WORDS_S = 5.0  # how long the end waits for the server to answer the last outcomes


class Worker:
    def __init__(
        self,
        jobs: Sequence[Job],
        server: Server,
        owner: str,
        *,
        fixed: bool = False,
        recorder: Recorder,
        provided: Mapping[type, Any],
        grace_s: float = 30.0,
        board: Board | None = None,
        owner_jobs: Sequence[OwnerJob] = (),
        listener: Callable[[Holding], Tenants] | None = None,
    ) -> None:
        self.owner = owner
        self.lanes: list[Lane] = []
        self.holdings: list[Holding] = []
        self._announcers: list[Announcer] = []
        self._owner_jobs = list(owner_jobs)
        self._listener = listener  # instead of the jobs' functions: decides itself what it takes from dead owners
        self._jobs = list(jobs)
        self._server = server
        self._fixed = fixed
        self._recorder = recorder
        self._provided = provided
        self._grace_s = grace_s
        self._board = board
        self._gate = Gate()
        codes = {getattr(job.function, "__code__", None): job.name for job in self._owner_jobs}
        self._keepers = Keepers(
            *(server, owner, self.lanes, self.holdings, recorder),
            names={code: name for code, name in codes.items() if code is not None},
            failed=self._fail,
            board=board,
        )
        self._hints: Hints | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self._stopped = False
        self._hurry = asyncio.Event()
        self.capabilities: capabilities.Capabilities | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if kind is None and self._failed is not None and self._failed.done():
            self._failed.result()  # what failed the worker for good is not lost, wherever it was used

    # ── start ──

    async def start(self) -> None:
        """Raises at once what would fail later: bad password, missing right, wrong type, server too old, name taken.

        A server that is away or full just now is waited for (SPEC 20, 54).
        """
        self._failed = asyncio.get_running_loop().create_future()
        tries = 0
        while not await self._opened(tries):
            tries += 1
        self._keepers.start()
        self._start_hints()
        for lane in self.lanes:
            for loop in lane.loops():
                self._watch(loop, f"loop of {lane.stream}")
            self._watch(lane.reader.run(), f"reader of {lane.stream}")
        for holding, job in zip(self.holdings, self._owner_jobs, strict=True):
            if self._listener is None:
                holding.start(
                    Handlers(holding, job.bind(self._provided, self._gate), job.name), self._watch, self._fail
                )
            else:
                holding.start(self._listener(holding), self._watch, self._fail)
        for announcer in self._announcers:
            self._watch(announcer.run(), f"announcer of {self.owner}")
        log.info("worker.started owner=%s lanes=%d", self.owner, len(self.lanes) + len(self.holdings))

    async def _opened(self, tries: int) -> bool:
        """One try to open all lanes. False: the server cannot just now, and a moment has passed."""
        try:
            await self._open_lanes()
            await self._open_holdings()
        except HeadraceError as error:
            await self._close()
            self.lanes.clear()
            self.holdings.clear()
            self._announcers.clear()
            self._gate.forget()
            if classify(error) is not Verdict.RETRY:
                raise
            wait_ms = reconnect_delay_ms(tries, random.random(), may_move=self._server.route.moves)
            log.warning("worker.waits owner=%s: %s; again in %d ms", self.owner, error, wait_ms)
            await asyncio.sleep(wait_ms / 1000)
            return False
        except BaseException:
            await self._close()
            raise
        return True

    async def _open_lanes(self) -> None:
        link = self._server.link(f"headrace:{self.owner}:start")
        try:
            cut = {job.partitions for job in self._jobs} | {job.partitions for job in self._owner_jobs}
            for partitions in filter(None, cut):
                check_agreed(partitions, [await link.call(call) for call in agreeing(partitions)])
            for index, job in enumerate(self._jobs):
                member = Member(keys_of(job.stream), job.group, self.owner, job.settings, self._fixed)
                if self.capabilities is None or self._server.route.spreads:
                    self.capabilities = await _probe(link, member)
                lane = Lane(
                    job,
                    member,
                    self._server,
                    self.capabilities,
                    gate=self._gate,
                    marks=self._marks(index),
                    recorder=self._recorder,
                    provided=self._provided,
                )
                self.lanes.append(lane)
                await self._join(lane)
        finally:
            await link.close()

    async def _open_holdings(self) -> None:
        link = self._server.link(f"headrace:{self.owner}:start")
        try:
            for job in self._owner_jobs:
                settings = job.settings
                member = Member(keys_of(job.stream), job.group, self.owner, settings.handler, self._fixed)
                if self.capabilities is None:
                    self.capabilities = await _probe(link, member)
                parts = (member, settings, job.codec, self._server, self._recorder)
                holding = Holding(*parts, inherits=self._listener is None)
                self.holdings.append(holding)
                await holding.open()
                if job.partitions is not None:
                    announcer = Announcer(member, job.partitions.names, holding.calls.link)
                    holding.acquirer.regrouped = announcer.hurry
                    self._announcers.append(announcer)
                    await announcer.open()
        finally:
            await link.close()

    async def _join(self, lane: Lane) -> None:
        member = lane.member
        if await lane.out_link.call(commands.type_of(lane.engine.dead_letters)) not in ("none", "stream"):
            raise WrongType(
                f"{lane.engine.dead_letters} holds no stream, but the dead letters of {member.stream!r} go there: "
                f"rename or delete that key"
            )
        await lane.groups.ensure()
        joined = await lane.out_link.call(lane.join_call())
        if not joined.ok:
            raise joined.taken(member.owner)
        lane.heard_lease(joined.lease_ms)
        await lane.engine.check(lane.out_link)
        points.reached("worker.joined")
        await lane.janitor.look()
        await lane.read_link.open()

    def _marks(self, index: int) -> Marks:
        return NoMarks() if self._board is None else self._board.lane(index)

    def _start_hints(self) -> None:
        """Listen to what the server says, for the lanes that can use it."""
        engines = [lane.engine for lane in self.lanes if lane.engine.wants_hints]
        if not engines:
            return

        def expired(key: str) -> None:
            for engine in engines:
                engine.hint(key)

        self._hints = Hints(self._server, self.owner, expired)
        self._hints.start()

    # ── while it runs ──

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"headrace {name}")
        self._tasks.add(task)
        task.add_done_callback(self._loop_ended)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            log.error("worker.failed owner=%s: %s", self.owner, error)
            self._failed.set_exception(error)
            for lane in self.lanes:
                lane.reader.stop()

    async def wait(self) -> None:
        """Return never; raise what failed the worker for good."""
        assert self._failed is not None, "start the worker first"
        await asyncio.shield(self._failed)

    def reset_topology(self) -> None:
        """Read the map of the cluster, or the primary's address, again; hints listen where they belong by it."""
        self._server.reset_topology()
        if self._hints is not None:
            self._hints.reset_topology()

    async def drained(self, *, every_s: float = 0.1) -> None:
        """Return once nothing is unread, pending or waiting in any of the groups (``--burst``)."""
        while True:
            levels = [
                await lane.out_link.call(scripts.levels(lane.member.keys, lane.member.group)) for lane in self.lanes
            ]
            if not any(level.backlog for level in levels) and all(holding.drained for holding in self.holdings):
                return
            await asyncio.sleep(every_s)

    # ── stop ──

    def hurry(self) -> None:
        """Do not wait for the rest of the grace (a second SIGTERM)."""
        self._hurry.set()

    async def stop(self, grace_s: float | None = None) -> None:
        if self._stopped:
            return
        self._stopped = True
        for lane in self.lanes:
            lane.stop_taking()
        await asyncio.gather(*(self._unblock(lane) for lane in self.lanes))
        points.reached("worker.stopping")
        grace_s = self._grace_s if grace_s is None else grace_s
        left = [holding.stop(grace_s, self._hurry) for holding in self.holdings]
        await asyncio.gather(self._end_handlers(grace_s), *left)
        await self._last_words()
        points.reached("worker.released")
        await self._close()
        log.info("worker.stopped owner=%s", self.owner)

    async def _unblock(self, lane: Lane) -> None:
        """End a blocked read and let its answer be taken: what it brought is released."""
        # While the stream moves the two links may be at two servers, and the number is somebody else's at the other; so
        # it is at a server that was started again.
        reads = lane.reader.blocked and lane.read_link.is_open and lane.read_link.client_id
        if reads and lane.read_link.node == lane.out_link.node:
            try:
                await lane.out_link.call(commands.unblock(lane.read_link.client_id))
            except HeadraceError:
                return  # it ends by itself within a quarter of a lease

    async def _end_handlers(self, grace_s: float) -> None:
        running = [asyncio.ensure_future(lane.runners.ended()) for lane in self.lanes]
        if running:
            hurry = asyncio.ensure_future(self._hurry.wait())
            everything = asyncio.gather(*running)
            both: set[asyncio.Future[Any]] = {everything, hurry}
            await asyncio.wait(both, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            for lane in self.lanes:
                lane.executor.stopping = True
                lane.runners.cancel()
            await everything

    async def _last_words(self) -> None:
        """Wait until the server has answered every outcome, for a bounded time."""
        deadline = time.monotonic() + LAST_WORDS_S
        readers = [task for task in self._tasks if task.get_name().startswith("headrace reader")]
        if readers:
            await asyncio.wait(readers, timeout=LAST_WORDS_S)
        for lane in self.lanes:
            lane.outbox.carried(by_reader=False)
            lane.intake.release_queued()
        while time.monotonic() < deadline and any(lane.slots.held for lane in self.lanes):
            if self._failed is not None and self._failed.done():
                return
            await asyncio.sleep(0.005)

    async def _close(self) -> None:
        # Asked before the tasks are ended: one that was in the middle of a call takes the connection with it, and the
        # server is there all the same. Where it is not, nobody waits for it to take leave.
        reachable = [lane for lane in self.lanes if lane.out_link.is_open]
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._keepers.stop()
        if self._hints is not None:
            await self._hints.stop()
        for lane in self.lanes:
            if lane in reachable:
                await self._leave(lane)
            await lane.close()
        for holding in self.holdings:
            await holding.close()
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # told by wait(), or by the log where nobody waited

    async def _leave(self, lane: Lane) -> None:
        """Take the owner out of its group, if nothing is left in its name."""
        member = lane.member
        try:
            await lane.out_link.call(scripts.remove_owner(member.keys, member.group, member.owner, 0))
        except HeadraceError as error:
            log.debug("owner.stays stream=%s owner=%s: %s", member.stream, member.owner, error)


async def _probe(link: Any, member: Member) -> capabilities.Capabilities:
    return capabilities.judge(await link.pipe(capabilities.probe(member.keys)))
