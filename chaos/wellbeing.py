"""The part of the judge that looks at processes, shards and logs instead of messages: L2, L3, L4 and X."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chaos.facts import Facts, Left
from chaos.harm import Harm, Span

SPIN_PER_S: Final = 150.0  # commands of an idle worker: a look every 100 ms at what waits, and renewals
KEPT_SHARE: Final = 0.8  # of their rate, by shards that a fault did not touch
FLOOD_PER_S: Final = 20.0  # lines of one kind that speak of no message, of one process in one second

Acks = Mapping[str, Sequence[float]]  # message -> when its acks were answered
Found = Iterable[tuple[str, str]]  # an invariant, and how it was broken


def wellbeing(facts: Facts, harm: Harm, acks: Acks) -> Found:
    """What was broken, and whether it was the run that it was meant to be."""
    yield from _drained(facts.left, facts.promise.drain_s)
    for span in harm.spans:
        yield from _others_went_on(facts, span, acks)
    yield from _quiet(facts.left)
    yield from _ends(facts, harm)
    for fault in facts.unhappened:
        yield "run", f"{fault} was planned and did not happen"


def _drained(left: Left, limit_s: float) -> Found:
    if not left.drained or left.drain_s > limit_s:
        held = f"{len(left.pending)} pending, {len(left.waiting)} waiting"
        yield "L2", f"not drained after {left.drain_s:.1f} s: {held}"
    elif left.pending or left.waiting:
        held = ", ".join([*left.pending, *left.waiting][:5])
        yield "L2", f"counted as drained, and still pending or waiting: {held}"


def _others_went_on(facts: Facts, span: Span, acks: Acks) -> Found:
    """L3: traffic is even, so what a stream did in this time is compared with what it did in the rest."""
    begun, ended, hurt = facts.begun, facts.ended, span.stream
    since, until = max(span.since, begun), min(span.until, ended)
    within, rest = until - since, ended - begun - (until - since)
    if within < 1.0 or rest < 1.0:
        return
    done: defaultdict[str, list[float]] = defaultdict(list)
    for id_, times in acks.items():
        done[id_.rpartition("/")[0]] += times
    for stream, times in done.items():
        during = sum(since <= at <= until for at in times) / within
        usual = sum(begun <= at < since or until < at <= ended for at in times) / rest
        if stream not in ("", hurt) and during < KEPT_SHARE * usual:
            yield "L3", f"{stream} did {during:.0f} a second while {hurt} was hurt, {usual:.0f} otherwise"


def _quiet(left: Left) -> Found:
    if left.idle_commands_per_s > SPIN_PER_S:
        yield "L4", f"an idle worker sends {left.idle_commands_per_s:.0f} commands a second"
    for name, rate in left.log_lines_per_s.items():
        if rate > FLOOD_PER_S:
            yield "L4", f"{rate:.0f} lines in one second say {name}"


def _ends(facts: Facts, harm: Harm) -> Found:
    def is_allowed(word: str) -> bool:
        return any(f".{error}: " in word for error in facts.promise.ends)

    for pid, word in harm.unasked.items():
        if not is_allowed(word):
            yield "X", f"process {pid} ended with {word}, and nobody had wanted its end"
    for stuck in facts.left.stuck:
        yield "X", f"process {stuck} did not end when it was told to"
    for outcry in facts.left.outcries:
        if not is_allowed(outcry):
            yield "X", f"in the log {outcry}"
