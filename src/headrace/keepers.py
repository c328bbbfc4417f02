"""The keepers of a worker's leases: a lifeline for its lanes and a heartbeat for its assignments, one of each for every
shard of a cluster, because a shard that is away must not hold up the renewals at another one.

Slots move. When what one thread keeps has come to lie at two masters, or what two keep at one, threads are made anew for
what is where now; the old ones end with the call that they are in.
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
        self.lifelines: list[Lifeline] = []
        self.heartbeats: list[Heartbeat] = []

    def start(self) -> None:
        self._stopped = False
        members = [*(lane.member for lane in self._lanes), *(holding.member for holding in self._holdings)]
        leases = [member.settings.lease_ms for member in members]
        self._pulse = Pulse(min(leases, default=1_000) / 12_000, self._turned)
        self._pulse.start()
        for lane in self._lanes:
            lane.intake.arrived_after = self._pulse.arrived_after
        if self._board is not None:
            self._stamp(time.monotonic())
        self._start_threads(self._pulse)

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

    def _start_threads(self, pulse: Pulse) -> None:
        server, owner, recorder = self._server, self._owner, self._recorder
        tell = None if self._board is None else self._stamp
        posts = [[holding.post for holding in holdings] for holdings in self._by_shard(self._holdings)]
        self.heartbeats = [
            Heartbeat(server, owner, each, pulse, recorder, names=self._names, tell=tell) for each in posts
        ]
        strands = [[lane.strand(self._failed) for lane in lanes] for lanes in self._by_shard(self._lanes)]
        self.lifelines = [Lifeline(server, owner, each, pulse, recorder, tell=tell) for each in strands]
        for thread in self._threads():
            thread.start()

    def _by_shard(self, all_: Sequence[Kept]) -> list[list[Kept]]:
        shards: dict[object, list[Kept]] = {}
        for each in all_:
            shards.setdefault(self._server.place(each.member.stream), []).append(each)
        return list(shards.values())

    def _turned(self, now: float) -> None:
        """On the event loop, a dozen times a lease."""
        if self._board is not None:
            self._board.stamp_loop(now)
        if not self._server.route.spreads or self._stopped:
            return
        if self._are_astray(self.lifelines) or self._are_astray(self.heartbeats):
            self._start_anew()

    def _are_astray(self, threads: Sequence[Lifeline | Heartbeat]) -> bool:
        """Whether they are not one for each master any more."""
        places = [{self._server.place(stream) for stream in thread.streams} for thread in threads]
        return any(len(each) > 1 for each in places) or len(set().union(*places)) < len(places)

    def _start_anew(self) -> None:
        """Threads for what is where now. Whether an old one ends soon does not matter: to renew twice is no harm."""
        assert self._pulse is not None
        for thread in self._threads():
            thread.cut()
            task = asyncio.get_running_loop().create_task(thread.stop(), name="headrace keepers")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._start_threads(self._pulse)

    def _stamp(self, now: float) -> None:
        """From a thread: this process runs, and these are its connections."""
        assert self._board is not None
        ids = [client_id for lane in self._lanes for client_id in lane.client_ids()]
        ids += [client_id for holding in self._holdings for client_id in holding.client_ids()]
        ids += [client_id for thread in self._threads() for client_id in thread.client_ids]
        self._board.tell_clients(ids)
        self._board.stamp_thread(now)
