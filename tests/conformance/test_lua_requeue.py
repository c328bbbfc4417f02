"""The scripts of the requeue strategy, one by one (SPEC 46)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.redis import commands, requeue, scripts
from headrace.redis.calls import Wire
from headrace.redis.letters import open_letter, open_requeued
from headrace.redis.replies import Move
from tests.support.lab import Lab

ME = "me"
IDLE_MS = 30_000


def rules(lab: Lab, **other: object) -> requeue.Rules:
    return requeue.Rules(3, lab.keys.dead_letters)._replace(**other)


def orphans(lab: Lab, count: int = 1, fields: Sequence[Wire] = ("payload", "{}")) -> list[bytes]:
    """Messages that a dead owner read long ago."""
    lab.add(count, fields)
    ids = [id_ for id_, *_ in lab.call(commands.read(lab.keys, lab.group, "dead", count))]
    lab.age(ids, IDLE_MS + 1, "dead")
    return ids


def moved(lab: Lab, ids: Sequence[bytes], **other: object) -> list[Move]:
    return lab.call(requeue.requeue(lab.keys, lab.group, ids, rules(lab, **other), min_idle_ms=IDLE_MS)).moves


def entries(lab: Lab, stream: str | None = None) -> list[tuple[bytes, list[bytes]]]:
    return [tuple(entry) for entry in lab.raw("XRANGE", stream or lab.keys.stream, "-", "+")]


def test_an_unlocked_idle_message_is_appended_again_and_acked(lab: Lab) -> None:
    (id_,) = orphans(lab, fields=("b", "2", "a", "1", "a", "again"))
    (move,) = moved(lab, [id_])
    assert move.kind == "requeued"
    assert lab.pending() == {}
    (_, copy) = entries(lab)[-1]
    assert copy == [b"b", b"2", b"a", b"1", b"a", b"again", b"_retry_count", b"1", b"_original_id", id_]


def test_a_copy_of_a_copy_counts_on_and_keeps_the_first_id(lab: Lab) -> None:
    (first,) = orphans(lab)
    moved(lab, [first])
    ((second, *_),) = lab.call(commands.read(lab.keys, lab.group, "dead", 1))
    lab.age([second], IDLE_MS + 1, "dead")
    moved(lab, [second])
    opened = open_requeued(entries(lab)[-1][1])
    assert opened is not None
    assert opened == (2, first.decode(), [b"payload", b"{}"])


def test_a_lock_a_short_idle_time_and_an_ack_each_leave_a_message_alone(lab: Lab) -> None:
    alive, fresh, gone = orphans(lab, 3)
    lab.raw("SET", lab.keys.lock(alive.decode()), "whoever")
    lab.age([fresh], 0, "dead")
    lab.raw("XACK", lab.keys.stream, lab.group, gone)
    assert [move.kind for move in moved(lab, [alive, fresh, gone])] == ["alive", "fresh", "gone"]
    assert len(entries(lab)) == 3


def test_the_retry_after_the_last_is_a_dead_letter_that_the_tools_can_read(lab: Lab) -> None:
    """SPEC 27, 46: the RFC's fields and ours, the original byte for byte."""
    (id_,) = orphans(lab, fields=("f", b"\x00\xff", "_retry_count", "3", "_original_id", "7-7"))
    (move,) = moved(lab, [id_])
    assert move.kind == "buried"
    ((dead, fields),) = entries(lab, lab.keys.dead_letters)
    assert dead.decode() == move.id
    letter = open_letter(fields)
    assert letter is not None
    assert letter.original == [b"f", b"\x00\xff"]
    assert letter.about["original_id"] == b"7-7"
    assert (letter.about["retry_count"], letter.about["attempts"]) == (b"3", b"4")
    assert letter.about["owner"] == b"dead"
    assert lab.pending() == {}


def test_with_dead_letters_off_an_exhausted_message_stays_pending(lab: Lab) -> None:
    (id_,) = orphans(lab, fields=("f", "v", "_retry_count", "3"))
    assert moved(lab, [id_], maxlen=None)[0].kind == "kept"
    assert list(lab.pending()) == [id_]


@pytest.mark.parametrize(
    "hostile", ["", "-5", "1e308", "nan", "inf", "0x10", " 2", "2.5", "99999999999999999999", "\x00", "²"]
)
def test_a_retry_count_that_is_no_small_whole_number_counts_as_none(lab: Lab, hostile: str) -> None:
    """Anybody may write fields: a hostile count neither buries a message early nor keeps it for ever."""
    (id_,) = orphans(lab, fields=("f", "v", "_retry_count", hostile))
    assert moved(lab, [id_])[0].kind == "requeued"
    opened = open_requeued(entries(lab)[-1][1])
    assert opened is not None
    assert opened.retries == 1


def test_a_message_with_more_fields_than_lua_can_pass_is_packed_and_comes_out_whole(lab: Lab) -> None:
    fields = [word for at in range(4_500) for word in (f"n{at}", f"v{at}")]
    (first,) = orphans(lab, fields=fields)
    moved(lab, [first])
    ((second, *_),) = lab.call(commands.read(lab.keys, lab.group, "dead", 1))
    lab.age([second], IDLE_MS + 1, "dead")
    moved(lab, [second])
    opened = open_requeued(entries(lab)[-1][1])
    assert opened is not None
    assert opened.retries == 2
    assert opened.fields == [word.encode() for word in fields]
    ((third, *_),) = lab.call(commands.read(lab.keys, lab.group, "dead", 1))
    lab.age([third], IDLE_MS + 1, "dead")
    assert moved(lab, [third], max_retries=1)[0].kind == "buried"
    letter = open_letter(entries(lab, lab.keys.dead_letters)[0][1])
    assert letter is not None
    assert letter.original == [word.encode() for word in fields]


def test_a_trimmed_message_is_told_and_leaves_the_pending_list(lab: Lab) -> None:
    (id_,) = orphans(lab)
    lab.raw("XDEL", lab.keys.stream, id_)
    assert moved(lab, [id_])[0].kind == "trimmed"
    assert lab.pending() == {}


def test_a_failed_append_leaves_the_message_pending(lab: Lab) -> None:
    """Append first: the other order loses it (FACTS)."""
    (id_,) = orphans(lab, fields=("f", "v", "_retry_count", "3"))
    lab.raw("SET", lab.keys.dead_letters, "no stream")
    with pytest.raises(Exception, match=r"WRONGTYPE|no stream"):
        moved(lab, [id_])
    assert list(lab.pending()) == [id_]
    lab.raw("DEL", lab.keys.dead_letters)


def test_requeue_and_locks_work_with_memory_full(lab: Lab) -> None:
    """Recovery must not stop when it is needed most; a lock is not refused to who holds the message."""
    (orphan,) = orphans(lab)
    (pair,) = lab.held()
    with lab.memory_full():
        assert lab.call(requeue.hold(lab.keys, lab.group, ME, 5_000, [pair]))[0].kind == "ok"
        assert moved(lab, [orphan])[0].kind == "requeued"
        assert lab.call(requeue.leave(lab.keys, lab.group, ME, *pair, 5_000)).kind == "ok"
    assert lab.raw("EXISTS", lab.keys.lock(pair[0].decode())) == 1


def test_after_its_deadline_a_requeue_does_nothing(lab: Lab) -> None:
    """SPEC 20: queued behind a pause of the server, it comes before the live owners' renewals."""
    (id_,) = orphans(lab)
    found = lab.call(requeue.requeue(lab.keys, lab.group, [id_], rules(lab), min_idle_ms=0, deadline_ms=1))
    assert (found.late, found.moves) == (True, [])
    assert list(lab.pending()) == [id_]


def test_twenty_scanners_move_each_orphan_once_and_none_with_a_live_lock(lab: Lab) -> None:
    """SPEC 46: the mutex check and the move are one step."""
    ids = orphans(lab, 200)
    for id_ in ids[::2]:
        lab.raw("SET", lab.keys.lock(id_.decode()), "alive")
    links = [lab.dial() for _ in range(20)]

    def scan(at: int) -> list[Move]:
        call = requeue.requeue(lab.keys, lab.group, ids[at:] + ids[:at], rules(lab), min_idle_ms=IDLE_MS)
        return links[at].call(call).moves

    with ThreadPoolExecutor(20) as pool:
        kinds = [move.kind for moves in pool.map(scan, range(20)) for move in moves]
    for link in links:
        link.close()
    assert kinds.count("requeued") == 100
    assert len(entries(lab)) == 300
    assert set(lab.pending()) == set(ids[::2])


# ── my own ──


def test_a_lock_is_only_taken_by_who_holds_the_message(lab: Lab) -> None:
    pair, other = lab.held(2)
    lab.raw("XACK", lab.keys.stream, lab.group, other[0])
    words = lab.call(requeue.hold(lab.keys, lab.group, ME, 5_000, [pair, other, (pair[0], 7)]))
    assert [word.kind for word in words] == ["ok", "gone", "taken"]
    assert lab.raw("GET", lab.keys.lock(pair[0].decode())) == ME.encode()
    assert lab.raw("EXISTS", lab.keys.lock(other[0].decode())) == 0


def test_a_lock_does_not_overwrite_what_is_no_lock(lab: Lab) -> None:
    (pair,) = lab.held()
    lab.raw("RPUSH", lab.keys.lock(pair[0].decode()), "somebody's list")
    assert lab.call(requeue.hold(lab.keys, lab.group, ME, 5_000, [pair]))[0].kind == "ok"
    assert lab.raw("TYPE", lab.keys.lock(pair[0].decode())) == b"list"


def test_what_is_left_waits_behind_its_lock_and_then_goes_whatever_its_idle_time(lab: Lab) -> None:
    (pair,) = lab.held()
    assert lab.call(requeue.leave(lab.keys, lab.group, ME, *pair, 60_000)).kind == "ok"
    assert lab.call(requeue.leave(lab.keys, lab.group, ME, *pair, 60_000)).kind == "ok"  # sent again
    assert moved(lab, [pair[0]])[0].kind == "alive"
    lab.raw("DEL", lab.keys.lock(pair[0].decode()))
    assert moved(lab, [pair[0]])[0].kind == "requeued"


def test_a_zombie_cannot_end_what_was_left_or_requeued(lab: Lab) -> None:
    left, requeued = lab.held(2)
    lab.call(requeue.leave(lab.keys, lab.group, ME, *left, 60_000))
    lab.age([requeued[0]], IDLE_MS + 1, ME)
    moved(lab, [requeued[0]])
    words = lab.call(scripts.ack(lab.keys, lab.group, ME, [left, requeued]))
    assert [word.kind for word in words] == ["taken", "gone"]


def test_what_is_handed_back_costs_no_retry(lab: Lab) -> None:
    """SPEC 22, 46: a deploy burns nothing."""
    now, later = lab.held(2)
    lab.call(requeue.hold(lab.keys, lab.group, ME, 5_000, [now]))
    assert lab.call(requeue.requeue_own(lab.keys, lab.group, ME, *now, rules(lab), "release")).kind == "ok"
    assert lab.raw("EXISTS", lab.keys.lock(now[0].decode())) == 0
    assert lab.call(requeue.leave(lab.keys, lab.group, ME, *later, 0, counts=False)).kind == "ok"
    assert moved(lab, [later[0]])[0].kind == "requeued"
    counts = [opened.retries for _, fields in entries(lab) if (opened := open_requeued(fields))]
    assert counts == [0, 0]


def test_a_burial_of_a_copy_holds_the_message_as_it_was_added(lab: Lab) -> None:
    lab.add(1, ("f", "v", "_retry_count", "2", "_original_id", "5-5"))
    ((id_, *_),) = lab.call(commands.read(lab.keys, lab.group, ME, 1))
    why = requeue.Why("Bury", "no such customer")
    word = lab.call(requeue.requeue_own(lab.keys, lab.group, ME, id_, 1, rules(lab), "bury", why))
    assert word.kind == "ok"
    letter = open_letter(entries(lab, lab.keys.dead_letters)[0][1])
    assert letter is not None
    assert letter.original == [b"f", b"v"]
    assert letter.about["reason"] == b"no such customer"
    assert (letter.about["original_id"], letter.about["attempts"]) == (b"5-5", b"3")
