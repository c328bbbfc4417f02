"""The judge: a pure function from what was noted and what was left to a verdict. It knows no server and no clock.

S1  every add that is ok at its level has an effect or a dead letter
S2  no effect that nobody added
S3  no outcome of a superseded owner was taken; no attempt was given to two owners
S4  one end a message: at most one committed effect, and not also a dead letter
S5  tries within the limit, none burnt, nobody alive robbed
S6  dead letters = the poison set, byte for byte
S7  what is neither unread, pending nor waiting has an effect or a dead letter
S8  trimmed while pending: the counter is the truth
S9  no key, owner or connection is left behind
S10 the canary secret appears nowhere
L1  messages of a dead owner start again in time
L2  drained after healing
L3  shards that a fault did not touch keep 80 % of their rate
L4  no spin, no log flood
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from chaos.facts import Facts
from chaos.harm import Harm, Span
from tests.support.history import Event

OUTCOMES: Final = frozenset({"ack", "retry", "release", "bury"})
ENDS: Final = frozenset({"ack", "bury"})
SPIN_PER_S: Final = 150.0  # commands of an idle worker: a look every 100 ms at what waits, and renewals
KEPT_SHARE: Final = 0.8  # of their rate, by shards that a fault did not touch
FLOOD_PER_S: Final = 20.0  # lines of one kind that speak of no message, in one process


@dataclass(slots=True)
class Breach:
    """An invariant that did not hold: how often, and the first cases."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(example)


@dataclass(slots=True)
class Verdict:
    breaches: dict[str, Breach]
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        return not self.breaches


@dataclass(slots=True)
class Life:
    """What happened to one message, from its add or its replay on."""

    starts: list[Event] = field(default_factory=list)
    invoked: list[Event] = field(default_factory=list)
    answered: list[Event] = field(default_factory=list)  # ok, fail or info

    def ok(self, op: str) -> list[Event]:
        return [event for event in self.answered if event.op == op and event.kind == "ok"]

    @property
    def has_effect(self) -> bool:
        return any(event.op == "ack" for event in self.invoked)

    def ended_by_itself(self, start: Event) -> bool:
        """Whether this start came to an outcome of its own that lets the message go on: retry or release."""
        return any(
            event.op in ("retry", "release") and event.owner == start.owner and event.at >= start.at
            for event in (*self.invoked, *self.answered)
        )


def judge(facts: Facts) -> Verdict:
    """Whether everything held that must hold."""
    return _Case(facts).verdict()


class _Case:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._left = facts.left
        self._promise = facts.promise
        self._breaches: defaultdict[str, Breach] = defaultdict(Breach)
        self._lives: defaultdict[str, list[Life]] = defaultdict(lambda: [Life()])
        self._added: dict[str, int] = {}  # ok: id -> number
        self._numbers: set[int] = set()  # every add, whatever became of it
        self._unknown = 0
        self._counts: Counter[str] = Counter()
        self._harm = Harm()
        self._rescued_s: list[float] = []
        self._burnt = self._robbed = self._duplicates = self._lost = 0
        for event in facts.events:
            self._note(event)

    # ── reading ──

    def _note(self, event: Event) -> None:
        op = event.op
        if op == "start":
            self._lives[event.id][-1].starts.append(event)
        elif op in OUTCOMES:
            life = self._lives[event.id][-1]
            (life.invoked if event.kind == "invoke" else life.answered).append(event)
        elif op == "add":
            self._note_add(event)
        elif op == "replay":
            self._lives[event.id].append(Life())
        elif op == "count":
            self._counts[event.about["name"]] += event.about["n"]
        else:
            self._harm.note(event)

    def _note_add(self, event: Event) -> None:
        number = int(event.about["n"])
        self._numbers.add(number)
        if event.kind == "ok":
            self._added[event.id] = number
        else:
            self._unknown += 1

    # ── judging ──

    def verdict(self) -> Verdict:
        letters = Counter(letter.original_id for letter in self._left.letters)
        self._nothing_lost(letters)
        for id_, lives in self._lives.items():
            for at, life in enumerate(lives):
                self._one_life(id_, life, letters[id_] if at == len(lives) - 1 else 0)
        self._sink()
        self._dead_letters(letters)
        self._trims()
        self._left_behind()
        self._liveness()
        return Verdict(dict(self._breaches), self._figures())

    def _keeps(self, life: Life) -> bool:
        """Whether the server kept what it had said about this message, so that it must be exact."""
        if self._promise.keeps or not self._harm.forgets:
            return self._promise.keeps
        return not self._harm.forgot(event.at for event in (*life.starts, *life.invoked, *life.answered))

    def _breach(self, invariant: str, example: str) -> None:
        self._breaches[invariant].add(example)

    def _nothing_lost(self, letters: Counter[str]) -> None:
        """S1, S2, S7."""
        for id_ in self._added:
            if id_ not in letters and id_ not in self._harm.trimmed and not self._is_somewhere(id_):
                self._lost += 1
                self._breach("S1", f"{id_} was added and has neither an effect nor a dead letter")
        for id_, lives in self._lives.items():
            numbers = {int(start.about["n"]) for life in lives for start in life.starts if "n" in start.about}
            if numbers - self._numbers:
                self._breach("S2", f"{id_} was started and never added")
        left = self._left
        for id_ in left.ids - left.pending.keys() - left.waiting - letters.keys() - self._added.keys():
            if left.drained and not self._has_effect(id_):
                self._breach("S7", f"{id_} is acked and has neither an effect nor a dead letter")

    def _is_somewhere(self, id_: str) -> bool:
        """Whether a message has an effect, or is late and not lost: that is L2's business."""
        left = self._left
        is_unread = not left.drained and id_ in left.ids and id_ not in self._lives
        return self._has_effect(id_) or id_ in left.pending or id_ in left.waiting or is_unread

    def _has_effect(self, id_: str) -> bool:
        return any(life.has_effect for life in self._lives.get(id_, ()))

    def _one_life(self, id_: str, life: Life, letters: int) -> None:
        """S3, S4, S5 and what L1 is measured by."""
        self._ends_once(id_, life, letters)
        self._superseded(id_, life)
        self._attempts(id_, life)
        if letters > 1:
            self._breach("S6", f"{id_} was buried {letters} times")

    def _ends_once(self, id_: str, life: Life, letters: int) -> None:
        effects = len(life.ok("ack"))
        if effects + bool(letters) > 1:
            self._duplicates += effects + bool(letters) - 1
            if self._keeps(life):
                self._breach("S4", f"{id_} has {effects} committed effects and {letters} dead letters")

    def _superseded(self, id_: str, life: Life) -> None:
        if len(life.starts) < 2 or not self._keeps(life):
            return
        highest = max(start.attempt for start in life.starts)
        for event in life.answered:
            if event.kind != "ok" or event.attempt >= highest:
                continue
            before = [one.at for one in life.invoked if _same(one, event)]
            since = min(before, default=event.at)
            late = any(start.attempt > event.attempt and start.at < since for start in life.starts)
            if late or event.op in ENDS:
                what = f"{event.op} of {event.owner} at attempt {event.attempt}"
                self._breach("S3", f"{id_}: {what} was taken, and attempt {highest} was started elsewhere")

    def _attempts(self, id_: str, life: Life) -> None:
        if len(life.starts) > self._promise.max_attempts:
            self._breach("S5", f"{id_} was started {len(life.starts)} times, {self._promise.max_attempts} are allowed")
        spent = highest = 0
        former: Event | None = None
        for start in life.starts:
            if start.attempt < highest:
                self._started_late(id_, life, start)
                continue
            highest = start.attempt
            if start.attempt > spent + 1:
                self._burnt += start.attempt - spent - 1
                if self._burnt > self._promise.burns * len(self._harm.died) and self._keeps(life):
                    self._breach("S5", f"{id_}: attempt {start.attempt} is start {spent + 1}: attempts were burnt")
            if former is not None:
                self._followed(id_, life, former, start)
            former = start
            spent = start.attempt - (1 if self._was_released(life, start) else 0)

    def _started_late(self, id_: str, life: Life, start: Event) -> None:
        """One that woke up began what it had read before; its outcome is refused. One that never slept was robbed."""
        if start.pid not in self._harm.excused:
            self._robbed += 1
            if not self._promise.robs and self._keeps(life):
                self._breach("S5", f"{id_} was taken from {start.owner}, which was alive")

    def _was_released(self, life: Life, start: Event) -> bool:
        return any(
            event.op == "release" and event.kind in ("ok", "info") and _same(event, start) for event in life.answered
        )

    def _followed(self, id_: str, life: Life, former: Event, start: Event) -> None:
        """One start after another: by an outcome of its own, by a death, or by robbery."""
        if life.ended_by_itself(former):
            return
        if former.attempt == start.attempt and former.pid not in self._harm.excused and self._keeps(life):
            self._breach("S3", f"{id_}: attempt {start.attempt} was given to {former.owner} and {start.owner}")
        if former.pid not in self._harm.excused:
            self._robbed += 1
            if not self._promise.robs and self._keeps(life):
                self._breach("S5", f"{id_} was taken from {former.owner}, which was alive")
            return
        died = self._harm.died.get(former.pid, math.inf)
        if died < start.at and start.attempt < self._promise.max_attempts:  # the last one waits, to run alone
            since = max(died, former.at)
            if start.attempt > former.attempt + 1:  # somebody held it in between, and died before the start
                since = max(since, self._harm.last_death(start.at))
            self._rescued(id_, start.at - since)

    def _rescued(self, id_: str, seconds: float) -> None:
        self._rescued_s.append(seconds)
        limit = self._promise.rescue_s
        if limit is not None and seconds > limit + 1.0:
            self._breach("L1", f"{id_} was started {seconds:.2f} s after its owner's death")

    def _sink(self) -> None:
        """S4 for effects that are written with the ack."""
        written = Counter(id_ for id_, _ in self._left.sink)
        for id_, attempt in self._left.sink:
            lives = self._lives.get(id_, [Life()])
            starts = [start for life in lives for start in life.starts]
            if not starts:
                self._breach("S2", f"{id_} is in the sink and was never started")
            elif all(map(self._keeps, lives)) and attempt < max(start.attempt for start in starts):
                self._breach("S3", f"{id_}: the sink has attempt {attempt}, a later one was started")
        for id_, times in written.items():
            if times > 1:
                self._duplicates += times - 1
                if all(map(self._keeps, self._lives.get(id_, []))):
                    self._breach("S4", f"{id_} is in the sink {times} times")

    def _dead_letters(self, letters: Counter[str]) -> None:
        """S6."""
        buried: set[int] = set()
        for letter in self._left.letters:
            number = self._added.get(letter.original_id)
            if number is None:
                number = self._number_by_start(letter.original_id)
            if number is None:
                continue  # its add got no answer, and it was buried before a handler saw it
            buried.add(number)
            if number not in self._facts.mortal:
                self._breach("S6", f"{letter.original_id} (number {number}) was buried and is no poison")
            expected = self._facts.poison.get(number)
            if expected is not None and letter.payload != expected:
                self._breach("S6", f"{letter.original_id}: the dead letter does not hold the original bytes")
        if not self._left.drained:
            return
        for id_, number in self._added.items():
            healed = len(self._lives.get(id_, [])) > 1
            if number in self._facts.poison and number not in buried and id_ not in self._harm.trimmed and not healed:
                self._breach("S6", f"{id_} (number {number}) is poison and was not buried")

    def _number_by_start(self, id_: str) -> int | None:
        starts = [start for life in self._lives.get(id_, []) for start in life.starts]
        return int(starts[0].about["n"]) if starts and "n" in starts[0].about else None

    def _trims(self) -> None:
        """S8. One that was trimmed under a running handler, which then acked it, is done and not lost."""
        counted = self._counts["trimmed_total"]
        truth = sum(not any(life.ok("ack") for life in self._lives[id_]) for id_ in self._harm.trimmed_held)
        if self._promise.trims and counted != truth:
            self._breach("S8", f"{truth} pending messages were trimmed, {counted} were counted")

    def _left_behind(self) -> None:
        """S9, S10."""
        left = self._left
        for key in sorted(left.keys):
            self._breach("S9", f"the key {key} was left behind")
        for name in left.clients:
            self._breach("S9", f"the connection {name} was left open")
        # One that could not reach the server when it left is removed by the janitor, after its retention.
        excused = self._harm.died.keys() | self._harm.touched
        starts = [start for lives in self._lives.values() for life in lives for start in life.starts]
        for owner in sorted(left.owners & {start.owner for start in starts if start.pid not in excused}):
            self._breach("S9", f"the owner {owner} has ended and is still entered")
        for place in left.secrets:
            self._breach("S10", f"the secret stands in {place}")

    def _liveness(self) -> None:
        left = self._left
        if not left.drained or left.drain_s > self._promise.drain_s:
            held = f"{len(left.pending)} pending, {len(left.waiting)} waiting"
            self._breach("L2", f"not drained after {left.drain_s:.1f} s: {held}")
        for span in self._harm.spans:
            self._others_went_on(span)
        if left.idle_commands_per_s > SPIN_PER_S:
            self._breach("L4", f"an idle worker sends {left.idle_commands_per_s:.0f} commands a second")
        for name, rate in left.log_lines_per_s.items():
            if rate > FLOOD_PER_S:
                self._breach("L4", f"{rate:.0f} lines a second say {name}")

    def _others_went_on(self, span: Span) -> None:
        """L3: traffic is even, so what a stream did in this time is compared with what it did in the rest."""
        begun, ended, hurt = self._facts.begun, self._facts.ended, span.stream
        since, until = max(span.since, begun), min(span.until, ended)
        within, rest = until - since, ended - begun - (until - since)
        if within < 1.0 or rest < 1.0:
            return
        done: defaultdict[str, list[float]] = defaultdict(list)
        for id_, lives in self._lives.items():
            done[id_.rpartition("/")[0]] += [event.at for life in lives for event in life.ok("ack")]
        for stream, times in done.items():
            during = sum(since <= at <= until for at in times) / within
            usual = sum(begun <= at < since or until < at <= ended for at in times) / rest
            if stream not in ("", hurt) and during < KEPT_SHARE * usual:
                self._breach("L3", f"{stream} did {during:.0f} a second while {hurt} was hurt, {usual:.0f} otherwise")

    # ── telling ──

    def _figures(self) -> dict[str, Any]:
        commits = sorted(event.at for lives in self._lives.values() for life in lives for event in life.ok("ack"))
        during = [at for at in commits if at <= self._facts.ended] or [self._facts.begun]
        gaps = [later - sooner for sooner, later in pairwise(during)]
        lives = [life for all_ in self._lives.values() for life in all_]
        refused = sum(event.kind == "fail" for life in lives for event in life.answered)
        return {
            "messages": len(self._added),
            "unknown_adds": self._unknown,
            "handled": len(commits),
            "starts": sum(len(life.starts) for life in lives),
            "faults": dict(sorted(self._harm.faults.items())),
            "deaths": len(self._harm.died),
            "lost": self._lost,
            "duplicates": self._duplicates,
            "refused": refused,
            "burnt": self._burnt,
            "robbed": self._robbed,
            "buried": len(self._left.letters),
            "trimmed": len(self._harm.trimmed_held),
            "rescued": len(self._rescued_s),
            **_quantiles("rescue", self._rescued_s),
            "longest_gap_s": round(max(gaps, default=0.0), 3),
            "drain_s": round(self._left.drain_s, 3),
            "idle_commands_per_s": round(self._left.idle_commands_per_s, 1),
        }


def _same(one: Event, other: Event) -> bool:
    """Whether two events speak of the same delivery."""
    return one.owner == other.owner and one.attempt == other.attempt


def _quantiles(name: str, seconds: Iterable[float]) -> dict[str, float]:
    """p50, p99 and max in ms; each is a value that was measured."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    picks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{word}_ms": round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 1)
        for word, share in picks.items()
    }
