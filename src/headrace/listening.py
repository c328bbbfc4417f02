"""Listening: assignments as events, for those who decide themselves what to take and when to let go (SPEC 44).

The events wait in a queue of bounded length. Nothing in it is ever dropped for being slow: while it is full no more
assignments are taken, so Added cannot overflow it; Expired is told again in the next lease anyway; of Disowned there is
at most one for each room in hand. The lease is renewed by a thread that knows nothing of the queue.

Of an owner whose lease has ended it is told, and from it it is claimed, only where leases can be trusted: not right
after a connect, nor after the server stood still (SPEC 20). A claim waits until then.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.assignment import Assignment
from headrace.errors import (
    AlreadyClaimed,
    AssignmentRefused,
    CodecError,
    HeadraceError,
    NameRefused,
    NotOwned,
    Verdict,
    classify,
)
from headrace.events import Added, Disowned, Event, Expired, Terminated
from headrace.holding import Holding
from headrace.ownerjob import OwnerJob
from headrace.policy import spread
from headrace.redis import ownership
from headrace.redis.trust import LOOKS, Trust
from headrace.room import Room
from headrace.tenure import Tenure

if TYPE_CHECKING:
    from headrace.worker import Worker

log = logging.getLogger("headrace")

QUEUE: Final = 1_000  # events that may wait for a slow listener
SCAN: Final = 200  # expired assignments looked at at once


class Listener:
    """The tenants of a holding whose rooms are a listener's."""

    def __init__(self, holding: Holding, limit: int) -> None:
        self.holding = holding
        self.queue: deque[Event] = deque()
        self.claiming: set[str] = set()
        self._limit = limit
        self._changed = asyncio.Event()
        self._told: dict[str, float] = {}  # id of an expired assignment -> when to tell it again
        lease_ms = holding.member.settings.lease_ms
        self._trust = Trust(holding.calls.link, lease_ms, quiet_ms=lease_ms // 2)

    @property
    def room(self) -> int:
        return max(0, self._limit - len(self.queue))

    def enter(self, tenure: Tenure) -> None:
        if tenure.room.name not in self.claiming:
            self.put(Added(tenure.room))

    def lost(self, tenure: Tenure) -> None:
        self.put(Disowned(tenure.room.name, tenure.room.holder))

    async def leave(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Rooms have no handler here: the holding hands them back."""

    def put(self, event: Event) -> None:
        self.queue.append(event)
        self._changed.set()

    async def get(self) -> Event:
        while not self.queue:
            self._changed.clear()
            await self._changed.wait()
        return self.queue.popleft()

    # ── whose lease has ended ──

    async def scan(self) -> None:
        """Look every quarter of a lease, also while nothing is told: to know how long the server was silent. Raises
        what nobody can help."""
        member = self.holding.member
        lease_ms = member.settings.lease_ms
        look = ownership.expired(member.keys, member.group, member.owner, SCAN, lease_ms)
        while True:
            await asyncio.sleep(spread(lease_ms // LOOKS, random.random()) / 1000)
            try:
                told = await self.holding.calls.link.call(look)
            except HeadraceError as error:
                if classify(error) is not Verdict.RETRY:
                    raise
                continue
            self._trust.heard(told.server_ms)
            if self._trust.until_ms:
                self._tell(told.left)

    def _tell(self, left: list[ownership.Left]) -> None:
        now, lease_s = time.monotonic(), self.holding.member.settings.lease_ms / 1000
        self._told = {id_: at for id_, at in self._told.items() if at > now}
        for raw_id, fields, count, owner in left:
            id_ = raw_id.decode()
            if id_ in self._told or not self.room:
                continue
            assignment = Assignment(raw_id, fields, count)
            try:
                event = Expired(assignment.name, assignment.info, owner, id_, count)
            except (CodecError, NameRefused):
                continue  # nobody can own it: whoever inherits it buries it
            self._told[id_] = now + lease_s
            self.put(event)

    async def claimed(self, name: str, id_: str = "", count: int | None = None) -> ownership.Claimed:
        """Ask for one of them, until leases can be trusted or it is clear without."""
        member = self.holding.member
        who = (member.keys, member.group, member.owner, name, member.settings.lease_ms)
        while True:
            until_ms = self._trust.until_ms
            claimed = await self.holding.calls.call(
                ownership.claim(*who, id_=id_, count=count, until_ms=until_ms),
            )
            if claimed.kind != "unsure":
                return claimed
            await self._trust.pause()


class Events:
    """Made by :meth:`headrace.Assignments.events`. Starts with its first event; ends with Terminated."""

    def __init__(
        self, hire: Callable[[OwnerJob, Callable[[Holding], Listener]], Worker], job: OwnerJob, limit: int
    ) -> None:
        self._hire = hire
        self._job = job
        self._limit = limit
        self._worker: Worker | None = None
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._over = False
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        event = await (await self._started()).get()
        if isinstance(event, Terminated):
            self._over = True
        return event

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose("closed")

    async def aclose(self, reason: str = "closed") -> None:
        """Hand back everything and stop; whoever listens still gets Terminated. Twice is fine."""
        if self.closed:
            return
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop()
        if self._listener is None:
            self._over = True
        else:
            self._listener.put(Terminated(reason))

    async def _started(self) -> Listener:
        async with self._starting:
            if self._listener is None:
                worker = self._hire(self._job, self._listen)
                await worker.start()
                self._worker = worker
                running = asyncio.get_running_loop()
                works = (worker.wait, self._here().scan)
                self._tasks = [running.create_task(self._guarded(work)) for work in works]
        return self._here()

    def _here(self) -> Listener:
        assert self._listener is not None, "the worker starts it"
        return self._listener

    def _listen(self, holding: Holding) -> Listener:
        self._listener = Listener(holding, self._limit)
        return self._listener

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """What fails for good is the last event."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever failed the worker for good
            log.error("listening.failed stream=%s: %s", self._job.stream, error)  # noqa: TRY400 - one clear line
            self._tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            await self.aclose(str(error))

    # ── taking and letting go ──

    async def claim(self, expired: Expired | str) -> Room[Any]:
        listener = await self._started()
        holding, name = listener.holding, expired if isinstance(expired, str) else expired.name
        listener.claiming.add(name)
        try:
            if isinstance(expired, str):
                claimed = await listener.claimed(name)
            else:
                claimed = await listener.claimed(name, expired.id, expired.count)
            if claimed.kind == "ok":
                fields = list(claimed.fields)
                await holding.accept([Assignment(claimed.id, fields, claimed.count, claimed.holder)])
            elif claimed.kind == "mine" and name not in holding.by_name:
                await holding.accept(await holding.acquirer.unknown(holding.known))
        finally:
            listener.claiming.discard(name)
        tenure = holding.by_name.get(name)
        if tenure is not None and claimed.kind == "taken":
            holding.lose(tenure.room, claimed.holder)  # it was mine, and nobody had told me yet
        if tenure is None or claimed.kind not in ("ok", "mine"):
            raise _refusal(claimed, name)
        return tenure.room

    async def done_stream(self, name: str, *, delete: bool = True) -> None:
        listener = await self._started()
        tenure = listener.holding.by_name.get(name)
        if tenure is None:
            raise NotOwned(
                f"{name} is not owned here: it was never given to this process, finished or lost", stream=name
            )
        await tenure.room.finish(delete=delete)


def _refusal(claimed: ownership.Claimed, name: str) -> AssignmentRefused:
    if claimed.kind == "taken":
        return AlreadyClaimed(stream=name, holder=claimed.holder)
    if claimed.kind == "free":
        return AlreadyClaimed(f"{name} is free: it goes as Added to an owner that has room for it", stream=name)
    if claimed.kind == "gone":
        return NotOwned(f"{name} is finished, or was never announced: nothing to claim", stream=name)
    return AssignmentRefused(
        f"{name} cannot be owned now: its earlier owners died with it, so it waits or went to the dead letters",
        stream=name,
    )
