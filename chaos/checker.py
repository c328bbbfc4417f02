"""The judge: a pure function from what was noted and what was left to a verdict. It knows no server and no clock.

S1  every add that is ok at its level has an effect or a dead letter, and an effect that goes with an ack is there
S2  no effect that nobody added; each id brings what was added under it
S3  no outcome of a superseded owner was taken; no attempt was given to two owners
S4  one end a message: at most one committed effect, and not also a dead letter
S5  tries within the limit, none burnt, nobody alive robbed
S6  dead letters = the poison set, byte for byte
S7  what is neither unread, pending nor waiting has an effect or a dead letter
S8  trimmed while pending: the counter is the truth
S9  no key, owner or connection is left behind
S10 the canary secret appears nowhere
L1  messages of a dead owner start again in time
L2  drained after healing, with nothing left in anybody's hands
L3  shards that a fault did not touch keep 80 % of their rate
L4  no spin, no log flood
X   nobody ends unless killed or told to, who is told to ends in peace, and no log holds an error that nobody asked for
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from chaos.facts import Facts
from chaos.harm import Harm
from chaos.holders import Holders
from chaos.life import Life, same
from chaos.verdict import Breach, Verdict
from chaos.wellbeing import wellbeing
from tests.support.history import Event

OUTCOMES: Final = frozenset({"ack", "retry", "release", "bury"})
ENDS: Final = frozenset({"ack", "bury"})
CONNECTIONS: Final = 2  # of one worker to one server, beyond the two of each stream


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
        self._numbers: Counter[int] = Counter()  # every add, whatever became of it
        self._unknown = 0
        self._counts: Counter[str] = Counter()
        self._harm = Harm(facts.lease_s)
        self._holders = Holders(self._harm.died)
        self._rescued_s: list[float] = []
        self._burnt = self._robbed = self._forgiven = self._duplicates = self._lost = 0
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
        elif op == "took":
            self._holders.note(event)
            self._harm.note(event)
        elif op == "replay":
            self._lives[event.id].append(Life())
        elif op == "count":
            self._counts[event.about["name"]] += event.about["n"]
        else:
            self._harm.note(event)

    def _note_add(self, event: Event) -> None:
        number = int(event.about["n"])
        self._numbers[number] += 1
        if event.kind == "ok":
            self._added[event.id] = number
            self._holders.note(event)
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
        acks = {id_: [event.at for life in all_ for event in life.ok("ack")] for id_, all_ in self._lives.items()}
        for invariant, example in wellbeing(self._facts, self._harm, acks):
            self._breach(invariant, example)
        return Verdict(dict(self._breaches), self._figures())

    def _keeps(self, id_: str, life: Life) -> bool:
        """Whether the server kept what it had said about this message, so that it must be exact."""
        if self._promise.keeps or not self._harm.forgets:
            return True
        return not self._harm.forgot(id_.rpartition("/")[0], (event.at for event in life.events))

    def _all_kept(self, id_: str) -> bool:
        return all(self._keeps(id_, life) for life in self._lives.get(id_, ()))

    def _breach(self, invariant: str, example: str) -> None:
        self._breaches[invariant].add(example)

    def _nothing_lost(self, letters: Counter[str]) -> None:
        """S1, S2, S7."""
        for id_ in self._added:
            if id_ not in letters and id_ not in self._harm.trimmed and not self._is_somewhere(id_):
                self._lost += 1
                self._breach("S1", f"{id_} was added and has neither an effect nor a dead letter")
        self._each_its_own()
        left = self._left
        for id_ in left.ids - left.pending.keys() - left.waiting - letters.keys() - self._added.keys():
            if left.drained and not self._has_effect(id_):
                self._breach("S7", f"{id_} is acked and has neither an effect nor a dead letter")

    def _each_its_own(self) -> None:
        """S2: what a handler was given is what was added under this id, and under this id alone."""
        ids: defaultdict[int, set[str]] = defaultdict(set)
        for id_, lives in self._lives.items():
            numbers = {int(start.about["n"]) for life in lives for start in life.starts if "n" in start.about}
            if any(number not in self._numbers for number in numbers):
                self._breach("S2", f"{id_} was started and never added")
            if not self._all_kept(id_):
                continue
            added = self._added.get(id_)
            if len(numbers) > 1 or (added is not None and numbers - {added}):
                self._breach("S2", f"{id_} was added as {added} and came as {sorted(numbers)}")
            for number in numbers:
                ids[number].add(id_)
                if len(ids[number]) > self._numbers[number] > 0:
                    self._breach("S4", f"number {number} is in the stream more often than it was added: {ids[number]}")

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
            if self._keeps(id_, life):
                self._breach("S4", f"{id_} has {effects} committed effects and {letters} dead letters")

    def _superseded(self, id_: str, life: Life) -> None:
        if len(life.starts) < 2 or not self._keeps(id_, life):
            return
        highest = max(start.attempt for start in life.starts)
        for event in life.answered:
            if event.kind != "ok" or event.attempt >= highest:
                continue
            before = [one.at for one in life.invoked if same(one, event)]
            since = min(before, default=event.at)
            late = any(start.attempt > event.attempt and start.at < since for start in life.starts)
            if late or event.op in ENDS:
                what = f"{event.op} of {event.owner} at attempt {event.attempt}"
                self._breach("S3", f"{id_}: {what} was taken, and attempt {highest} was started elsewhere")

    def _attempts(self, id_: str, life: Life) -> None:
        tries = sum(not self._was_released(life, start) for start in life.starts)
        if tries > self._promise.max_attempts:
            self._breach("S5", f"{id_} was started {tries} times, {self._promise.max_attempts} are allowed")
        spent = highest = 0
        former: Event | None = None
        for start in life.starts:
            if start.attempt < highest:
                self._started_late(id_, life, start)
                continue
            highest = start.attempt
            if start.attempt > spent + 1:
                self._burnt += start.attempt - spent - 1
                if self._burnt > self._may_burn and self._keeps(id_, life):
                    self._breach("S5", f"{id_}: attempt {start.attempt} is start {spent + 1}: attempts were burnt")
            ended = former is not None and life.ended_by_itself(former, start.at)
            if former is not None and not ended:
                self._followed(id_, life, former, start)
            self._rescued(id_, former, start, ended=ended)
            former = start
            spent = start.attempt - (1 if self._was_released(life, start) else 0)

    @property
    def _may_burn(self) -> float:
        """How many attempts may be spent without a start: none where nobody had left anything to others."""
        orphaned = self._harm.orphaned or int(self._promise.robs)
        return self._promise.burns * orphaned if orphaned else 0

    def _started_late(self, id_: str, life: Life, start: Event) -> None:
        """One that woke up began what it had read before; its outcome is refused. One that never slept was robbed."""
        if self._excused(start, start.at - self._facts.lease_s, start.at) or not self._keeps(id_, life):
            self._forgiven += 1
        else:
            self._rob(id_, start)

    def _rob(self, id_: str, start: Event) -> None:
        self._robbed += 1
        if not self._promise.robs:
            self._breach("S5", f"{id_} was taken from {start.owner}, which was alive")

    def _excused(self, start: Event, since: float, until: float) -> bool:
        """Whether its owner may lose a message in this time: by what was done to it, or because nobody could run."""
        if self._harm.excuses(start.pid, since, until):
            return True
        limit = self._facts.lease_s / 4
        return limit > 0 and self._harm.nobody_could_run(since - self._facts.lease_s, until, limit)

    def _was_released(self, life: Life, start: Event) -> bool:
        return any(
            event.op == "release" and event.kind in ("ok", "info") and same(event, start) for event in life.answered
        )

    def _followed(self, id_: str, life: Life, former: Event, start: Event) -> None:
        """One start after another that came to no outcome of its own: by a death, or by robbery."""
        if self._harm.is_dead(former.pid, start.at):
            return
        if self._excused(former, former.at, start.at) or not self._keeps(id_, life):
            self._forgiven += 1
            return
        if former.attempt == start.attempt:
            self._breach("S3", f"{id_}: attempt {start.attempt} was given to {former.owner} and {start.owner}")
        self._rob(id_, former)

    def _rescued(self, id_: str, former: Event | None, start: Event, *, ended: bool) -> None:
        """L1. The last attempt waits, to run alone."""
        if start.attempt >= self._promise.max_attempts:
            return
        since = self._holders.orphaned_at(id_, former, start, ended=ended)
        if since is None and former is None and start.attempt > 1 and self._promise.rescue_s is not None:
            since = self._holders.last_death(id_, start)
        if since is None:
            return
        seconds = start.at - since
        self._rescued_s.append(seconds)
        limit = self._promise.rescue_s
        if limit is not None and seconds > limit + 1.0:
            self._breach("L1", f"{id_} was started {seconds:.2f} s after its owner's death")

    def _sink(self) -> None:
        """S1 and S4 for effects that are written with the ack."""
        written = Counter(id_ for id_, _ in self._left.sink)
        for id_, lives in self._lives.items():
            told = any(life.ok("ack") and life.starts and life.starts[-1].about.get("do") == "sink" for life in lives)
            if told and not written[id_] and self._all_kept(id_):
                self._lost += 1
                self._breach("S1", f"{id_} was acked together with an effect, and the effect is not there")
        for id_, attempt in self._left.sink:
            lives = self._lives.get(id_, [Life()])
            starts = [start for life in lives for start in life.starts]
            if not starts:
                self._breach("S2", f"{id_} is in the sink and was never started")
            elif self._all_kept(id_) and attempt < max(start.attempt for start in starts):
                self._breach("S3", f"{id_}: the sink has attempt {attempt}, a later one was started")
        for id_, times in written.items():
            if times > 1:
                self._duplicates += times - 1
                if self._all_kept(id_):
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
        starts = [start for lives in self._lives.values() for life in lives for start in life.starts]
        left_well = {start.owner for start in starts if not self._harm.left_in_trouble(start.pid)}
        for owner in sorted(left.owners & left_well):
            self._breach("S9", f"the owner {owner} has ended and is still entered")
        for owner, connections in left.connections.items():
            if connections > CONNECTIONS:
                self._breach("S9", f"{owner} has {connections} connections more than two a stream")
        for place in left.secrets:
            self._breach("S10", f"the secret stands in {place}")

    # ── telling ──

    def _figures(self) -> dict[str, Any]:
        commits = sorted(event.at for lives in self._lives.values() for life in lives for event in life.ok("ack"))
        during = [at for at in commits if at <= self._facts.ended] or [self._facts.begun]
        gaps = [later - sooner for sooner, later in pairwise(during)]
        lives = [life for all_ in self._lives.values() for life in all_]
        refused = sum(event.kind == "fail" for life in lives for event in life.answered)
        judged = sum(self._all_kept(id_) for id_ in self._lives)
        return {
            "messages": len(self._added),
            "unknown_adds": self._unknown,
            "handled": len(commits),
            "judged_share": round(judged / len(self._lives), 3) if self._lives else 1.0,
            "in_sink": len({id_ for id_, _ in self._left.sink}),  # of these it is known how often they were done
            "starts": sum(len(life.starts) for life in lives),
            "faults": {name: times for name, times in sorted(self._harm.faults.items()) if times},
            "interfered": self._harm.interfered,
            "deaths": len(self._harm.died),
            "lost": self._lost,
            "duplicates": self._duplicates,
            "refused": refused,
            "burnt": self._burnt,
            "robbed": self._robbed,
            "excused": self._forgiven,
            "buried": len(self._left.letters),
            "trimmed": len(self._harm.trimmed_held),
            "rescued": len(self._rescued_s),
            **_quantiles("rescue", self._rescued_s),
            "longest_gap_s": round(max(gaps, default=0.0), 3),
            "drain_s": round(self._left.drain_s, 3),
            "idle_commands_per_s": round(self._left.idle_commands_per_s, 1),
            "connections": max(self._left.connections.values(), default=0),
            "ended_by_themselves": len(self._harm.unasked),
            **({"lost_bytes": self._harm.lost_bytes} if "power loss" in self._harm.faults else {}),
            "stood_ms": round(1000 * max((seconds for _, seconds in self._harm.stood), default=0.0)),
        }


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
