"""Owner processes for the crash tests, and what must hold of everything they have handled."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.names import keys_of
from headrace.redis import ownership
from headrace.redis.connect import Server as Address
from tests.support.forked import ROOT
from tests.support.history import Event, History
from tests.support.wait import wait_until_sync
from tests.support.workers import SUPERVISE, Process

GROUP = "owners"


class Place(Protocol):
    """Where owners work: one server, or several that belong together."""

    @property
    def url(self) -> str: ...

    def sync(self) -> Any:
        """A plain client for looking at it, and for adding."""


class Owners:
    """Starts processes that run tests/support/rooms.py for one announcement stream."""

    def __init__(self, folder: Path, server: Place, stream: str, **settings: Any) -> None:
        self.folder = folder
        self.server = server
        self.stream = stream
        self.keys = keys_of(stream)
        self.history = History(folder / "history.jsonl")
        self.processes: list[Process] = []
        self.program = "tests.support.rooms"
        self.settings: dict[str, Any] = {"owner": {"lease": "500ms"}, **settings}
        self._link = Address(server.url).sync_link("owners")

    # ── processes ──

    def start(self, *, ready: bool = True, **settings: Any) -> Process:
        return self._begin(f"from {self.program} import main; main()", (), settings, ready=1 if ready else 0)

    def supervise(self, processes: int = 1, **settings: Any) -> Process:
        told = json.dumps({"processes": processes})
        code = SUPERVISE.replace("tests.support.shop", "tests.support.rooms")
        return self._begin(code, (self.server.url, told), settings, ready=processes)

    def _begin(self, code: str, argv: Sequence[str], settings: dict[str, Any], *, ready: int) -> Process:
        told = {**self.settings, **settings, "url": self.server.url, "stream": self.stream}
        told["history"] = str(self.history.path)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        env = {**os.environ, "HEADRACE_ROOMS": json.dumps(told), "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        process = Process(code, argv, env, self.folder / f"owner-{len(self.processes)}.log")
        self.processes.append(process)
        if ready:
            process.ready(ready)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.end()
        self._link.close()

    # ── streams ──

    def room(self, number: int) -> str:
        return f"{self.stream}-room-{number}"

    def announce(self, rooms: int | list[str]) -> list[str]:
        """So many rooms, or these."""
        names = [self.room(number) for number in range(rooms)] if isinstance(rooms, int) else rooms
        calls = [ownership.announce(self.keys, name, json.dumps({"of": name}).encode()) for name in names]
        for at in range(0, len(names), 500):
            self._link.pipe(calls[at : at + 500])
        return names

    def add(self, name: str, count: int = 1, first: int = 0, **payload: Any) -> None:
        client = self.server.sync()
        pipe = client.pipeline(transaction=False)
        for number in range(first, first + count):
            pipe.xadd(name, {"payload": json.dumps({"n": number, **payload})})
        pipe.execute()

    def standing(self, name: str) -> ownership.Standing:
        place = ownership.Place(name, keys_of(name).ownership(self.stream, GROUP), "")
        return self._link.call(ownership.standing(place))

    def holders(self) -> dict[str, int]:
        """How many assignments each owner has, by the pending list."""
        rows = self.server.sync().xpending(self.stream, GROUP)["consumers"]
        return {row["name"].decode(): row["pending"] for row in rows}

    # ── looking ──

    def until(self, happened: Callable[[History], Any], timeout: float = 15.0, what: str = "") -> Any:
        try:
            return wait_until_sync(lambda: happened(self.history), timeout, what=what)
        except AssertionError as late:
            logs = "\n".join(f"── {process.log_file.name}\n{process.log[-3000:]}" for process in self.processes)
            raise AssertionError(f"{late}\n{logs}") from late

    def acked(self, name: str = "") -> list[Event]:
        """Messages whose ack was accepted, in the order in which that was noted."""
        return [event for event in self.history.events("acked") if name in ("", event.about["name"])]

    def done(self) -> set[tuple[str, int]]:
        """(room, n) of every message that is acknowledged: noted as that, or behind the room's position on the server.

        An owner that is killed between its ack and its note leaves the second kind.
        """
        noted = {(event.about["name"], event.about["n"]) for event in self.acked()}
        begun = {(event.about["name"], event.about["n"]): event.id for event in self.history.events("start")}
        unsure = begun.keys() - noted
        positions = {name: _number(self.standing(name).position) for name in {name for name, _ in unsure}}
        return noted | {(name, n) for name, n in unsure if _number(begun[name, n]) <= positions[name]}

    def until_acked(self, count: int, timeout: float = 20.0) -> None:
        self.until(lambda _: len(self.done()) >= count, timeout, what=f"{count} acknowledged")

    def violations(self, expected: dict[str, int]) -> list[str]:
        """What went wrong in any room: skipped, or out of order, or handled under an older epoch after a newer one.

        A message handled by an owner that died before its ack is handled again by the next: that is no violation.
        """
        wrong = []
        starts = defaultdict(list)
        for event in self.history.events("start"):
            starts[event.about["name"]].append(event)
        noted = Counter((event.about["name"], event.about["n"]) for event in self.acked())
        wrong += [f"{name}: {n} acknowledged twice" for (name, n), times in noted.items() if times > 1]
        done = self.done()
        for name, count in expected.items():
            missing = {n for n in range(count) if (name, n) not in done}
            if missing:
                wrong.append(f"{name}: {sorted(missing)[:5]} never acknowledged")
            wrong += _out_of_order(name, starts[name])
        return wrong


def _number(id_: str) -> tuple[int, int]:
    """An id as it is ordered; a position that is not there is below all."""
    ms, _, seq = (id_ or "0-0").partition("-")
    return int(ms), int(seq)


def _out_of_order(name: str, starts: list[Event]) -> list[str]:
    """Within an epoch each message follows its predecessor; a new epoch starts at most one after what was done."""
    wrong = []
    by_epoch: dict[int, list[int]] = defaultdict(list)
    for event in starts:
        by_epoch[event.about["epoch"]].append(event.about["n"])
    for epoch, numbers in by_epoch.items():
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            wrong.append(f"{name}: epoch {epoch} handled {numbers[:20]}")
    reached = -1
    for epoch in sorted(by_epoch):
        if by_epoch[epoch][0] > reached + 1:
            wrong.append(f"{name}: epoch {epoch} began at {by_epoch[epoch][0]}, {reached} was the last before")
        reached = max(reached, by_epoch[epoch][-1])
    return wrong
