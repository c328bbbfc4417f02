"""One run: servers, crew and feeder are started, the schedule happens, then heal, drain, stop and collect."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import redis

from chaos import libraries, witness
from chaos.checker import CONNECTIONS
from chaos.collect import collect
from chaos.crew import Crew, Worker
from chaos.facts import Facts, Left
from chaos.family import Family
from chaos.faults import FAULTS
from chaos.feeder import Feeder
from chaos.orders import MORTAL, POISON, Orders
from chaos.scenario import Moment, Scenario, schedule
from chaos.topology import Kind, Topology, make
from chaos.worker import GROUP
from headrace import App, HeadraceError
from tests.support.history import History, Pen
from tests.support.proxy import Proxy
from tests.support.servers import Server

STREAM: Final = "orders"
BROKEN_DRAIN_S: Final = 2.0  # how long a mutant is waited for; that it is late is not what it is caught by
SUPERVISED_S: Final = 0.25  # in which a dead child's messages start again
QUIET_S: Final = 1.0  # how long an idle crew is watched for spinning


@dataclass(slots=True)
class Deed:
    """What became of one moment of the schedule: by what its fault noted."""

    begun: list[str] = field(default_factory=list)  # and neither healed nor failed
    healed: bool = False


DEED: Final[ContextVar[Deed | None]] = ContextVar("deed", default=None)  # of the schedule, that a task is about


class Stage:
    """What faults and plays work on."""

    def __init__(self, scenario: Scenario, seed: int, seconds: float, topology: Topology, folder: Path) -> None:
        self.scenario = scenario
        self.seed = seed
        self.seconds = seconds
        self.topology = topology
        self.folder = folder
        self.canary = ""
        # A script of its own is about one stream; traffic goes to every shard.
        self.streams = [STREAM] if scenario.play else topology.streams(STREAM)
        self.qualified = len(self.streams) > 1  # ids are written with their stream before them then
        self.pen = Pen(folder / "nemesis.jsonl")
        self.orders = Orders(seed, scenario.traffic.mix, scenario.traffic.slow_s, scenario.traffic.pad)
        self.healed = folder / "healed"
        self.mortal: set[int] = set()  # numbers that may be buried although their orders are no poison
        self.proxies: list[Proxy] = []
        self.lease_s = scenario.staff.lease_s
        self.crew: Crew
        self.parent: Family  # where the scenario is supervised
        self.feeder: Feeder
        self.moving = asyncio.Lock()
        self.begun = self.ended = 0.0
        self.planned: set[str] = set()  # faults of the schedule
        self.happened: set[str] = set()
        self.interfered: set[str] = set()  # found its server in the hands of another fault
        self.older = ""  # which version some of the workers run
        self.stuck: list[Worker] = []  # told to end, and did not in time

    @property
    def stream(self) -> str:
        return self.streams[0]

    @property
    def broken(self) -> bool:
        """Whether the core is a mutant: what it leaves behind need not be waited for."""
        return bool(self.crew.settings.get("mutant"))

    @property
    def unhappened(self) -> set[str]:
        """Faults of the schedule of which not one took place. In a mix one may find every time that another holds the
        server: that it happens at all is asked of all runs of the row then."""
        return self.planned - self.happened - (self.interfered if self.scenario.quiet_share else set())

    @property
    def server(self) -> Server:
        return self.topology.servers[0]

    def note_fault(
        self, what: str, workers: list[Worker] | None = None, *, excuses: bool = False, **about: Any
    ) -> None:
        """Before it happens. ``excuses``: the workers may lose what they hold, until it is healed for them."""
        self.note_harm(what, [worker.pid for worker in workers or []], excuses=excuses, **about)

    def note_harm(self, what: str, pids: list[int], *, excuses: bool = False, **about: Any) -> None:
        if deed := DEED.get():
            deed.begun.append(what)
        self.pen.note("fault", "invoke", what=what, pids=pids, excuses=excuses, **about)

    def healed_fault(self, what: str, workers: list[Worker] | None = None) -> None:
        if deed := DEED.get():
            deed.healed, deed.begun = deed.healed or bool(deed.begun), []
        self.pen.note("fault", "ok", what=what, pids=[worker.pid for worker in workers or []])

    def failed_fault(self, what: str) -> None:
        """It was noted, and then it did not come to it."""
        if deed := DEED.get():
            deed.begun.remove(what)
        self.pen.note("fault", "fail", what=what)

    def id_of(self, raw: bytes, stream: str = "") -> str:
        """A message's id as it is written in the histories."""
        return f"{stream or self.stream}/{raw.decode()}" if self.qualified else raw.decode()

    def proxy_of(self, worker: Worker) -> Proxy:
        return self.proxies[worker.proxy]

    # ── the crew ──

    def worker_settings(self) -> dict[str, Any]:
        staff, promise = self.scenario.staff, self.scenario.promise
        handler = {
            "lease": staff.lease_s,
            "concurrency": staff.concurrency,
            "max_attempts": promise.max_attempts,
            "backoff": {"first": 0.02, "cap": 0.2},
            **staff.options,
        }
        if "requeue" in staff.options:
            del handler["max_attempts"]  # max_retries says it
        return {
            "url": self.topology.url,
            "folder": str(self.folder),
            "streams": self.streams,
            "qualified": self.qualified,
            "handler": handler,
            "healed": str(self.healed),
            "app": {"grace": "2s"},
            **staff.settings,
        }

    async def hire(self, **settings: Any) -> Worker:
        """One more worker; where workers are proxied, behind a proxy of its own."""
        if not self.scenario.staff.proxied:
            return await self.crew.hire(**settings)
        proxy = await Proxy(*self.topology.behind).__aenter__()
        self.proxies.append(proxy)
        worker = await self.crew.hire(**self.topology.through(proxy.ports), **settings)
        worker.proxy = len(self.proxies) - 1
        return worker

    async def way_of_adds(self) -> str:
        """The feeder's URL. With keys its adds are safe to repeat, so it suffers what the workers' proxies do; where
        addresses are learnt from the servers, only workers take a detour."""
        if not (self.scenario.traffic.keyed and self.scenario.staff.proxied):
            return self.topology.url
        proxy = await Proxy(*self.topology.behind).__aenter__()
        self.proxies.append(proxy)
        return str(self.topology.through(proxy.ports).get("url", self.topology.url))

    async def staff(self) -> None:
        staff = self.scenario.staff
        if staff.supervised:
            self.parent = await self.crew.supervise(staff.workers)
            return
        for number in range(staff.workers):
            if number < staff.older:
                tree, self.older = await libraries.older_tree(self.folder)
                await self.hire(zygote="older", env={"PYTHONPATH": str(tree)}, tag="older")
            else:
                await self.hire()
        await self.crew.ready()

    # ── the run ──

    async def play(self) -> None:
        """Traffic for so long, and the schedule beside it; returns when all faults are healed."""
        moments = schedule(self.scenario, self.seed, self.seconds)
        self.planned = {moment.kind for moment in moments}
        self.begun = time.monotonic()
        feeding = asyncio.create_task(self.feeder.run(self.seconds))
        faults = [asyncio.create_task(self._happen(moment)) for moment in moments]
        try:
            await asyncio.gather(feeding, *faults)
        finally:
            for task in (feeding, *faults):
                task.cancel()
            await asyncio.gather(feeding, *faults, return_exceptions=True)
        self.ended = time.monotonic()

    async def _happen(self, moment: Moment) -> None:
        await asyncio.sleep(max(0.0, self.begun + moment.at_s - time.monotonic()))
        deed = Deed()
        DEED.set(deed)
        try:
            await FAULTS[moment.fault](self, random.Random(moment.seed), **moment.words)
        except redis.RedisError as error:
            # Another fault holds the server just now; what this one had set in it goes with the restart.
            self.pen.note("interfered", what=moment.fault, error=type(error).__name__)
            for what in list(deed.begun):
                self.failed_fault(what)
            self.interfered.add(moment.kind)
        if deed.begun or deed.healed:
            self.happened.add(moment.kind)

    async def drain(self) -> tuple[bool, float]:
        """Wait until nothing is unread, pending or waiting. Answers whether, and how long it took."""
        begun, limit = time.monotonic(), BROKEN_DRAIN_S if self.broken else self.scenario.promise.drain_s
        async with App(self.topology.url) as app:
            left = [app.stream(name) for name in self.streams]
            while time.monotonic() - begun < limit:
                try:
                    while left and await left[-1].backlog(GROUP) == 0:
                        left.pop()
                except HeadraceError:
                    pass
                if not left:
                    return True, time.monotonic() - begun
                await asyncio.sleep(0.02)
        return False, time.monotonic() - begun

    async def idle_commands_per_s(self) -> float:
        """Commands that one worker with nothing to do sends in a second."""
        workers = max(1, len(self.crew.alive))
        masters = self.topology.masters

        def processed() -> int:
            return sum(master.info("stats")["total_commands_processed"] for master in masters)

        before = processed()
        await asyncio.sleep(QUIET_S)
        return float(processed() - before - len(masters)) / QUIET_S / workers / len(self.streams)

    def _connections(self) -> dict[str, int]:
        """How many each worker has to one server, at most, beyond the two of each of its streams that are there."""
        read = {worker.pid: {*worker.settings["streams"]} for worker in self.crew.alive}
        most: dict[str, int] = {}
        for node, there in self.topology.places(self.streams):
            owners = [re.match(r"headrace:([^:]+-(\d+)-\w+)", str(row["name"])) for row in node.client_list()]
            for (owner, pid), count in Counter((found[1], int(found[2])) for found in owners if found).items():
                beyond = count - 2 * len(read.get(pid, set()) & there)
                most[owner] = max(most.get(owner, beyond), beyond)
        return most

    async def _settled_connections(self) -> dict[str, int]:
        """The same. One that is being made again has its old one beside it for a moment; what is leaked stays."""
        found, looks = self._connections(), 1
        while max(found.values(), default=0) > CONNECTIONS and looks < 5:
            await asyncio.sleep(0.4)
            found, looks = self._connections(), looks + 1
        return found

    async def finish(self) -> Left:
        """Heal is done: drain, watch, stop, and look at what is left."""
        left = Left()
        left.drained, left.drain_s = await self.drain()
        if left.drained and not self.scenario.staff.supervised and not self.broken:
            left.idle_commands_per_s = await self.idle_commands_per_s()
            left.connections = await self._settled_connections()
        stuck = await self.crew.stop()
        if self.scenario.staff.supervised and not await self.parent.stop():
            left.stuck.append(f"{self.parent.pid}, `headrace run`,")
        left.stuck += [f"{worker.pid}" for worker in (*self.stuck, *stuck)]
        collect(self, left)
        return left

    def facts(self, left: Left) -> Facts:
        numbers = range(self.feeder.added)
        dying = POISON & self.scenario.traffic.mix.keys()
        mortal = MORTAL & self.scenario.traffic.mix.keys()
        orders = {n: self.orders.order(n) for n in numbers} if mortal else {}
        promise = self.scenario.promise
        if self.scenario.rescues and self.scenario.staff.supervised:
            promise = replace(promise, rescue_s=SUPERVISED_S)
        elif self.scenario.rescues:
            promise = replace(promise, rescue_s=self.lease_s * (1.0 if self.topology.native else 1.25))
        return Facts(
            promise=promise,
            events=History(self.folder).events(),
            left=left,
            poison={n: self.orders.payload(n) for n, order in orders.items() if order.do in dying},
            mortal=frozenset(n for n, order in orders.items() if order.do in mortal) | self.mortal,
            lease_s=self.lease_s,
            begun=self.begun,
            ended=self.ended,
            unhappened=sorted(self.unhappened),
        )


@asynccontextmanager
async def stage(
    scenario: Scenario, seed: int, seconds: float, server: str, topology: Kind, **settings: Any
) -> AsyncIterator[Stage]:
    """Servers and an empty crew; all of it is gone afterwards."""
    canary = f"canary{secrets.token_hex(8)}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-chaos-")))
        place = stack.enter_context(libraries.disk(folder, scenario.server.disk_mb))
        env = libraries.environment(scenario.server.preload, folder)
        servers = make(topology, server, canary, scenario.server, place, env)
        stack.callback(servers.close)
        told = Stage(scenario, seed, seconds, servers, folder)
        await stack.enter_async_context(witness.watching(folder, proxied=scenario.staff.proxied))
        told.canary = canary
        told.crew = Crew(
            folder,
            told.pen,
            {**told.worker_settings(), **settings},
            libraries.environment(scenario.staff.preload, folder),
        )
        stack.push_async_callback(told.crew.close)
        told.feeder = Feeder(await told.way_of_adds(), told.streams, told.orders, scenario.traffic, told.pen)
        stack.push_async_callback(told.feeder.close)
        stack.push_async_callback(_close_all, told.proxies)
        yield told


async def _close_all(proxies: list[Proxy]) -> None:
    for proxy in proxies:
        await proxy.__aexit__(None, None, None)
