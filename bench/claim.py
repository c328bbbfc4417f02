"""20,000 pending of which 1,000 are due, one in twenty: how long until they are in new hands.

Three ways, over the same kind of connection, a hundred at a time: XAUTOCLAIM until its cursor has come round (it tells
no delivery count, so a fence could not be built on it), XREADGROUP CLAIM where the server has it, and what a worker of
Headrace does on that server: CLAIM in a script with a deadline (ADR 15), or the rescue script, whose time
``script_ms`` is in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from bench.arena import Arena
from bench.report import Criterion, Report, Run, highest
from headrace.names import Keys, keys_of
from headrace.redis import capabilities, commands, scripts
from headrace.redis.calls import Call, Wire, as_is
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink

PENDING: Final = 20_000
DUE: Final = 1_000
AT_ONCE: Final = 100
LEASE_MS: Final = 60_000
ROUNDS: Final = 15
GROUP: Final = "billing"

SCRIPT: Final = "rescue script"
CLAIM: Final = "CLAIM in a script"  # the price of its deadline (ADR 15)

CRITERIA: Final = (Criterion("ratio", "≤", 1.3, {"way": SCRIPT}), Criterion("ratio", "≤", 2.2, {"way": CLAIM}))


def report(runs: list[Run]) -> Report:
    return Report(
        "claim",
        f"{PENDING:,} pending, {DUE:,} due, until all are taken over; beside XAUTOCLAIM and XREADGROUP CLAIM",
        "≤ 1.3 × the better command; ≤ 2.2 × where CLAIM carries a deadline (ADR 15)",
        runs,
        CRITERIA,
        ("version", "way", "ours_ms", "xautoclaim_ms", "claim_ms", "script_ms", "ratio"),
        highest("ratio"),
        _told,
    )


def _told(runs: Sequence[Run]) -> str:
    run = runs[0]
    return f"{run['ratio']:.2f} × ({run['ours_ms']:.1f} ms, {run['way']})"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    pending, due = max(200, int(PENDING * scale)), max(10, int(DUE * scale))
    link = Server(arena.url).sync_link("bench", timeout_ms=60_000)
    try:
        field = Field(arena, link, pending, due)
        native = capabilities.judge(link.pipe(capabilities.probe(field.keys))).claim
        ways = {"xautoclaim": field.autoclaim, "script": field.script}
        if native:
            ways |= {"claim": field.claim, "take_over": field.take_over}
        times = {name: field.time(way, ROUNDS if scale >= 1 else 3) for name, way in ways.items()}
    finally:
        link.close()
    ours = times["take_over" if native else "script"]
    better = min(ms for name, ms in times.items() if name in ("xautoclaim", "claim"))
    say(f"ours {ours:.1f} ms, the better command {better:.1f} ms")
    return [
        {
            **arena.words,
            "pending": pending,
            "due": due,
            "way": CLAIM if native else SCRIPT,
            "ours_ms": round(ours, 2),
            **{f"{name}_ms": round(ms, 2) for name, ms in times.items()},
            "ratio": round(ours / better, 3),
        }
    ]


class Field:
    """A group in which a dead owner holds everything, and every twentieth delivery is due."""

    def __init__(self, arena: Arena, link: SyncLink, pending: int, due: int) -> None:
        self.keys: Keys = keys_of("orders")
        self._link = link
        self._due = due
        arena.fill(self.keys.stream, pending)
        link.call(commands.create_group(self.keys, GROUP, "0"))
        ids: list[bytes] = []
        while len(ids) < pending:
            ids += [entry[0] for entry in link.call(commands.read(self.keys, GROUP, "dead", 1_000))]
        self._due_ids = ids[:: pending // due][:due]

    def time(self, way: Callable[[], int], rounds: int) -> float:
        """The median in ms over some rounds, each from the same start, after one to warm up."""
        found = []
        for _ in range(rounds + 1):
            self._lay_out()
            begun = time.perf_counter()
            taken = way()
            found.append((time.perf_counter() - begun) * 1000)
            if taken != self._due:
                raise RuntimeError(f"{way.__name__} took {taken} deliveries, not {self._due}")
        return median(found[1:])

    def _lay_out(self) -> None:
        for at in range(0, self._due, AT_ONCE):
            chunk = self._due_ids[at : at + AT_ONCE]
            words: list[Wire] = ["XCLAIM", self.keys.stream, GROUP, "dead", 0, *chunk, "IDLE", 2 * LEASE_MS, "JUSTID"]
            self._link.call(Call(tuple(words), as_is))

    # ── the ways ──

    def autoclaim(self) -> int:
        taken, cursor = 0, b"0-0"
        while True:
            words = ("XAUTOCLAIM", self.keys.stream, GROUP, "me", LEASE_MS, cursor, "COUNT", AT_ONCE)
            reply: list[Any] = self._link.call(Call(words, as_is))
            taken, cursor = taken + len(reply[1]), reply[0]
            if cursor == b"0-0":
                return taken

    def claim(self) -> int:
        taken = 0
        words = (
            "XREADGROUP",
            "GROUP",
            GROUP,
            "me",
            "COUNT",
            AT_ONCE,
            "CLAIM",
            LEASE_MS,
            "STREAMS",
            self.keys.stream,
            ">",
        )
        while found := self._link.call(Call(words, as_is)):
            taken += len(found[0][1])
        return taken

    def take_over(self) -> int:
        taken = 0
        while found := self._link.call(scripts.take_over(self.keys, GROUP, "me", LEASE_MS, AT_ONCE)).entries:
            taken += len(found)
        return taken

    def script(self) -> int:
        taken, cursor = 0, "-"
        while True:
            found = self._link.call(
                scripts.rescue(self.keys, GROUP, "me", LEASE_MS, cursor, AT_ONCE),
            )
            taken, cursor = taken + len(found.taken), found.cursor
            if cursor == "-":
                return taken
