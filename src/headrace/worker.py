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
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headrace import points
from headrace.board import Board
from headrace.errors import HeadraceError, Verdict, WrongType, classify
from headrace.gate import Gate
from headrace.job import Job
from headrace.lane import Lane
from headrace.lifeline import Lifeline, Pulse
from headrace.marks import Marks, NoMarks
from headrace.member import Member
from headrace.names import keys_of
from headrace.policy import reconnect_delay_ms
from headrace.recorder import Recorder
from headrace.redis import capabilities, commands, scripts
from headrace.redis.connect import Server

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
    ) -> None:
        self.owner = owner
        self.lanes: list[Lane] = []
        self._jobs = list(jobs)
        self._server = server
        self._fixed = fixed
        self._recorder = recorder
        self._provided = provided
        self._grace_s = grace_s
        self._board = board
        self._gate = Gate()
        self._pulse: Pulse | None = None
        self._lifeline: Lifeline | None = None
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
        self._start_lifeline()
        for lane in self.lanes:
            for loop in lane.loops():
                self._watch(loop, f"loop of {lane.stream}")
            self._watch(lane.reader.run(), f"reader of {lane.stream}")
        log.info("worker.started owner=%s lanes=%d", self.owner, len(self.lanes))

    async def _opened(self, tries: int) -> bool:
        """One try to open all lanes. False: the server cannot just now, and a moment has passed."""
        try:
            await self._open_lanes()
        except HeadraceError as error:
            await self._close()
            self.lanes.clear()
            self._gate.forget()
            if classify(error) is not Verdict.RETRY:
                raise
            wait_ms = reconnect_delay_ms(tries, random.random())
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
            for index, job in enumerate(self._jobs):
                member = Member(keys_of(job.stream), job.group, self.owner, job.settings, self._fixed)
                if self.capabilities is None:
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

    async def _join(self, lane: Lane) -> None:
        member = lane.member
        if await lane.out_link.call(commands.type_of(member.keys.dead_letters)) not in ("none", "stream"):
            raise WrongType(
                f"{member.keys.dead_letters} holds no stream, but the dead letters of {member.stream!r} go there: "
                f"rename or delete that key"
            )
        await lane.groups.ensure()
        joined = await lane.out_link.call(lane.join_call())
        if not joined.ok:
            raise joined.taken(member.owner)
        lane.heard_lease(joined.lease_ms)
        points.reached("worker.joined")
        await lane.janitor.keep_floor()
        await lane.read_link.open()

    def _marks(self, index: int) -> Marks:
        return NoMarks() if self._board is None else self._board.lane(index)

    def _start_lifeline(self) -> None:
        if not self.lanes:
            return
        lease_s = min(lane.job.settings.lease_ms for lane in self.lanes) / 1000
        board = self._board
        self._pulse = Pulse(lease_s / 12, None if board is None else board.stamp_loop)
        self._pulse.start()
        self._lifeline = Lifeline(
            self._server,
            self.owner,
            [lane.strand(self._fail) for lane in self.lanes],
            self._pulse,
            self._recorder,
            tell=None if board is None else self._stamp,
        )
        if board is not None:
            self._stamp(time.monotonic())
        self._lifeline.start()

    def _stamp(self, now: float) -> None:
        """From the lifeline's thread: this process runs, and these are its connections."""
        assert self._board is not None
        ids = [client_id for lane in self.lanes for client_id in lane.client_ids()]
        if self._lifeline is not None and self._lifeline.client_id:
            ids.append(self._lifeline.client_id)
        self._board.tell_clients(ids)
        self._board.stamp_thread(now)

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

    async def drained(self, *, every_s: float = 0.1) -> None:
        """Return once nothing is unread, pending or waiting in any of the groups (``--burst``)."""
        while True:
            levels = [
                await lane.out_link.call(scripts.levels(lane.member.keys, lane.member.group)) for lane in self.lanes
            ]
            if not any(level.backlog for level in levels):
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
        await self._end_handlers(self._grace_s if grace_s is None else grace_s)
        await self._last_words()
        points.reached("worker.released")
        await self._close()
        log.info("worker.stopped owner=%s", self.owner)

    async def _unblock(self, lane: Lane) -> None:
        """End a blocked read and let its answer be taken: what it brought is released."""
        if lane.reader.blocked and lane.read_link.client_id:
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
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lifeline is not None:
            await self._lifeline.stop()
        if self._pulse is not None:
            self._pulse.stop()
        for lane in self.lanes:
            await self._leave(lane)
            await lane.close()
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()  # told by wait(), or by the log where nobody waited

    async def _leave(self, lane: Lane) -> None:
        """Take the owner out of its group, if nothing is left in its name."""
        member = lane.member
        if not lane.out_link.is_open:
            return
        try:
            await lane.out_link.call(scripts.remove_owner(member.keys, member.group, member.owner, 0))
        except HeadraceError as error:
            log.debug("owner.stays stream=%s owner=%s: %s", member.stream, member.owner, error)


async def _probe(link: Any, member: Member) -> capabilities.Capabilities:
    return capabilities.judge(await link.pipe(capabilities.probe(member.keys)))
