"""bury and replay: dead letters hold the original byte for byte and go back to one group only (SPEC 26 to 29)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest

from headrace.errors import MissingRight, WrongType
from headrace.redis import scripts
from headrace.redis.calls import Wire, Word
from headrace.redis.letters import Copy, open_copy, open_letter
from headrace.redis.replies import Replayed
from tests.support.lab import Lab, Pair

WIDE = [os.urandom(4 + at % 9) for at in range(20_000)]
"""10,000 fields of any bytes: more than a script can pass to one command."""


def bury(lab: Lab, pair: Pair, group: str | None = None, **extra: Wire) -> str:
    about = {f"_{name}": value for name, value in extra.items()}
    word = lab.call(scripts.bury(lab.keys, group or lab.group, "me", *pair, extra=about))
    assert word.kind == "ok"
    return word.id


def buried(lab: Lab, fields: Sequence[Wire] = ("payload", "{}")) -> tuple[bytes, str]:
    (pair,) = lab.held(fields=fields)
    return pair[0], bury(lab, pair)


def replay(lab: Lab, original: bytes, letter: str | None) -> Replayed:
    return lab.call(scripts.replay(lab.keys, lab.group, original.decode(), letter))


# ── bury ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fields",
    [
        [b"payload", b"\0\xff\r\n"],
        [b"f", b"1", b"f", b"2", b"", b""],
        [b"_n", b"4", b"_why", b"mine", b"_n", b"2"],
        [b"_packed", b"3:abc"],
        [b"_original_id", b"x"],
        WIDE[:7_000],
        WIDE[:7_002],
        WIDE,
    ],
    ids=[
        "bytes",
        "repeated and empty names",
        "names like ours",
        "looks packed",
        "looks like a copy",
        "7000",
        "7002",
        "wide",
    ],
)
def test_a_dead_letter_holds_the_original_byte_for_byte(lab: Lab, fields: list[bytes]) -> None:
    """SPEC 27."""
    (pair,) = lab.held(fields=fields)
    letter_id = bury(lab, pair, why="no\0good", attempts=3)
    ((id_, words),) = lab.letters()
    assert id_.decode() == letter_id
    letter = open_letter(words)
    assert letter is not None
    assert letter.original == fields
    assert letter.about == {"why": b"no\0good", "attempts": b"3"}
    assert lab.pending() == {}


def test_a_burial_works_for_what_was_rescued_and_for_what_waited(lab: Lab) -> None:
    one, two = lab.held(2, owner="dead")
    lab.age([one[0]], 60_000, "dead")
    ((id_, _, attempt, _, former),) = lab.call(scripts.rescue(lab.keys, lab.group, "me", 30_000)).taken
    assert (id_, attempt, former) == (one[0], 2, "dead")
    bury(lab, (id_, attempt))
    lab.call(scripts.adopt(lab.keys, lab.group, "dead", [two[0]]))
    time.sleep(0.002)
    ((id_, _, attempt, _, _),) = lab.call(scripts.due(lab.keys, lab.group, "me", 1)).taken
    bury(lab, (id_, attempt))
    assert len(lab.letters()) == 2


def test_if_the_dead_letter_cannot_be_written_the_delivery_stays(lab: Lab) -> None:
    """SPEC 26: append first."""
    (pair,) = lab.held()
    lab.raw("SET", lab.keys.dead_letters, "no stream")
    with pytest.raises(WrongType):
        bury(lab, pair)
    assert lab.pending() == {pair[0]: ("me", 1)}


def test_a_trimmed_entry_cannot_be_buried_and_leaves_the_pending_list(lab: Lab) -> None:
    """SPEC 18."""
    (pair,) = lab.held()
    lab.trim(pair[0])
    assert lab.call(scripts.bury(lab.keys, lab.group, "me", *pair, extra={})) == Word("trimmed")
    assert (lab.pending(), lab.letters()) == ({}, [])


def test_twenty_burials_of_one_delivery_leave_one_dead_letter(lab: Lab) -> None:
    """SPEC 26."""
    (pair,) = lab.held()
    call = scripts.bury(lab.keys, lab.group, "me", *pair, extra={"_why": "test"})
    words = lab.at_once(20, lambda _, link: link.call(call))
    assert sorted(word.kind for word in words) == ["gone"] * 19 + ["ok"]
    assert len(lab.letters()) == 1


def test_the_number_of_dead_letters_can_be_bounded(lab: Lab) -> None:
    for pair in lab.held(300):
        lab.call(scripts.bury(lab.keys, lab.group, "me", *pair, extra={}, maxlen=50))
    assert 50 <= len(lab.letters()) < 160


def test_the_prefix_can_be_another(lab: Lab) -> None:
    (pair,) = lab.held(fields=("_n", "1"))
    lab.call(scripts.bury(lab.keys, lab.group, "me", *pair, extra={"hr.why": "test"}, prefix="hr."))
    ((_, words),) = lab.letters()
    letter = open_letter(words, "hr.")
    assert letter == ([b"_n", b"1"], {"why": b"test"})


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_replay_in_place_keeps_the_id_starts_at_attempt_1_and_touches_no_other_group(lab: Lab) -> None:
    """SPEC 28."""
    lab.make_group("audit")
    original, letter = buried(lab)
    (other,) = [(entry[0], entry[2]) for entry in lab.read(group="audit")]
    assert replay(lab, original, letter) == Replayed("same", original.decode())
    assert lab.letters() == []
    assert lab.waits() == {original: ("replayed", 0)}
    found = lab.call(scripts.due(lab.keys, lab.group, "me", 10))
    assert [(id_, attempt, mark) for id_, _, attempt, _, mark in found.taken] == [(original, 1, "replayed")]
    assert lab.ids() == [original]
    assert lab.read(group="audit") == []
    assert lab.raw("XPENDING", lab.keys.stream, "audit")[0] == 1
    assert other[0] == original


def test_a_second_replay_is_gone_and_adds_nothing(lab: Lab) -> None:
    original, letter = buried(lab)
    results = lab.at_once(
        8, lambda _, link: link.call(scripts.replay(lab.keys, lab.group, original.decode(), letter)).kind
    )
    assert sorted(results) == ["gone"] * 7 + ["same"]
    assert len(lab.waits()) == 1


@pytest.mark.parametrize("fields", [[b"f", b"1", b"f", b"\0\xff"], [b"_n", b"7"], WIDE], ids=["plain", "_n", "wide"])
def test_after_trimming_a_copy_is_made_for_the_one_group(lab: Lab, fields: list[bytes]) -> None:
    """SPEC 28: the copy says whom it is for, and the original comes out of it byte for byte."""
    original, letter = buried(lab, fields)
    lab.trim(original)
    answer = replay(lab, original, letter)
    assert answer.kind == "copy"
    assert lab.letters() == []
    ((id_, words, attempt, _),) = lab.read()
    assert (id_.decode(), attempt) == (answer.id, 1)
    assert open_copy(words) == Copy(original.decode(), lab.group, fields)


def test_a_copy_that_is_buried_and_replayed_again_still_knows_the_original(lab: Lab) -> None:
    first, letter = buried(lab, WIDE)
    original = first
    for _ in range(3):
        lab.trim(*lab.ids())
        assert replay(lab, original, letter).kind == "copy"
        ((copy, words, attempt, _),) = lab.read()
        assert open_copy(words) == Copy(first.decode(), lab.group, WIDE)
        letter = bury(lab, (copy, attempt))
        ((_, words),) = lab.letters()
        opened = open_letter(words)
        assert opened is not None
        assert opened.original == WIDE
        original = copy
    assert replay(lab, original, letter) == Replayed("same", original.decode())


def test_a_wide_entry_is_replayed_in_place(lab: Lab) -> None:
    original, letter = buried(lab, WIDE)
    assert replay(lab, original, letter).kind == "same"
    ((_, fields, _, _, _),) = lab.call(scripts.due(lab.keys, lab.group, "me", 1)).taken
    assert fields == WIDE


def test_what_is_held_again_is_not_replayed(lab: Lab) -> None:
    original, letter = buried(lab)
    lab.raw("XCLAIM", lab.keys.stream, lab.group, "holder", 0, original, "FORCE")
    assert replay(lab, original, letter) == Replayed("pending")
    assert len(lab.letters()) == 1


def test_a_dead_letter_of_somebody_else_is_left_alone(lab: Lab) -> None:
    lab.make_group()
    foreign = lab.raw("XADD", lab.keys.dead_letters, "*", "some", "thing")
    assert replay(lab, b"5-5", foreign.decode()) == Replayed("foreign")
    assert len(lab.letters()) == 1
    assert open_letter([b"some", b"thing"]) is None
    assert open_letter([b"_n", b"many"]) is None


def test_a_parked_message_is_replayed_without_a_dead_letter(lab: Lab) -> None:
    """SPEC 29."""
    ((id_, count),) = lab.held()
    lab.call(scripts.park(lab.keys, lab.group, "me", -1, "parked", [(id_, count, count)]))
    assert replay(lab, id_, None) == Replayed("same", id_.decode())
    found = lab.call(scripts.due(lab.keys, lab.group, "me", 1))
    assert [(id_, attempt) for id_, _, attempt, _, _ in found.taken] == [(id_, 1)]
    lab.call(scripts.ack(lab.keys, lab.group, "me", [(id_, 1)]))
    assert replay(lab, id_, None) == Replayed("gone")


def test_a_parked_message_that_was_trimmed_is_told(lab: Lab) -> None:
    ((id_, count),) = lab.held()
    lab.call(scripts.park(lab.keys, lab.group, "me", -1, "parked", [(id_, count, count)]))
    lab.trim(id_)
    assert replay(lab, id_, None) == Replayed("trimmed")
    assert lab.waits() == {}
    assert replay(lab, id_, None) == Replayed("gone")


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_without_the_right_to_ack_nothing_is_buried(lab: Lab) -> None:
    """SPEC 26, FAULTS 18: else the dead letter would be written again at every try."""
    (pair,) = lab.held()
    with lab.without("xack") as link:
        (answer,) = link.pipe([scripts.bury(lab.keys, lab.group, "me", *pair, extra={"_reason": "x"})])
    assert isinstance(answer, MissingRight)
    assert lab.letters() == []
    assert lab.pending() == {pair[0]: ("me", 1)}
