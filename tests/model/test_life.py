"""A model of who owns what at which attempt, beside the real Lua on a real server: every step must agree.

SPEC 11, 16, 23 to 29. Several owners, some of them zombies that speak with what they once had, read, renew, ack, retry,
release, bury, ack with effects and completion markers, rescue, take over, ask what is theirs, take what is due, adopt,
replay and trim, in any order Hypothesis finds. Ages are set with
XCLAIM ... IDLE: nobody sleeps. After every step pending lists, due set and dead letters must be what the model says.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chaos import mutants
from headrace import Effect
from headrace.policy import Backoff, crash_delay_ms, release_delay_ms
from headrace.redis import commands, scripts
from headrace.redis.calls import Word
from headrace.redis.letters import open_letter
from tests.support.lab import Lab
from tests.support.remembered import Remembered
from tests.support.servers import NATIVE, Server
from tests.support.wait import wait_until_sync

OWNERS = ("ann", "bob", "eve")
LEASE_MS = 60_000
MAX_ATTEMPTS = 4
HOUR_MS = 3_600_000
KEYS = ("ada", "bea")  # of completion markers
ALONE = 10**15  # what must run alone has so much more in the due set (park.lua)


@dataclass
class Message:
    """Where the model says a message is: `unread`, `held`, `waiting`, `parked`, `dead`, `done` or `gone`."""

    place: str = "unread"
    owner: str = ""
    count: int = 0
    is_due: bool = False
    due_ms: tuple[int, int] | None = None  # between which times of the server the policy says that it is due
    deleted: bool = False  # its entry was removed from the stream
    grants: set[tuple[str, int]] = field(default_factory=set)  # every (owner, attempt) it was ever given as


class Lives(RuleBasedStateMachine):
    """The rules. `server` is set by the test."""

    server: Server
    prefix: str

    @initialize()
    def begin(self) -> None:
        self.lab = Lab(self.server, f"{self.prefix}-{secrets.token_hex(4)}")
        self.lab.make_group()
        self.messages: dict[bytes, Message] = {}
        self.letters: dict[bytes, bytes] = {}  # message -> its dead letter
        self.sink = f"{{{self.lab.keys.stream}}}:sink"
        self.written: list[bytes] = []  # messages whose effect was written, in this order
        self.results: dict[str, bytes] = {}  # completion marker -> the first result
        self.add(4)
        self.read("ann", 3)

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            keys, group = self.lab.keys, self.lab.group
            markers = [keys.once(group, key) for key in KEYS]
            self.lab.raw("DEL", keys.stream, keys.due(group), keys.dead_letters, self.sink, *markers)
            self.lab.close()

    # ── choosing ──

    def _in(self, *places: str) -> list[bytes]:
        return [id_ for id_, message in self.messages.items() if message.place in places]

    def _granted(self, data: st.DataObject) -> tuple[bytes, str, int] | None:
        """A message with one of the (owner, attempt) it was once given as: the holder, or a zombie."""
        found = [(id_, *grant) for id_, message in self.messages.items() for grant in sorted(message.grants)]
        late = [grant for grant in found if self._word(*grant).kind == "taken"]
        if late and data.draw(st.booleans(), label="a zombie speaks"):
            found = late
        return data.draw(st.sampled_from(found)) if found else None

    def _word(self, id_: bytes, owner: str, count: int) -> Word:
        """What the fence must answer, "ok" for the holder of the moment."""
        message = self.messages[id_]
        if message.place != "held":
            return Word("gone")
        if (message.owner, message.count) != (owner, count):
            return Word("taken", message.owner, message.count)
        return Word("ok")

    def _give(self, id_: bytes, owner: str, count: int) -> None:
        message = self.messages[id_]
        message.place, message.owner, message.count, message.is_due = "held", owner, count, False
        message.grants.add((owner, count))

    def _end(self, id_: bytes, place: str) -> None:
        self.messages[id_].place, self.messages[id_].owner = place, ""

    # ── a message comes ──

    @rule(count=st.integers(1, 4))
    def add(self, count: int) -> None:
        for id_ in self.lab.add(count, ("payload", secrets.token_hex(4))):
            self.messages[id_] = Message()

    @rule(owner=st.sampled_from(OWNERS), count=st.integers(1, 5))
    def read(self, owner: str, count: int) -> None:
        unread = [id_ for id_ in self._in("unread") if not self.messages[id_].deleted][:count]
        taken = self.lab.read(owner, count)
        assert [(id_, attempt) for id_, _, attempt, _ in taken] == [(id_, 1) for id_ in unread]
        for id_ in unread:
            self._give(id_, owner, 1)
        if len(taken) < count:
            for id_ in self._in("unread"):
                self._end(id_, "gone")  # deleted before anybody read it

    # ── leases ──

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        expected = self._word(id_, owner, count)
        (word,) = self.lab.call(scripts.renew(self.lab.keys, self.lab.group, owner, [(id_, count)]))
        if expected.kind == "ok" and self.messages[id_].deleted:
            assert word.kind in ("trimmed", "ok")  # 6.2 keeps it and says ok
            if word.kind == "trimmed":
                self._end(id_, "gone")
        else:
            assert word == expected

    @rule(owner=st.sampled_from(OWNERS), data=st.data())
    def rescue(self, owner: str, data: st.DataObject) -> None:
        """Some deliveries have not been renewed for a lease; whoever asks gets them, each with one attempt more."""
        held = self._in("held")
        if not held:
            return
        idle = data.draw(st.lists(st.sampled_from(held), unique=True))
        for id_ in idle:
            self.lab.age([id_], LEASE_MS + 1_000, self.messages[id_].owner) if not self.messages[id_].deleted else None
        idle = [id_ for id_ in idle if not self.messages[id_].deleted]
        found = self.lab.call(scripts.rescue(self.lab.keys, self.lab.group, owner, LEASE_MS, "-", 1_000))
        taken = {id_: attempt for id_, _, attempt, _, _ in found.taken}
        assert taken == {id_: self.messages[id_].count + 1 for id_ in idle}
        for id_, attempt in taken.items():
            self._give(id_, owner, attempt)

    @precondition(lambda self: self.server.key in NATIVE)
    @rule(owner=st.sampled_from(OWNERS), data=st.data())
    def take_over(self, owner: str, data: st.DataObject) -> None:
        """The same by the server itself, and new messages behind what was idle."""
        held = [id_ for id_ in self._in("held") if not self.messages[id_].deleted]
        idle = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        for id_ in idle:
            self.lab.age([id_], LEASE_MS + 1_000, self.messages[id_].owner)
        found = self.lab.call(scripts.take_over(self.lab.keys, self.lab.group, owner, LEASE_MS, 1_000))
        unread = self._in("unread")
        fresh = [id_ for id_ in unread if not self.messages[id_].deleted]
        expected = {**{id_: self.messages[id_].count + 1 for id_ in idle}, **dict.fromkeys(fresh, 1)}
        assert {id_: attempt for id_, _, attempt, _ in found.entries} == expected
        for id_ in set(unread) - set(fresh):
            self._end(id_, "gone")
        for id_, attempt in expected.items():
            self._give(id_, owner, attempt)

    @rule(owner=st.sampled_from(OWNERS), data=st.data())
    def mine(self, owner: str, data: st.DataObject) -> None:
        """An answer was cut: an owner is told what it holds and does not know, and no attempt is burnt."""
        held = [id_ for id_ in self._in("held") if self.messages[id_].owner == owner]
        known = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        found = self.lab.call(scripts.mine(self.lab.keys, self.lab.group, owner, 1_000, known))
        rest = set(held) - set(known)
        gone = {id_ for id_ in rest if self.messages[id_].deleted}
        assert {id_: attempt for id_, _, attempt, *_ in found.taken} == {
            id_: self.messages[id_].count for id_ in rest - gone
        }
        assert set(map(str.encode, found.trimmed)) == gone
        for id_ in gone:
            self._end(id_, "gone")

    @rule(owner=st.sampled_from(OWNERS))
    def renew_owner(self, owner: str) -> None:
        """A parent renews for its child: nobody else's, and nothing changes hands."""
        held = [id_ for id_ in self._in("held") if self.messages[id_].owner == owner]
        answer = self.lab.call(scripts.renew_owner(self.lab.keys, self.lab.group, owner, 0))
        gone = set(map(str.encode, answer.trimmed))
        assert gone <= {id_ for id_ in held if self.messages[id_].deleted}  # 6.2 keeps it and calls it renewed
        assert answer.renewed == len(held) - len(gone)
        for id_ in gone:
            self._end(id_, "gone")

    @rule(dead=st.sampled_from(OWNERS), data=st.data())
    def adopt(self, dead: str, data: st.DataObject) -> None:
        """A child died: what it had started keeps its attempt, the rest gives it back."""
        held = [id_ for id_ in self._in("held") if self.messages[id_].owner == dead]
        started = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        policy_ms = [crash_delay_ms(attempt, MAX_ATTEMPTS) for attempt in (1, 2, 3, 4)]
        delays = [HOUR_MS + ms if ms else 0 for ms in policy_ms]  # an hour later, so that nobody has to wait
        before_ms = self.lab.now_ms()
        adopted = self.lab.call(scripts.adopt(self.lab.keys, self.lab.group, dead, started, delays))
        after_ms = self.lab.now_ms()
        assert adopted.seen == len(held)
        for id_ in held:
            message = self.messages[id_]
            if message.deleted:
                self._end(id_, "gone")
                continue
            crash = message.count
            message.count = message.count if id_ in started else max(message.count - 1, 0)
            delay_ms = delays[min(max(crash, 1), 4) - 1] if id_ in started else 0
            message.is_due = delay_ms == 0
            message.due_ms = (before_ms + delay_ms, after_ms + 1 + delay_ms)
            self._end(id_, "waiting")

    # ── outcomes, by holders and by zombies ──

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        expected = self._word(id_, owner, count)
        (word,) = self.lab.call(scripts.ack(self.lab.keys, self.lab.group, owner, [(id_, count)]))
        assert word == expected
        if word.kind == "ok":
            self._end(id_, "done")

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def done(self, data: st.DataObject, key: str) -> None:
        """An ack that leaves a completion marker. The first result stays."""
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        expected, result = self._word(id_, owner, count), secrets.token_bytes(3)
        (word,) = self.lab.call(
            scripts.done(self.lab.keys, self.lab.group, owner, [(id_, count, key, result)], HOUR_MS)
        )
        assert word == self._once(expected, key, result)
        if expected.kind == "ok":
            self._end(id_, "done")

    @rule(data=st.data(), key=st.sampled_from(["", *KEYS]))
    def effects(self, data: st.DataObject, key: str) -> None:
        """An ack with an effect: both or neither, and no effect of a key that is done."""
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        expected, result = self._word(id_, owner, count), secrets.token_bytes(3)
        effect = Effect.xadd(self.sink, {"id": id_.decode()})
        once = (key, result, HOUR_MS) if key else None
        word = self.lab.call(scripts.effects(self.lab.keys, self.lab.group, owner, id_, count, [effect], once=once))
        told = self._once(expected, key, result) if key else expected
        assert word == told
        if told.kind == "ok":
            self.written.append(id_)
        if expected.kind == "ok":
            self._end(id_, "done")

    def _once(self, expected: Word, key: str, result: bytes) -> Word:
        """What is answered where a marker is left: a key that was done is no second time."""
        if expected.kind != "ok":
            return expected
        first = self.results.setdefault(key, result)
        return expected if first == result else Word("duplicate")

    @rule(data=st.data(), how=st.sampled_from(["retry", "release", "forever"]), now=st.booleans())
    def park(self, data: st.DataObject, how: str, now: bool) -> None:
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        keep = count - 1 if how == "release" else count
        # The policy's delays, an hour later so that nobody has to wait for them; or none at all.
        policy_ms = release_delay_ms(count) if how == "release" else Backoff(jitter=0).delay_ms(count, 0.0)
        delay_ms = -1 if how == "forever" else 0 if now else HOUR_MS + policy_ms
        expected = self._word(id_, owner, count)
        before_ms = self.lab.now_ms()
        (word,) = self.lab.call(
            scripts.park(self.lab.keys, self.lab.group, owner, delay_ms, "waiting", [(id_, count, keep)])
        )
        after_ms = self.lab.now_ms()
        if expected.kind == "ok" and self.messages[id_].deleted:
            assert word.kind == "trimmed"
            self._end(id_, "gone")
            return
        assert word == expected
        if word.kind == "ok":
            self.messages[id_].count, self.messages[id_].is_due = keep, delay_ms == 0
            self.messages[id_].due_ms = (before_ms + delay_ms, after_ms + 1 + delay_ms)  # rounded up: never early
            self._end(id_, "parked" if how == "forever" else "waiting")

    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        granted = self._granted(data)
        if granted is None:
            return
        id_, owner, count = granted
        expected = self._word(id_, owner, count)
        extra = {"_original_id": id_, "_group": self.lab.group}
        word = self.lab.call(scripts.bury(self.lab.keys, self.lab.group, owner, id_, count, extra=extra))
        if expected.kind == "ok" and self.messages[id_].deleted:
            assert word.kind == "trimmed"
            self._end(id_, "gone")
            return
        assert word._replace(id="") == expected
        if word.kind == "ok":
            self.letters[id_] = word.id.encode()
            self._end(id_, "dead")

    # ── what waits ──

    def _until_due(self, ripe: set[bytes]) -> None:
        """A delay of nothing ends with the millisecond it began in (park.lua rounds up); the server's clock decides."""
        latest_ms = max((score for id_, score in self.lab.due_set().items() if id_ in ripe), default=0)
        wait_until_sync(lambda: self.lab.now_ms() >= latest_ms, interval=0.001)

    @rule(owner=st.sampled_from(OWNERS), limit=st.integers(1, 10))
    def due(self, owner: str, limit: int) -> None:
        ripe = {id_ for id_ in self._in("waiting") if self.messages[id_].is_due}
        self._until_due(ripe)
        found = self.lab.call(scripts.due(self.lab.keys, self.lab.group, owner, limit))
        taken = {id_: attempt for id_, _, attempt, _, _ in found.taken}
        assert taken.keys() <= {id_ for id_ in ripe if not self.messages[id_].deleted}
        assert set(map(str.encode, found.trimmed)) <= {id_ for id_ in ripe if self.messages[id_].deleted}
        assert len(taken) + len(found.trimmed) == min(limit, len(ripe))
        for id_, attempt in taken.items():
            assert attempt == self.messages[id_].count + 1
            self._give(id_, owner, attempt)
        for id_ in map(str.encode, found.trimmed):
            self._end(id_, "gone")

    @precondition(lambda self: self._in("dead"))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """In place, as attempt 1. Of a trimmed message a copy is made: another message, with its own life."""
        id_ = data.draw(st.sampled_from(self._in("dead")))
        letter = self.letters.pop(id_)
        answer = self.lab.call(scripts.replay(self.lab.keys, self.lab.group, id_.decode(), letter.decode()))
        if self.messages[id_].deleted:
            assert answer.kind == "copy"
            self.messages[answer.id.encode()] = Message()
            self._end(id_, "gone")
            return
        assert (answer.kind, answer.id.encode()) == ("same", id_)
        message = self.messages[id_]
        message.count, message.is_due, message.due_ms, message.grants = 0, True, None, set()
        self._end(id_, "waiting")

    # ── other hands ──

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.messages)))
        self.lab.trim(id_)
        self.messages[id_].deleted = True

    # ── after every step ──

    @invariant()
    def the_server_agrees(self) -> None:
        if not hasattr(self, "lab"):
            return
        held = {id_: (self.messages[id_].owner, self.messages[id_].count) for id_ in self._in("held")}
        assert self.lab.pending() == held
        waiting = {id_: self.messages[id_].count for id_ in self._in("waiting", "parked")}
        assert {id_: count for id_, (_, count) in self.lab.waits().items()} == waiting
        due = self.lab.due_set()
        assert due.keys() == set(self._in("waiting"))
        for id_, score in due.items():
            told = self.messages[id_].due_ms
            assert told is None or told[0] <= score % ALONE <= told[1], "due when the policy did not say"

    @invariant()
    def every_dead_letter_is_one_message_that_ended_nowhere_else(self) -> None:
        if not hasattr(self, "lab"):
            return
        opened = [open_letter(fields) for _, fields in self.lab.letters()]
        buried = [letter.about["original_id"] for letter in opened if letter is not None]
        assert sorted(buried) == sorted(self._in("dead"))

    @invariant()
    def effects_and_markers_are_those_of_the_acks_that_counted(self) -> None:
        if not hasattr(self, "lab"):
            return
        assert [fields[1] for _, fields in self.lab.call(commands.entries(self.sink, count=1_000))] == self.written
        for key in KEYS:
            assert self.lab.raw("GET", self.lab.keys.once(self.lab.group, key)) == self.results.get(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        """With the two above: what is in the stream and nowhere else has ended, and somebody said so; and no message
        goes out of the stream that nobody deleted."""
        if not hasattr(self, "lab"):
            return
        there = set(self.lab.ids())
        assert there == {id_ for id_, message in self.messages.items() if not message.deleted}
        assert there <= set(self._in("unread", "held", "waiting", "parked", "dead", "done"))


@pytest.fixture
def machine(server: Server, prefix: str) -> type[Lives]:
    return type("LivesHere", (Lives,), {"server": server, "prefix": prefix})


def _explore(machine: type[Lives], examples: int, *, quick: bool = False) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        print_blob=True,  # the steps that were found are played again by what it prints
        phases=[Phase.generate] if quick else list(Phase),
    )
    run_state_machine_as_test(machine, settings=chosen)  # type: ignore[no-untyped-call]


@pytest.mark.timeout(150)
def test_the_lua_agrees_with_the_model_whatever_owners_and_zombies_do(
    machine: type[Lives], remembered: Remembered
) -> None:
    """FAULTS, method: the same rules for the model and for the real scripts, on every server. Each run draws other
    steps, so what one run found is not mended by the next."""
    with remembered.failures():
        _explore(machine, 80)


@pytest.mark.timeout(150)
@pytest.mark.servers("redis8")
@pytest.mark.parametrize(
    ("mutant", "script"),
    [
        ("plain-xack", "_ACK"),
        ("retry-unfenced", "_PARK"),
        ("bury-unfenced", "_BURY"),
        ("effects-unfenced", "_EFFECTS"),
        ("renewal-unfenced", "_RENEW"),
    ],
)
def test_the_model_notices_a_script_without_its_fence(
    machine: type[Lives], mutant: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS, method: a model that agrees with everything proves nothing."""
    monkeypatch.setattr(scripts, script, getattr(scripts, script))  # put back after the test
    mutants.apply(mutant)
    with pytest.raises((AssertionError, ExceptionGroup)):
        _explore(machine, 200, quick=True)  # a shortest example is of no use here


@pytest.mark.timeout(150)
@pytest.mark.servers("redis8")
def test_the_model_notices_a_retry_that_comes_too_late(machine: type[Lives], monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS, method: the delay on the server is the policy's."""
    monkeypatch.setattr(scripts, "_PARK", scripts._PARK)  # put back after the test
    mutants._swap("park", ("+ delay_ms --", "+ delay_ms * 1.001 --"))
    with pytest.raises((AssertionError, ExceptionGroup)):
        _explore(machine, 200, quick=True)
