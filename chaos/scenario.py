"""A scenario is data: who works, what is fed, what goes wrong how often, and what must hold all the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.topology import KINDS, Kind, ServerPlan

BLOCK_S: Final = 8.0  # of a mix that shifts
EVERY: Final = ("redis8", "valkey9", "redis6", "redis7")


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of fault: how long from one to the next (drawn anew each time), and its parameters."""

    fault: str
    every_s: tuple[float, float]
    words: Mapping[str, Any] = field(default_factory=dict)
    first_s: float = 0.5  # nothing goes wrong before
    most: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One fault of a schedule."""

    at_s: float
    fault: str
    seed: int
    words: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The fault with its parameters: a partition one way is another kind than one both ways."""
        return " ".join([self.fault, *(f"{name}={word}" for name, word in sorted(self.words.items()))])


@dataclass(frozen=True, slots=True)
class Staff:
    """Who works."""

    workers: int = 3
    supervised: bool = False
    lease_s: float = 1.0
    concurrency: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)  # of the handler, beyond lease and concurrency
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the worker's process
    proxied: bool = False  # every worker reaches the server through a proxy of its own
    preload: str = ""  # a library the workers are started with
    older: int = 0  # so many of them run the version before this one


@dataclass(frozen=True, slots=True)
class Scenario:
    row: int
    name: str
    what: str
    traffic: Traffic
    plans: tuple[Plan, ...] = ()
    staff: Staff = field(default_factory=Staff)
    server: ServerPlan = field(default_factory=ServerPlan)
    promise: Promise = field(default_factory=Promise)
    servers: tuple[str, ...] = EVERY
    topologies: tuple[Kind, ...] = KINDS  # where it can be played
    played: tuple[Kind, ...] = ("single",)  # where it is played when nobody says
    seconds: float = 7.0
    play: str = ""  # a script of its own in chaos.plays, instead of traffic and plans
    rescues: bool = False  # L1 is judged: within a lease and a scan after a death
    quiet_share: float = 0.0  # of the time, in blocks, in which nothing goes wrong
    mixed_share: float = 1.0  # of the kinds of faults, drawn anew for each block, that happen in it


def schedule(scenario: Scenario, seed: int, seconds: float) -> list[Moment]:
    """What goes wrong when. The same scenario, seed and length give the same schedule. In a mix that shifts every kind
    comes at least once, if there is time for it."""
    rng = random.Random(f"{scenario.name}:{seed}")
    moments: list[Moment] = []
    for number, plan in enumerate(scenario.plans):
        at, left_out, planned = plan.first_s + rng.uniform(0, plan.every_s[0]), list[float](), 0
        while at < seconds - 0.5 and planned < plan.most:
            if not _is_quiet(scenario, at) and _is_in(scenario, seed, number, at):
                moments.append(Moment(round(at, 4), plan.fault, rng.getrandbits(32), plan.words))
                planned += 1
            else:
                left_out.append(at)
            at += rng.uniform(*plan.every_s)
        if left_out and not planned:
            at = max(plan.first_s, _busy(scenario, rng.choice(left_out)))
            moments.append(Moment(round(at, 4), plan.fault, rng.getrandbits(32), plan.words))
    return sorted(moments, key=lambda moment: moment.at_s)


def _is_quiet(scenario: Scenario, at: float) -> bool:
    """The last part of every block."""
    return at % BLOCK_S > BLOCK_S * (1.0 - scenario.quiet_share)


def _busy(scenario: Scenario, at: float) -> float:
    """A moment of the same block that is not quiet."""
    return at - at % BLOCK_S * scenario.quiet_share


def _is_in(scenario: Scenario, seed: int, number: int, at: float) -> bool:
    """Whether a kind of fault is in the mix of the block that a moment falls into."""
    block = int(at // BLOCK_S)
    return random.Random(f"{scenario.name}:{seed}:{number}:{block}").random() < scenario.mixed_share
