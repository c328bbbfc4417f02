"""ack, done and add: batches, deletion after the ack, completion markers, idempotent adds."""

from __future__ import annotations

import random
import time
from statistics import median

import pytest

from headrace.errors import PayloadTooLarge, ServerRefused
from headrace.redis import scripts
from headrace.redis.calls import OK, Word
from headrace.redis.scripts import Delete
from tests.support.lab import Lab


def test_ten_thousand_in_flight_finish_in_random_order_without_a_refusal(lab: Lab) -> None:
    """SPEC 23: no ack of a live owner is refused, and a batch of 100 takes at most 2 ms of the server."""
    pairs = lab.held(10_000)
    random.shuffle(pairs)
    spent_us = []
    for at in range(0, 3_000, 100):
        lab.raw("CONFIG", "RESETSTAT")
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs[at : at + 100])) == [OK] * 100
        spent_us.append(_spent_us(lab, "evalsha"))
    # The server's clock goes on while others have its core, so that the mean tells of them: half of the batches do not.
    assert median(spent_us) < 2_000, f"{sorted(spent_us)} us a batch"
    for at in range(3_000, 10_000, 1_000):
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs[at : at + 1_000])) == [OK] * 1_000
    assert lab.pending() == {}


def _spent_us(lab: Lab, command: str) -> float:
    stats = lab.raw("INFO", "commandstats").decode()
    line = next(line for line in stats.splitlines() if line.startswith(f"cmdstat_{command}:"))
    return float(line.split("usec=")[1].split(",")[0])


def test_a_batch_among_ten_thousand_entries_of_others_is_acked(lab: Lab) -> None:
    """SPEC 23: the range of a batch may be full of what others hold, and of more of my own."""
    lab.add(12_000)
    mine: list[tuple[bytes, int]] = []
    for turn in range(120):
        entries = lab.read("me" if turn % 6 == 0 else "other", 100)
        if turn % 6 == 0:
            mine += [(entry[0], entry[2]) for entry in entries]
    batch = random.sample(mine, 200)
    assert lab.call(scripts.ack(lab.keys, lab.group, "me", batch)) == [OK] * 200
    assert len(lab.pending()) == 11_800


def test_ids_with_different_numbers_of_digits_are_acked(lab: Lab) -> None:
    """The range that ack looks at first is a shortcut and may be wrong: 1000 sorts before 999 as text."""
    lab.make_group()
    ids = [f"{ms}-{seq}" for ms in (5, 60, 999, 1000, 12_345, 2**60) for seq in (0, 9, 10)]
    for id_ in ids:
        lab.raw("XADD", lab.keys.stream, id_, "payload", "{}")
    pairs = [(entry[0], 1) for entry in lab.read()]
    random.shuffle(pairs)
    assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs)) == [OK] * len(ids)


def test_a_mixed_batch_gets_a_word_each_in_order(lab: Lab) -> None:
    pairs = lab.held(8)
    lab.steal(pairs[0][0])
    lab.steal(pairs[3][0], "me")
    lab.raw("XACK", lab.keys.stream, lab.group, pairs[5][0])
    words = lab.call(scripts.ack(lab.keys, lab.group, "me", pairs))
    assert [word.kind for word in words] == ["taken", "ok", "ok", "taken", "ok", "gone", "ok", "ok"]
    assert words[3] == Word("taken", "me", 2)
    assert list(lab.pending()) == [pairs[0][0], pairs[3][0]]


def test_deliveries_of_different_attempts_are_acked_together(lab: Lab) -> None:
    pairs = lab.held(8)
    lab.steal(pairs[2][0], "me")
    pairs[2] = (pairs[2][0], 2)
    wrong = [*pairs[:5], (pairs[5][0], 2), *pairs[6:]]
    words = lab.call(scripts.ack(lab.keys, lab.group, "me", wrong))
    assert [word.kind for word in words] == ["ok"] * 5 + ["taken"] + ["ok"] * 2
    assert list(lab.pending()) == [pairs[5][0]]


def test_acking_a_trimmed_entry_is_fine_because_its_work_is_done(lab: Lab) -> None:
    pairs = lab.held(6)
    lab.trim(*(id_ for id_, _ in pairs[:3]))
    assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs)) == [OK] * 6
    assert lab.pending() == {}


@pytest.mark.parametrize("count", [0, 1_001])
def test_a_batch_has_limits(lab: Lab, count: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        scripts.ack(lab.keys, lab.group, "me", [(b"1-1", 1)] * count)


# ── delete_on_ack (SPEC 31) ──────────────────────────────────────────────────────────────────────────


def modes(lab: Lab) -> list[Delete]:
    return ["acked", "sole"] if lab.server.key == "redis8" else ["sole"]


def test_an_acked_entry_is_deleted_when_this_is_the_only_group(lab: Lab) -> None:
    for delete in modes(lab):
        pairs = lab.held(6)
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs[:5], delete=delete)) == [OK] * 5
        assert lab.ids() == [pairs[5][0]]
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs[5:], delete=delete)) == [OK]
        assert lab.ids() == []


def test_a_waiting_group_is_no_other_group_but_what_waits_there_stays(lab: Lab) -> None:
    for delete in modes(lab):
        one, two = lab.held(2)
        lab.call(scripts.park(lab.keys, lab.group, "me", 60_000, "waiting", [(*one, 1)]))
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", [two], delete=delete)) == [OK]
        assert lab.ids() == [one[0]]
        # a failover can leave an entry in both lists: while it waits it is not deleted
        lab.raw("XCLAIM", lab.keys.stream, lab.group, "me", 0, one[0], "FORCE", "RETRYCOUNT", 1, "JUSTID")
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", [one], delete=delete)) == [OK]
        assert lab.ids() == [one[0]]
        lab.raw("DEL", lab.keys.stream)


def test_an_entry_that_another_group_has_not_finished_stays(lab: Lab) -> None:
    for delete in modes(lab):
        lab.make_group("audit")
        pairs = lab.held(3)
        assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs, delete=delete)) == [OK] * 3
        assert lab.ids() == [id_ for id_, _ in pairs]
        assert len(lab.read("auditor", group="audit")) == 3
        if delete == "acked":
            assert lab.call(scripts.ack(lab.keys, "audit", "auditor", pairs, delete=delete)) == [OK] * 3
            assert lab.ids() == []
        lab.raw("DEL", lab.keys.stream)


def test_what_is_refused_is_not_deleted(lab: Lab) -> None:
    for delete in modes(lab):
        one, two = lab.held(2)
        lab.steal(one[0])
        words = lab.call(scripts.ack(lab.keys, lab.group, "me", [one, two], delete=delete))
        assert [word.kind for word in words] == ["taken", "ok"]
        assert lab.ids() == [one[0]]
        lab.raw("DEL", lab.keys.stream)


def test_done_and_effects_delete_like_ack(lab: Lab) -> None:
    for delete in modes(lab):
        one, two, three = lab.held(3)
        done = scripts.done(lab.keys, lab.group, "me", [(*one, "k", b"")], 60_000, delete=delete)
        assert {word.kind for word in lab.call(done)} <= {"ok", "duplicate"}
        assert lab.call(scripts.effects(lab.keys, lab.group, "me", *two, [], delete=delete)) == OK
        assert lab.ids() == [three[0]]
        lab.raw("DEL", lab.keys.stream)


# ── completion markers (SPEC 34) ─────────────────────────────────────────────────────────────────────


def test_the_first_result_wins_and_the_second_is_acked_as_a_duplicate(lab: Lab) -> None:
    one, two = lab.held(2)
    marker = lab.keys.once(lab.group, "order-1")
    assert lab.call(scripts.done(lab.keys, lab.group, "me", [(*one, "order-1", b"first")], 60_000)) == [OK]
    words = lab.call(scripts.done(lab.keys, lab.group, "me", [(*two, "order-1", b"second")], 60_000))
    assert words == [Word("duplicate")]
    assert lab.pending() == {}
    assert lab.raw("GET", marker) == b"first"
    assert 50_000 < lab.raw("PTTL", marker) <= 60_000


def test_done_in_a_batch_marks_each_key_and_only_what_is_still_held(lab: Lab) -> None:
    pairs = lab.held(4)
    lab.steal(pairs[1][0])
    finished = [(*pair, f"key-{at}", f"{at}\0".encode()) for at, pair in enumerate(pairs)]
    finished[3] = (*pairs[3], "key-0", b"late")
    words = lab.call(scripts.done(lab.keys, lab.group, "me", finished, 60_000))
    assert [word.kind for word in words] == ["ok", "taken", "ok", "duplicate"]
    values = [lab.raw("GET", lab.keys.once(lab.group, f"key-{at}")) for at in range(3)]
    assert values == [b"0\0", None, b"2\0"]


def test_another_group_has_its_own_markers(lab: Lab) -> None:
    lab.make_group("audit")
    (one,) = lab.held()
    (two,) = [(entry[0], entry[2]) for entry in lab.read(group="audit")]
    assert lab.call(scripts.done(lab.keys, lab.group, "me", [(*one, "k", b"")], 60_000)) == [OK]
    assert lab.call(scripts.done(lab.keys, "audit", "me", [(*two, "k", b"")], 60_000)) == [OK]


# ── add (SPEC 35) ────────────────────────────────────────────────────────────────────────────────────


def test_the_same_key_adds_once_and_the_second_call_says_so(lab: Lab) -> None:
    call = scripts.add(lab.keys, [b"payload", b"\0\xff"], key="order-1", window_ms=60_000)
    first, second = lab.call(call), lab.call(call)
    assert first.first
    assert not second.first
    assert first.id == second.id
    assert lab.ids() == [first.id.encode()]
    assert lab.call(scripts.add(lab.keys, [b"payload", b"1"], key="order-2", window_ms=60_000)).first


def test_after_its_window_a_key_adds_again(lab: Lab) -> None:
    call = scripts.add(lab.keys, ["payload", "1"], key="order-1", window_ms=20)
    first = lab.call(call)
    time.sleep(0.04)
    again = lab.call(call)
    assert again.first
    assert again.id != first.id


def test_twenty_adders_with_one_key_add_once(lab: Lab) -> None:
    call = scripts.add(lab.keys, ["payload", "1"], key="order-1", window_ms=60_000)
    results = lab.at_once(20, lambda _, link: link.call(call))
    assert sum(result.first for result in results) == 1
    assert len({result.id for result in results}) == 1
    assert len(lab.ids()) == 1


def test_a_plain_add_is_a_plain_command(lab: Lab) -> None:
    call = scripts.add(lab.keys, ["payload", "1", "payload", "2"])
    assert call.script is None
    added = lab.call(call)
    assert lab.raw("XRANGE", lab.keys.stream, added.id, added.id)[0][1] == [b"payload", b"1", b"payload", b"2"]


def test_an_add_keeps_the_stream_short_if_asked(lab: Lab) -> None:
    for key in (None, "k"):
        for at in range(300):
            name = key and f"{key}-{at}"
            lab.call(scripts.add(lab.keys, ["payload", at], key=name, window_ms=1_000, maxlen=50))
        assert 50 <= len(lab.ids()) < 160


def test_a_keyed_add_that_is_too_wide_is_refused_before_it_is_sent(lab: Lab) -> None:
    lab.call(scripts.add(lab.keys, ["f", "v"] * 3_500, key="wide", window_ms=1_000))
    with pytest.raises(PayloadTooLarge, match="at most 3500 fields"):
        scripts.add(lab.keys, ["f", "v"] * 3_501, key="wider", window_ms=1_000)


def test_with_memory_full_an_add_is_refused_and_leaves_no_marker(lab: Lab) -> None:
    call = scripts.add(lab.keys, ["payload", "1"], key="order-1", window_ms=60_000)
    with lab.memory_full(), pytest.raises(ServerRefused):
        lab.call(call)
    assert lab.call(call).first
