"""The keepers of a worker's leases: a lifeline for its lanes and a heartbeat for its assignments, one of each for every
shard of a cluster, because a shard that is away must not hold up the renewals at another one.

Slots move. Three times a lease is looked at what is where: a thread that keeps all that is at one master, and nothing
else, goes on; the others are followed by new ones, and end with the call that they are in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TypeVar

from headrace.board import Board
from headrace.heartbeat import Heartbeat
from headrace.holding import Holding
from headrace.lane import Lane
from headrace.lifeline import Lifeline
from headrace.pulse import Pulse
from headrace.recorder import Recorder
from headrace.redis.connect import Server

Kept = TypeVar("Kept", Lane, Holding)
Thread = TypeVar("Thread", Lifeline, Heartbeat)


class Keepers:
    def __init__(
        self,
        server: Server,
        owner: str,
        lanes: Sequence[Lane],
        holdings: Sequence[Holding],
        recorder: Recorder,
        *,
        names: Mapping[CodeType, str],  # of the owners' functions, to say which one blocks the loop
        failed: Callable[[BaseException], None],
        board: Board | None = None,
    ) -> None:
        self._server = server
        self._owner = owner
        self._lanes = lanes
        self._holdings = holdings
        self._recorder = recorder
        self._names = names
        self._failed = failed
        self._board = board
        self._pulse: Pulse | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._sort_s = self._sort_at = 0.0
        self.lifelines: list[Lifeline] = []
        self.heartbeats: list[Heartbeat] = []

    def start(self) -> None:
        self._stopped = False
        self.lifelines, self.heartbeats = [], []
        members = [*(lane.member for lane in self._lanes), *(holding.member for holding in self._holdings)]
        lease_s = min((member.settings.lease_ms for member in members), default=1_000) / 1_000
        self._sort_s = lease_s / 3
        self._pulse = Pulse(lease_s / 12, self._turned)
        self._pulse.start()
        for lane in self._lanes:
            lane.intake.arrived_after = self._pulse.arrived_after
        if self._board is not None:
            self._stamp(time.monotonic())
        self._sort(self._pulse)

    async def stop(self) -> None:
        """End the threads. Stopping twice, or before starting, is fine."""
        self._stopped = True
        for thread in self._threads():
            await thread.stop()
        await asyncio.gather(*self._ending)
        if self._pulse is not None:
            self._pulse.stop()

    def cut(self) -> None:
        """Keep nothing any more, at once and without a word, as a crash would."""
        self._stopped = True
        for thread in self._threads():
            thread.cut()

    def _threads(self) -> list[Lifeline | Heartbeat]:
        return [*self.lifelines, *self.heartbeats]

    def _sort(self, pulse: Pulse) -> None:
        """One thread of each kind for every master, by what is where now."""
        server, owner, recorder = self._server, self._owner, self._recorder
        tell = None if self._board is None else self._stamp

        def heartbeat(holdings: list[Holding]) -> Heartbeat:
            posts = [holding.post for holding in holdings]
            return Heartbeat(server, owner, posts, pulse, recorder, names=self._names, tell=tell)

        def lifeline(lanes: list[Lane]) -> Lifeline:
            strands = [lane.strand(self._failed) for lane in lanes]
            return Lifeline(server, owner, strands, pulse, recorder, tell=tell)

        self.heartbeats = self._sorted(self.heartbeats, self._holdings, heartbeat)
        self.lifelines = self._sorted(self.lifelines, self._lanes, lifeline)
        self._sort_at = time.monotonic() + self._sort_s

    def _sorted(
        self, threads: Sequence[Thread], all_: Sequence[Kept], make: Callable[[list[Kept]], Thread]
    ) -> list[Thread]:
        going = {frozenset(thread.streams): thread for thread in threads}
        found = []
        for kept in self._by_shard(all_):
            thread = going.pop(frozenset(each.member.stream for each in kept), None)
            if thread is None:
                thread = make(kept)
                thread.start()  # before the former ends: to renew twice is no harm
            found.append(thread)
        for former in going.values():
            self._end(former)
        return found

    def _end(self, thread: Lifeline | Heartbeat) -> None:
        thread.cut()
        task = asyncio.get_running_loop().create_task(thread.stop(), name="headrace keepers")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _by_shard(self, all_: Sequence[Kept]) -> list[list[Kept]]:
        shards: dict[object, list[Kept]] = {}
        for each in all_:
            shards.setdefault(self._server.place(each.member.stream), []).append(each)
        return list(shards.values())

    def _turned(self, now: float) -> None:
        """On the event loop, a dozen times a lease."""
        if self._board is not None:
            self._board.stamp_loop(now)
        if self._server.route.spreads and now >= self._sort_at and not self._stopped:
            assert self._pulse is not None
            self._sort(self._pulse)

    def _stamp(self, now: float) -> None:
        """From a thread: this process runs, and these are its connections."""
        assert self._board is not None
        ids = [client_id for lane in self._lanes for client_id in lane.client_ids()]
        ids += [client_id for holding in self._holdings for client_id in holding.client_ids()]
        ids += [client_id for thread in self._threads() for client_id in thread.client_ids]
        self._board.tell_clients(ids)
        self._board.stamp_thread(now)
