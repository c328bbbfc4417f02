"""Many lives at once, in any order: whatever happens, a message is in exactly one place and its attempts add up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace.redis import scripts
from headrace.redis.letters import open_letter
from tests.support.lab import Lab, Pair

OWNERS = ("ann", "bob", "cid")
STEPS = 400


class World:
    """What owners believe they hold, next to what the server says. Beliefs may be stale: that is the point."""

    def __init__(self, lab: Lab, dice: random.Random) -> None:
        self.lab, self.dice = lab, dice
        self.beliefs: list[tuple[str, Pair]] = []
        self.added: set[bytes] = set()
        self.ended: Counter[bytes] = Counter()
        self.refused = 0

    def step(self) -> None:
        self.dice.choice(
            [self.add, self.read, self.rescue, self.mine, self.due, self.due_alone, self.adopt, self.replay]
            + [self.ack, self.retry, self.release, self.bury] * 2
        )()

    # ── taking ──

    def add(self) -> None:
        self.added.update(self.lab.add(self.dice.randint(1, 5)))

    def read(self) -> None:
        owner = self.dice.choice(OWNERS)
        self.believe(owner, [(id_, attempt) for id_, _, attempt, _ in self.lab.read(owner, 3)])

    def rescue(self) -> None:
        owner = self.dice.choice(OWNERS)
        found = self.lab.call(scripts.rescue(self.lab.keys, self.lab.group, owner, 0, "-", 2))
        self.believe(owner, [(id_, attempt) for id_, _, attempt, _, _ in found.taken])

    def mine(self) -> None:
        owner = self.dice.choice(OWNERS)
        found = self.lab.call(scripts.mine(self.lab.keys, self.lab.group, owner, 3, []))
        self.believe(owner, [(id_, attempt) for id_, _, attempt, _ in found.taken])

    def due(self, alone: bool = False) -> None:
        owner = self.dice.choice(OWNERS)
        found = self.lab.call(scripts.due(self.lab.keys, self.lab.group, owner, 3, alone=alone, early_ms=10))
        assert (found.trimmed, found.dropped, found.regrouped) == ([], 0, False)
        self.believe(owner, [(id_, attempt) for id_, _, attempt, _, _ in found.taken])

    def due_alone(self) -> None:
        self.lab.call(scripts.turn(self.lab.keys, self.lab.group, 10))
        self.due(alone=True)

    def adopt(self) -> None:
        started = [id_ for _, (id_, _) in self.beliefs if self.dice.random() < 0.5]
        dead = self.dice.choice(OWNERS)
        call = scripts.adopt(self.lab.keys, self.lab.group, dead, started, [0, 1], alone_at=3, chunk=4)
        self.lab.call(call)

    def believe(self, owner: str, pairs: list[Pair]) -> None:
        for pair in pairs:
            assert pair[1] >= 1
            self.beliefs.append((owner, pair))

    # ── ending, with beliefs that may be stale ──

    def pick(self) -> tuple[str, Pair] | None:
        if not self.beliefs:
            return None
        return self.beliefs.pop(self.dice.randrange(len(self.beliefs)))

    def ack(self) -> None:
        if picked := self.pick():
            owner, pair = picked
            (word,) = self.lab.call(scripts.ack(self.lab.keys, self.lab.group, owner, [pair]))
            self.note(pair, word.kind)

    def bury(self) -> None:
        if picked := self.pick():
            owner, pair = picked
            about = {"_original_id": pair[0]}
            word = self.lab.call(scripts.bury(self.lab.keys, self.lab.group, owner, *pair, extra=about))
            self.note(pair, word.kind)

    def retry(self) -> None:
        self.park(0)

    def release(self) -> None:
        self.park(1)

    def park(self, back: int) -> None:
        if picked := self.pick():
            owner, (id_, count) = picked
            alone = self.dice.random() < 0.2
            triples = [(id_, count, count - back)]
            call = scripts.park(self.lab.keys, self.lab.group, owner, 0, "waiting", triples, alone=alone)
            self.refused += self.lab.call(call)[0].kind != "ok"

    def note(self, pair: Pair, kind: str) -> None:
        if kind == "ok":
            self.ended[pair[0]] += 1
        else:
            self.refused += 1

    def replay(self) -> None:
        letters = self.lab.letters()
        if letters:
            id_, fields = self.dice.choice(letters)
            letter = open_letter(fields)
            assert letter is not None
            original = letter.about["original_id"]
            answer = self.lab.call(scripts.replay(self.lab.keys, self.lab.group, original.decode(), id_.decode()))
            assert answer.kind == "same"
            self.ended[original] -= 1

    # ── what must hold ──

    def check(self) -> None:
        pending, waiting = set(self.lab.pending()), set(self.lab.waits())
        last = self.lab.raw("XINFO", "GROUPS", self.lab.keys.stream)
        last_id = next(
            dict(zip(row[::2], row[1::2], strict=True)) for row in last if row[1] != self.lab.waiting.encode()
        )
        unread = {id_ for id_ in self.added if _number(id_) > _number(last_id[b"last-delivered-id"])}
        ended = {id_ for id_, times in self.ended.items() if times}
        assert set(self.ended.values()) <= {0, 1}, "nothing ends twice"
        assert set(self.lab.due_set()) == waiting
        places = [pending, waiting, unread, ended]
        assert sum(map(len, places)) == len(self.added), "nothing is in two places"
        assert set().union(*places) == self.added, "nothing is in no place"


def _number(id_: bytes) -> tuple[int, int]:
    ms, _, seq = id_.partition(b"-")
    return int(ms), int(seq)


@pytest.mark.parametrize("seed", range(3))
def test_a_message_is_in_exactly_one_place_whatever_happens(lab: Lab, seed: int) -> None:
    """SPEC 16, 23, 26, 28: reads, rescues, retries, releases, burials, replays and stale owners in any order."""
    world = World(lab, random.Random(seed))
    lab.make_group()
    for _ in range(STEPS):
        world.step()
        world.check()
    assert world.refused > 5, "stale beliefs were tried"
    assert sum(world.ended.values()) > 5, "messages came to their end"
