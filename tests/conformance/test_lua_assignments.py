"""The scripts of assignments: announced once, one owner, a position that no former owner moves (SPEC 42 to 45)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import WrongType
from headrace.names import keys_of
from headrace.redis import commands, ownership, scripts
from headrace.redis.calls import Call, Word
from headrace.redis.letters import open_copy, open_letter
from headrace.redis.ownership import Place
from tests.support.lab import Lab

LEASE_MS = 60_000


@pytest.fixture
def place(lab: Lab) -> Place:
    """A data stream in another slot than its announcement's."""
    keys = keys_of(f"{lab.keys.stream}-room")
    return Place(keys.stream, keys.ownership(lab.keys.stream, lab.group), f"{lab.keys.stream}:{lab.group}")


def announced(lab: Lab, name: str, owner: str = "me") -> tuple[bytes, int]:
    """An announcement in the hands of an owner, as (id, count)."""
    lab.make_group()
    lab.call(ownership.announce(lab.keys, name, b"{}"))
    ((id_, _, count, _),) = lab.read(owner)
    return id_, count


def fill(lab: Lab, place: Place, count: int = 3) -> list[bytes]:
    return [lab.raw("XADD", place.data, "*", "payload", "{}") for _ in range(count)]


def took(lab: Lab, place: Place, id_: bytes, count: int, owner: str = "me") -> int:
    take = lab.call(ownership.take(place, id_, count, owner))
    assert take.kind == "ok"
    return take.epoch


# ── announcing ──


def test_a_name_is_announced_once_until_it_is_finished(lab: Lab, place: Place) -> None:
    """SPEC 42."""
    first = lab.call(ownership.announce(lab.keys, place.data, b'{"a":1}'))
    second = lab.call(ownership.announce(lab.keys, place.data, b'{"a":2}'))
    assert (first.new, second.new) == (True, False)
    assert first.id == second.id
    assert len(lab.ids()) == 1
    lab.make_group()
    ((id_, fields, count, _),) = lab.read("me")
    assert fields == [b"stream", place.data.encode(), b"info", b'{"a":1}']
    assert lab.call(ownership.finished(lab.keys, lab.group, "me", id_, count, place.data)).kind == "ok"
    assert lab.ids() == []
    assert lab.call(ownership.announce(lab.keys, place.data, b"{}")).new


def test_a_name_whose_announcement_was_deleted_is_announced_anew(lab: Lab, place: Place) -> None:
    first = lab.call(ownership.announce(lab.keys, place.data, b"{}"))
    lab.trim(first.id.encode())
    again = lab.call(ownership.announce(lab.keys, place.data, b"{}"))
    assert again.new
    assert again.id != first.id


# ── the fence ──


def test_a_take_answers_from_where_to_go_on_and_raises_the_epoch(lab: Lab, place: Place) -> None:
    ids = fill(lab, place)
    assert lab.call(ownership.take(place, b"5-0", 1, "me")) == ownership.Take("ok", 1, "0-0", 0)
    assert lab.call(ownership.pos_ack(place, "me", 1, ids[1], 2)).kind == "ok"
    assert lab.call(ownership.take(place, b"5-0", 2, "heir")) == ownership.Take("ok", 2, ids[1].decode(), 0, read=2)


def test_a_repeated_take_is_answered_again_and_an_older_one_refused(lab: Lab, place: Place) -> None:
    """SPEC 43b: (assignment, count) only grows; numbers are compared as numbers, whatever their digits."""
    assert lab.call(ownership.take(place, b"9-0", 9, "me")).epoch == 1
    assert lab.call(ownership.take(place, b"9-0", 9, "me")).epoch == 1
    assert lab.call(ownership.take(place, b"9-0", 10, "heir")).epoch == 2
    late = lab.call(ownership.take(place, b"9-0", 9, "me"))
    assert (late.kind, late.count, late.holder) == ("stale", 10, "heir")
    assert lab.call(ownership.take(place, b"9-0", 10, "me")).kind == "stale"  # a failover: two with one count
    assert lab.call(ownership.take(place, b"10-0", 1, "next")).epoch == 3
    assert lab.call(ownership.take(place, b"9-18446744073709551615", 99, "heir")).kind == "newer"
    forced = lab.call(ownership.take(place, b"9-1", 1, "back", how="force"))
    assert (forced.kind, forced.epoch) == ("ok", 4)


WORDS: dict[str, Callable[[Place, str, int, bytes], Call[Any]]] = {
    "pos_ack": lambda place, owner, epoch, id_: ownership.pos_ack(place, owner, epoch, id_, 1),
    "set_aside": lambda place, owner, epoch, id_: ownership.set_aside(
        place, owner, epoch, id_, 1, extra={"_reason": "why"}
    ),
    "begin": lambda place, owner, epoch, _: ownership.begin(place, owner, epoch, 1),
    "give_up": lambda place, owner, epoch, _: ownership.give_up(place, owner, epoch, 1),
    "finish": lambda place, owner, epoch, _: ownership.finish(place, owner, epoch, b"5-0"),
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("later", ["another owner", "the same owner again"])
def test_every_word_of_a_former_owner_is_refused_and_changes_nothing(
    lab: Lab, place: Place, name: str, later: str
) -> None:
    """SPEC 43: the fence is owner and epoch, both."""
    ids = fill(lab, place)
    epoch = took(lab, place, b"5-0", 1)
    holder = "heir" if later == "another owner" else "me"
    took(lab, place, b"5-0", 2, holder)
    before = lab.raw("HGETALL", place.own)
    answer = lab.call(WORDS[name](place, "me", epoch, ids[0]))
    assert answer.holder == holder
    assert getattr(answer, "kind", "taken") == "taken"
    assert getattr(answer, "ok", False) is False
    assert lab.raw("HGETALL", place.own) == before
    assert lab.raw("XLEN", place.data) == 3


@pytest.mark.parametrize("name", WORDS)
def test_words_about_a_stream_nobody_took_are_refused(lab: Lab, place: Place, name: str) -> None:
    answer = lab.call(WORDS[name](place, "me", 1, b"1-0"))
    assert answer.holder == ""
    assert lab.raw("EXISTS", place.own, place.data) == 0


# ── dead letters ──


def test_a_message_is_set_aside_once_with_its_bytes_and_the_position_moves_past_it(lab: Lab, place: Place) -> None:
    """SPEC 26, 27, 51: appended and passed in one step; a repeated word is old."""
    fields = ("payload", b"\xff\x00", "payload", "twice", "_n", "not ours")
    id_ = lab.raw("XADD", place.data, "*", *fields)
    epoch, dead = took(lab, place, b"5-0", 1), keys_of(place.data).dead_letters
    call = ownership.set_aside(place, "me", epoch, id_, 1, extra={"_group": lab.group, "_reason": "why"})
    assert lab.call(call).kind == "ok"
    assert lab.call(call).kind == "old"
    ((_, found),) = lab.raw("XRANGE", dead, "-", "+")
    letter = open_letter(found)
    assert letter is not None
    assert letter.original == [word.encode() if isinstance(word, str) else word for word in fields]
    assert letter.about["reason"] == b"why"
    assert lab.raw("HGET", place.own, "pos") == id_
    assert lab.raw("HGET", place.own, "tries") == b"0"


def test_what_was_trimmed_meanwhile_is_passed_without_a_dead_letter(lab: Lab, place: Place) -> None:
    (id_,) = fill(lab, place, 1)
    epoch = took(lab, place, b"5-0", 1)
    lab.raw("XDEL", place.data, id_)
    call = ownership.set_aside(place, "me", epoch, id_, 1, extra={"_reason": "why"})
    assert lab.call(call).kind == "trimmed"
    assert lab.raw("HGET", place.own, "pos") == id_
    assert lab.raw("EXISTS", keys_of(place.data).dead_letters) == 0


def test_where_the_dead_letters_cannot_be_written_the_position_stays(lab: Lab, place: Place) -> None:
    """Append first: nothing is passed that is not kept."""
    (id_,) = fill(lab, place, 1)
    epoch = took(lab, place, b"5-0", 1)
    lab.raw("SET", keys_of(place.data).dead_letters, "no stream")
    with pytest.raises(WrongType):
        lab.call(ownership.set_aside(place, "me", epoch, id_, 1, extra={"_reason": "why"}))
    assert lab.raw("HGET", place.own, "pos") == b"0-0"


def test_a_replayed_message_of_an_owned_stream_comes_again_at_its_end(lab: Lab, place: Place) -> None:
    """SPEC 28: its owner is past it, and no group of that name reads the stream."""
    id_, last = fill(lab, place, 2)
    keys, epoch = keys_of(place.data), took(lab, place, b"5-0", 1)
    extra = {"_original_id": id_.decode(), "_group": lab.group}
    assert lab.call(ownership.set_aside(place, "me", epoch, id_, 1, extra=extra)).kind == "ok"
    ((dead, _),) = lab.raw("XRANGE", keys.dead_letters, "-", "+")
    assert lab.call(scripts.replay(keys, lab.group, id_.decode(), dead.decode())).kind == "copy"
    assert lab.call(scripts.replay(keys, lab.group, id_.decode(), dead.decode())).kind == "gone"
    ((copy_id, fields),) = lab.raw("XRANGE", place.data, f"({last.decode()}", "+")
    copy = open_copy(fields)
    assert copy is not None
    assert (copy.original_id, copy.only, copy.fields) == (id_.decode(), lab.group, [b"payload", b"{}"])
    assert copy_id > last


# ── the position ──


def test_the_position_never_goes_back_and_a_repeated_ack_is_old(lab: Lab, place: Place) -> None:
    epoch = took(lab, place, b"5-0", 1)
    for id_, kind in ((b"9-9", "ok"), (b"10-0", "ok"), (b"10-0", "old"), (b"9-10", "old"), (b"10-10", "ok")):
        assert lab.call(ownership.pos_ack(place, "me", epoch, id_, 1)).kind == kind
    assert lab.call(ownership.standing(place)).position == "10-10"


def test_ids_of_64_bits_are_compared_digit_by_digit(lab: Lab, place: Place) -> None:
    epoch = took(lab, place, b"5-0", 1)
    high, higher = b"18446744073709551614-18446744073709551613", b"18446744073709551614-18446744073709551614"
    assert lab.call(ownership.pos_ack(place, "me", epoch, high, 1)).kind == "ok"
    assert lab.call(ownership.pos_ack(place, "me", epoch, higher, 1)).kind == "ok"
    assert lab.call(ownership.pos_ack(place, "me", epoch, high, 1)).kind == "old"


def test_the_mirror_group_shows_position_and_lag(lab: Lab, place: Place) -> None:
    """SPEC 43b: for XINFO GROUPS and for retention."""
    ids = fill(lab, place, 5)
    epoch = took(lab, place, b"5-0", 1)
    has_lag = lab.server.key != "redis6"
    lab.call(ownership.pos_ack(place, "me", epoch, ids[1], 2))
    lab.call(ownership.pos_ack(place, "me", epoch, ids[2], 1))
    (row,) = lab.raw("XINFO", "GROUPS", place.data)
    about = dict(zip(row[::2], row[1::2], strict=True))
    assert about[b"name"] == place.mirror.encode()
    assert about[b"last-delivered-id"] == ids[2]
    assert about.get(b"lag") == (2 if has_lag else None)


def test_a_kept_stream_whose_hash_was_forgotten_goes_on_where_its_mirror_says(lab: Lab, place: Place) -> None:
    ids = fill(lab, place)
    epoch = took(lab, place, b"5-0", 1)
    lab.call(ownership.pos_ack(place, "me", epoch, ids[0], 1))
    assert lab.call(ownership.finish(place, "me", epoch, b"5-0", delete=False)).kind == "ok"
    assert lab.raw("TTL", place.own) > 0
    lab.raw("DEL", place.own)
    assert lab.call(ownership.take(place, b"6-0", 1, "me")).position == ids[0].decode()
    assert lab.raw("TTL", place.own) == -1


# ── tries ──


def test_tries_count_handlers_that_led_nowhere_and_progress_forgets_them(lab: Lab, place: Place) -> None:
    ids = fill(lab, place)
    epoch = took(lab, place, b"5-0", 1)
    for _ in range(2):  # repeated, because an answer was cut: nothing more is counted
        assert lab.call(ownership.begin(place, "me", epoch, 1)).tries == 1
    assert lab.call(ownership.take(place, b"5-0", 2, "heir")).tries == 1  # the owner died
    assert lab.call(ownership.begin(place, "heir", 2, 2)).tries == 2
    assert lab.call(ownership.give_up(place, "heir", 2, -1)).tries == 1  # handed back untouched
    assert lab.call(ownership.give_up(place, "heir", 2, -1)).tries == 1  # repeated: nothing more
    assert lab.call(ownership.take(place, b"5-0", 3, "me")).tries == 1
    assert lab.call(ownership.pos_ack(place, "me", 3, ids[0], 1)).kind == "ok"
    assert lab.call(ownership.standing(place)).tries == 0
    assert lab.call(ownership.give_up(place, "me", 3, -1)).tries == 0


def test_an_ack_may_note_the_first_try_of_the_next_message(lab: Lab, place: Place) -> None:
    """SPEC 25: in one step, so that no start is uncounted and none costs a call of its own."""
    ids = [lab.raw("XADD", place.data, "*", "n", n) for n in range(3)]
    epoch = lab.call(ownership.take(place, b"5-0", 1, "me")).epoch
    for times in range(2):  # repeated: old, and nothing more is counted
        kind = lab.call(ownership.pos_ack(place, "me", epoch, ids[0], 1, begins=True)).kind
        assert (kind, lab.call(ownership.standing(place)).tries) == ("old" if times else "ok", 1)
    assert lab.call(ownership.pos_ack(place, "me", epoch, ids[1], 1, begins=True)).kind == "ok"
    assert lab.call(ownership.standing(place)).tries == 1
    assert lab.call(ownership.pos_ack(place, "me", epoch, ids[2], 1)).kind == "ok"
    assert lab.call(ownership.standing(place)).tries == 0


def test_a_new_announcement_starts_without_tries_and_so_does_one_taken_afresh(lab: Lab, place: Place) -> None:
    epoch = took(lab, place, b"5-0", 1)
    lab.call(ownership.begin(place, "me", epoch, 1))
    assert lab.call(ownership.take(place, b"5-0", 2, "me")).tries == 1
    assert lab.call(ownership.take(place, b"5-0", 3, "me", how="afresh")).tries == 0
    lab.call(ownership.begin(place, "me", 3, 1))
    assert lab.call(ownership.take(place, b"6-0", 1, "me")).tries == 0


# ── the end ──


def test_finishing_marks_it_done_deletes_the_data_and_may_be_repeated(lab: Lab, place: Place) -> None:
    fill(lab, place)
    epoch = took(lab, place, b"5-0", 1)
    for _ in range(2):
        assert lab.call(ownership.finish(place, "me", epoch, b"5-0")).kind == "ok"
    assert lab.raw("EXISTS", place.data) == 0
    assert lab.raw("TTL", place.own) > 0
    assert lab.call(ownership.take(place, b"5-0", 2, "heir")).kind == "done"
    fresh = lab.call(ownership.take(place, b"6-0", 1, "heir"))
    assert (fresh.kind, fresh.position) == ("ok", "0-0")
    assert lab.call(ownership.finish(place, "me", epoch, b"5-0")).kind == "taken"


def test_an_announcement_is_ended_only_by_its_holder(lab: Lab, place: Place) -> None:
    id_, count = announced(lab, place.data)
    call = ownership.finished(lab.keys, lab.group, "me", id_, count, place.data)
    lab.steal(id_, "heir")
    assert lab.call(call) == Word("taken", "heir", 2)
    assert lab.call(ownership.finished(lab.keys, lab.group, "heir", id_, 2, place.data)).kind == "ok"
    assert lab.call(call).kind == "gone"
    assert lab.ids() == []


def test_a_name_that_stands_for_another_announcement_is_not_forgotten(lab: Lab, place: Place) -> None:
    id_, count = announced(lab, place.data)
    lab.raw("HSET", lab.keys.names, place.data, "7-7")
    assert lab.call(ownership.finished(lab.keys, lab.group, "me", id_, count, place.data)).kind == "ok"
    assert lab.call(ownership.id_of(lab.keys, place.data)) == "7-7"


def test_the_holder_may_lift_its_count_and_nobody_else(lab: Lab, place: Place) -> None:
    id_, count = announced(lab, place.data)
    assert lab.call(ownership.lift(lab.keys, lab.group, "other", id_, count, 9)) == Word("taken", "me", 1)
    assert lab.call(ownership.lift(lab.keys, lab.group, "me", id_, count, 9)).kind == "ok"
    assert lab.pending() == {id_: ("me", 9)}
    assert lab.call(ownership.lift(lab.keys, lab.group, "me", id_, count, 9)) == Word("taken", "me", 9)
    lab.raw("XACK", lab.keys.stream, lab.group, id_)
    assert lab.call(ownership.lift(lab.keys, lab.group, "me", id_, 9, 10)).kind == "gone"


# ── leases and heirs ──


def beat(lab: Lab, owner: str = "me", lease_ms: int = LEASE_MS) -> ownership.Beat:
    return lab.call(ownership.beat(lab.keys, lab.group, owner, lease_ms))


def test_a_beat_tells_whether_the_lease_held_and_how_many_share(lab: Lab) -> None:
    """SPEC 45: one lease for all of an owner's assignments."""
    lab.make_group()
    for name in "abc":
        lab.call(ownership.announce(lab.keys, f"{lab.keys.stream}-{name}", b"{}"))
    first = beat(lab)
    assert (first.alive, first.owners, first.there, first.mine) == (False, 1, 3, 0)
    lab.read("me", 2)
    lab.call(ownership.beat(lab.keys, lab.group, "sibling", LEASE_MS))
    again = beat(lab)
    assert (again.alive, again.owners, again.there, again.mine, again.share) == (True, 2, 3, 2, 2)
    lab.call(ownership.end_lease(lab.keys, lab.group, "me"))
    assert beat(lab, "sibling").owners == 1
    assert not beat(lab, "me", 0).alive
    assert not beat(lab).alive  # the look before has renewed nothing


def test_an_owner_that_leaves_keeps_its_lease_and_is_no_sharer(lab: Lab) -> None:
    lab.held(2, "leaver")
    beat(lab, "heir")
    leaving = ownership.beat(lab.keys, lab.group, "leaver", 60_000, leaving=True)
    assert lab.call(leaving).owners == 1
    assert lab.call(leaving).alive
    assert inherit(lab).taken == []
    lab.call(ownership.beat(lab.keys, lab.group, "leaver", 1, leaving=True))
    time.sleep(0.005)
    assert len(inherit(lab).taken) == 2
    assert float(lab.raw("ZSCORE", lab.keys.beats(lab.group), "leaver")) < 1e15


def inherit(lab: Lab, owner: str = "heir", limit: int = 100, deadline_ms: int = 0) -> ownership.Inherited:
    return lab.call(ownership.inherit(lab.keys, lab.group, owner, limit, LEASE_MS, deadline_ms))


def test_heirs_take_from_owners_whose_lease_ended_and_from_nobody_else(lab: Lab) -> None:
    lab.held(3, "dead")
    lab.held(2, "alive")
    beat(lab, "alive")
    beat(lab, "dead")
    beat(lab, "heir")
    assert inherit(lab).taken == []
    lab.call(ownership.end_lease(lab.keys, lab.group, "dead"))
    two = inherit(lab, limit=2).taken
    assert [(count, former) for _, _, count, former in two] == [(2, "dead")] * 2
    assert all(fields == [b"payload", b"{}"] for _, fields, _, _ in two)
    assert len(inherit(lab).taken) == 1
    assert inherit(lab).taken == []
    assert sorted(owner for owner, _ in lab.pending().values()) == ["alive", "alive", "heir", "heir", "heir"]


def test_an_owner_that_never_had_a_lease_is_dead_when_idle_for_long(lab: Lab) -> None:
    pairs = lab.held(2, "foreign")
    beat(lab, "heir")
    assert inherit(lab).taken == []
    lab.age([pairs[0][0]], ownership.LEASELESS * LEASE_MS + 1, "foreign")
    assert [row[0] for row in inherit(lab).taken] == [pairs[0][0]]


def test_an_inheritance_that_comes_too_late_does_nothing(lab: Lab) -> None:
    """SPEC 20: queued behind a pause of the server, the beats of live owners go first."""
    lab.held(1, "dead")
    beat(lab, "dead", 1)
    time.sleep(0.005)
    late = inherit(lab, deadline_ms=lab.now_ms() - 1)
    assert (late.late, late.taken) == (True, [])
    assert len(inherit(lab, deadline_ms=lab.now_ms() + 60_000).taken) == 1


def test_what_was_given_up_by_a_word_is_inherited_also_when_leases_cannot_be_trusted(lab: Lab) -> None:
    for owner in ("late", "over", "foreign"):
        lab.held(1, owner)
    beat(lab, "late", 1)
    beat(lab, "over")
    time.sleep(0.005)
    certain = ownership.inherit(lab.keys, lab.group, "heir", 10, 0, certain=True)
    assert lab.call(certain).taken == []
    lab.call(ownership.end_lease(lab.keys, lab.group, "over"))
    assert [former for _, _, _, former in lab.call(certain).taken] == ["over"]


def test_many_heirs_at_once_take_each_assignment_once(lab: Lab) -> None:
    lab.held(200, "dead")
    beat(lab, "dead", 1)
    time.sleep(0.005)
    taken = lab.at_once(
        8, lambda at, link: link.call(ownership.inherit(lab.keys, lab.group, f"heir-{at}", 50, LEASE_MS)).taken
    )
    ids = [row[0] for rows in taken for row in rows]
    assert len(ids) == len(set(ids)) == 200


def test_deleted_announcements_are_told_and_forgotten_owners_removed(lab: Lab) -> None:
    pairs = lab.held(2, "dead")
    lab.trim(pairs[0][0])
    lab.raw("ZADD", lab.keys.beats(lab.group), 1, "dead")
    found = inherit(lab)
    assert len(found.taken) == 1
    assert lab.raw("ZSCORE", lab.keys.beats(lab.group), "dead") is None
    assert "dead" not in [row[1].decode() for row in lab.raw("XINFO", "CONSUMERS", lab.keys.stream, lab.group)]


@pytest.mark.parametrize("age_ms", [0, 4_000_000])
def test_an_owner_that_was_killed_while_it_left_is_forgotten_after_an_hour(lab: Lab, age_ms: int) -> None:
    lab.make_group()
    leaving = ownership.beat(lab.keys, lab.group, "left", LEASE_MS, leaving=True)
    beats = lab.keys.beats(lab.group)
    lab.call(leaving)
    lab.raw("ZINCRBY", beats, -age_ms, "left")
    inherit(lab)
    assert (lab.raw("ZSCORE", beats, "left") is None) == (age_ms > 0)


def test_a_stream_that_was_never_owned_begins_where_it_is_told(lab: Lab, place: Place) -> None:
    ids = fill(lab, place)
    for assignment, start, position in ((b"5-0", "$", ids[-1]), (b"6-0", "0", b"0-0"), (b"7-0", "123", b"123-0")):
        take = lab.call(ownership.take(place, assignment, 1, "me", start=start))
        assert take.position == position.decode()
        again = lab.call(ownership.take(place, assignment, 2, "heir", start="0"))
        assert again.position == take.position  # it is owned: nobody tells it where to begin any more
        lab.raw("DEL", place.own)
        lab.raw("XGROUP", "DESTROY", place.data, place.mirror)
    lab.raw("DEL", place.data)
    assert lab.call(ownership.take(place, b"8-0", 1, "me", start="$")).position == "0-0"  # made, and empty


# ── claiming by hand ──


def test_of_two_that_claim_an_expired_assignment_one_wins(lab: Lab, place: Place) -> None:
    """SPEC 44."""
    id_, count = announced(lab, place.data, "dead")
    beat(lab, "dead", 1)
    time.sleep(0.005)
    told = lab.call(ownership.expired(lab.keys, lab.group, "me", 10, LEASE_MS))
    assert abs(told.server_ms - lab.call(commands.server_ms())) < 1_000
    ((told_id, fields, told_count, owner),) = told.left
    assert (told_id, told_count, owner) == (id_, count, "dead")
    assert fields[1] == place.data.encode()
    claims = lab.at_once(
        6,
        lambda at, link: link.call(
            ownership.claim(lab.keys, lab.group, f"me-{at}", place.data, LEASE_MS, id_=told_id, count=told_count)
        ),
    )
    kinds = sorted(claim.kind for claim in claims)
    assert kinds == ["ok"] + ["taken"] * 5
    (won,) = (claim for claim in claims if claim.kind == "ok")
    assert (won.id, won.count, won.holder) == (id_, 2, "dead")


def test_a_claim_says_why_it_cannot_be_had(lab: Lab, place: Place) -> None:
    def claim(owner: str = "me") -> str:
        return lab.call(ownership.claim(lab.keys, lab.group, owner, place.data, LEASE_MS)).kind

    lab.make_group()
    assert claim() == "gone"
    lab.call(ownership.announce(lab.keys, place.data, b"{}"))
    assert claim() == "free"
    lab.read("alive")
    assert claim() == "taken"  # fresh, though it never had a lease
    beat(lab, "alive")
    assert claim() == "taken"
    assert claim("alive") == "mine"
    lab.call(ownership.end_lease(lab.keys, lab.group, "alive"))
    assert claim() == "ok"
    lab.trim(lab.ids()[0])
    lab.call(ownership.end_lease(lab.keys, lab.group, "me"))
    lab.raw("ZADD", lab.keys.beats(lab.group), 1, "me")
    assert claim("other") == "gone"


def test_a_claim_that_comes_too_late_takes_only_what_was_given_up_by_a_word(lab: Lab, place: Place) -> None:
    """SPEC 20: behind a server that stood still, an ended lease says nothing."""

    def claim(until_ms: int | None) -> ownership.Claimed:
        return lab.call(ownership.claim(lab.keys, lab.group, "me", place.data, LEASE_MS, until_ms=until_ms))

    announced(lab, place.data, "owner")
    beat(lab, "owner", 1)
    time.sleep(0.005)
    now_ms = lab.call(commands.server_ms())
    for late_ms in (0, now_ms - 1):
        assert claim(late_ms) == ownership.Claimed("unsure", holder="owner")
    lab.call(ownership.end_lease(lab.keys, lab.group, "owner"))
    assert claim(0).kind == "ok"
    beat(lab, "me", 1)
    time.sleep(0.005)
    in_time = ownership.claim(lab.keys, lab.group, "heir", place.data, LEASE_MS, until_ms=now_ms + 60_000)
    assert lab.call(in_time).kind == "ok"


# ── memory ──


def test_an_owner_can_go_on_with_memory_full(lab: Lab, place: Place) -> None:
    """A full server is emptied by owners that can acknowledge and finish."""
    ids = fill(lab, place)
    id_, count = announced(lab, place.data, "dead")
    beat(lab, "dead", 1)
    time.sleep(0.005)
    with lab.memory_full():
        beat(lab)
        assert len(inherit(lab, "me").taken) == 1
        epoch = took(lab, place, id_, count + 1)
        assert lab.call(ownership.begin(place, "me", epoch, 1)).ok
        assert lab.call(ownership.pos_ack(place, "me", epoch, ids[0], 1)).kind == "ok"
        assert lab.call(ownership.give_up(place, "me", epoch)).ok
        lab.call(scripts.park(lab.keys, lab.group, "me", 0, "waiting", [(id_, 2, 2)]))
        time.sleep(0.002)
        assert lab.call(scripts.due(lab.keys, lab.group, "me", 1)).taken[0][2] == 3
        epoch = took(lab, place, id_, 3)
        assert lab.call(ownership.finish(place, "me", epoch, id_)).kind == "ok"
        assert lab.call(ownership.finished(lab.keys, lab.group, "me", id_, 3, place.data)).kind == "ok"


def test_a_key_of_another_type_is_refused_before_anything_is_written(lab: Lab, place: Place) -> None:
    lab.raw("SET", place.data, "text")
    with pytest.raises(WrongType):
        lab.call(ownership.take(place, b"5-0", 1, "me"))
    assert lab.raw("EXISTS", place.own) == 0
