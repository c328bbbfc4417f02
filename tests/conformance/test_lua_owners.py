"""join, stay, remove_owner: who is there. keep_floor, regroup, levels: what a group knows about itself."""

from __future__ import annotations

import json

import pytest

from headrace.errors import NoGroup, OwnerTaken
from headrace.redis import commands, scripts
from headrace.redis.calls import OK
from headrace.redis.replies import Joined, Levels, Regrouped, Removal, Stayed
from tests.support.lab import Lab

INFO = json.dumps({"host": "box-1", "pid": 42, "started_ms": 1, "note": 'odd "quotes" and 7 {braces}'})


def join(lab: Lab, owner: str, token: str, lease_ms: int = 10_000, info: str = INFO, fixed: bool = True) -> Joined:
    return lab.call(scripts.join(lab.keys, lab.group, owner, token, lease_ms, info, fixed))


def stay(lab: Lab, owner: str, token: str) -> Stayed:
    return lab.call(scripts.stay(lab.keys, lab.group, owner, token))


def unseen(lab: Lab, owner: str, ms: int) -> None:
    """Make an owner's entry look that old."""
    key = lab.keys.owners(lab.group)
    entry = json.loads(lab.raw("HGET", key, owner))
    old = json.dumps({**entry, "seen_ms": entry["seen_ms"] - ms}, separators=(",", ":"))
    leases = dict(lease.split(b" ") for lease in lab.raw("HGET", key, "").split(b";") if lease)
    name = str(entry["lease_ms"]).encode()
    leases[name] = str(int(leases[name]) - ms).encode()
    lab.raw("HSET", key, owner, old, "", b"".join(b"%b %b;" % lease for lease in leases.items()))


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_fixed_name_in_use_is_refused_and_the_holder_named(lab: Lab) -> None:
    """SPEC 2."""
    joined = join(lab, "worker-1", "aaa")
    assert (joined.ok, joined.holder, joined.lease_ms) == (True, {}, 10_000)
    assert abs(joined.server_ms - lab.now_ms()) < 5_000
    refused = join(lab, "worker-1", "bbb")
    assert not refused.ok
    assert refused.holder["host"] == "box-1"
    with pytest.raises(OwnerTaken, match=r"worker-1.*host box-1, pid 42"):
        raise refused.taken("worker-1")
    assert stay(lab, "worker-1", "aaa").mine
    again = join(lab, "worker-1", "aaa")
    assert again.ok, "the same process may join again"


def test_a_fixed_name_is_free_after_its_holder_was_silent_for_a_lease(lab: Lab) -> None:
    join(lab, "worker-1", "aaa", lease_ms=2_000)
    unseen(lab, "worker-1", 1_500)
    assert not join(lab, "worker-1", "bbb", lease_ms=1_000).ok
    unseen(lab, "worker-1", 600)
    assert not join(lab, "worker-1", "bbb", lease_ms=60_000).ok, "the longer of the two leases counts"
    taken = join(lab, "worker-1", "bbb", lease_ms=1_000)
    assert taken.ok
    assert taken.holder["token"] == "aaa"
    assert not stay(lab, "worker-1", "aaa").mine
    assert stay(lab, "worker-1", "bbb").mine


def test_a_unique_name_is_never_refused(lab: Lab) -> None:
    assert join(lab, "host-1-abc", "aaa", fixed=False).ok
    assert join(lab, "host-1-abc", "bbb", fixed=False).ok


def test_everybody_hears_the_longest_lease_of_the_live_owners(lab: Lab) -> None:
    """SPEC 7b."""
    assert join(lab, "one", "a", lease_ms=1_000).lease_ms == 1_000
    assert join(lab, "two", "b", lease_ms=5_000).lease_ms == 5_000
    assert join(lab, "three", "c", lease_ms=2_000).lease_ms == 5_000
    assert stay(lab, "one", "a").lease_ms == 5_000
    unseen(lab, "two", 14_000)
    assert stay(lab, "one", "a").lease_ms == 5_000
    unseen(lab, "two", 2_000)
    assert stay(lab, "one", "a").lease_ms == 2_000, "silent for three leases is gone"


def test_a_long_lease_is_forgotten_with_the_last_owner_that_had_it(lab: Lab) -> None:
    lab.make_group()
    for owner, token, lease_ms in (("one", "a", 1_000), ("two", "b", 5_000), ("three", "c", 5_000)):
        join(lab, owner, token, lease_ms)
    assert remove(lab, "two") == Removal("removed")
    assert stay(lab, "one", "a").lease_ms == 5_000
    assert remove(lab, "three") == Removal("removed")
    assert stay(lab, "one", "a").lease_ms == 1_000
    assert [owner.name for owner in lab.call(commands.owners(lab.keys, lab.group))] == ["one"]
    assert remove(lab, "one") == Removal("removed")
    assert lab.raw("EXISTS", lab.keys.owners(lab.group)) == 0


@pytest.mark.parametrize("info", ["{}", " { } ", '{"a":1}', '\n{"a": {"b": [1, "}"]}}\n'])
def test_any_json_object_can_be_told_about_an_owner(lab: Lab, info: str) -> None:
    join(lab, "one", "a", info=info)
    stay(lab, "one", "a")
    (owner,) = lab.call(commands.owners(lab.keys, lab.group))
    assert owner.about == json.loads(info)


def test_staying_keeps_everything_but_the_time(lab: Lab) -> None:
    join(lab, "one", "a", lease_ms=1_000)
    unseen(lab, "one", 900)
    stayed = stay(lab, "one", "a")
    (owner,) = lab.call(commands.owners(lab.keys, lab.group))
    assert owner.seen_ms == stayed.server_ms
    assert (owner.name, owner.lease_ms, owner.about) == ("one", 1_000, json.loads(INFO))


def test_a_lost_entry_is_nobody_elses(lab: Lab) -> None:
    join(lab, "one", "a")
    lab.raw("DEL", lab.keys.owners(lab.group))
    stayed = stay(lab, "one", "a")
    assert (stayed.mine, stayed.missing, stayed.lease_ms) == (True, True, 0)
    assert lab.raw("EXISTS", lab.keys.owners(lab.group)) == 0


def test_an_entry_that_is_not_ours_to_read_does_no_harm(lab: Lab) -> None:
    lab.raw("HSET", lab.keys.owners(lab.group), "odd", "what is this", "one", "nonsense")
    assert join(lab, "one", "a", info="{}").ok
    assert stay(lab, "one", "a").mine


@pytest.mark.parametrize("token", ["", 'a"b', "ä", "a b"])
def test_a_token_is_letters_and_digits(lab: Lab, token: str) -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        scripts.join(lab.keys, lab.group, "one", token, 1_000)


def remove(lab: Lab, owner: str, min_idle_ms: int = 0) -> Removal:
    return lab.call(scripts.remove_owner(lab.keys, lab.group, owner, min_idle_ms))


def test_an_owner_with_pending_deliveries_is_never_removed(lab: Lab) -> None:
    """SPEC 19."""
    pairs = lab.held(3, owner="gone")
    assert remove(lab, "gone") == Removal("pending", 3)
    assert len(lab.pending()) == 3
    lab.call(scripts.ack(lab.keys, lab.group, "gone", pairs))
    assert remove(lab, "gone") == Removal("removed")
    assert lab.call(commands.consumers(lab.keys, lab.group)) == []
    assert remove(lab, "gone") == Removal("gone")


def test_an_owner_is_removed_only_after_its_retention(lab: Lab) -> None:
    """SPEC 19."""
    lab.add()
    lab.read("one")
    lab.call(scripts.ack(lab.keys, lab.group, "one", [(lab.ids()[0], 1)]))
    answer = remove(lab, "one", 60_000)
    assert answer.kind == "fresh"
    assert answer.number < 60_000
    join(lab, "one", "a")
    assert remove(lab, "one").kind == "removed"
    assert lab.raw("HLEN", lab.keys.owners(lab.group)) == 0


def test_an_owner_that_joined_and_has_not_read_yet_is_fresh(lab: Lab) -> None:
    lab.make_group()
    join(lab, "one", "a")
    assert remove(lab, "one", 60_000).kind == "fresh"
    unseen(lab, "one", 61_000)
    assert remove(lab, "one", 60_000).kind == "removed"
    assert lab.raw("HLEN", lab.keys.owners(lab.group)) == 0


# ── a group that vanishes (SPEC 3) ───────────────────────────────────────────────────────────────────


def floor(lab: Lab) -> str:
    return lab.call(scripts.keep_floor(lab.keys, lab.group))


def regroup(lab: Lab) -> Regrouped:
    return lab.call(scripts.regroup(lab.keys, lab.group))


def destroy(lab: Lab, *groups: str) -> None:
    for group in groups:
        lab.raw("XGROUP", "DESTROY", lab.keys.stream, group)


def test_a_vanished_group_comes_back_after_what_was_finished(lab: Lab) -> None:
    pairs = lab.held(10)
    unread = lab.add(3)
    lab.call(scripts.ack(lab.keys, lab.group, "me", pairs))
    floor(lab)
    destroy(lab, lab.group)
    assert regroup(lab) == Regrouped("made", pairs[-1][0].decode())
    assert [entry[0] for entry in lab.read()] == unread
    assert regroup(lab) == Regrouped("there")


def test_a_vanished_group_comes_back_below_its_lowest_pending_id(lab: Lab) -> None:
    pairs = lab.held(10)
    lab.call(scripts.ack(lab.keys, lab.group, "me", [*pairs[:4], *pairs[6:]]))
    floor(lab)
    destroy(lab, lab.group)
    assert regroup(lab).kind == "made"
    assert [entry[0] for entry in lab.read()] == [id_ for id_, _ in pairs[4:]]


@pytest.mark.parametrize(
    ("pending", "below"),
    [
        ("1-1", "1-0"),
        ("1-0", "0-18446744073709551615"),
        ("1000-0", "999-18446744073709551615"),
        ("5-1000", "5-999"),
        ("0-1", "0-0"),
        ("18446744073709551615-18446744073709551615", "18446744073709551615-18446744073709551614"),
        ("9007199254740993-9007199254740993", "9007199254740993-9007199254740992"),
        ("10000000000000000000-0", "9999999999999999999-18446744073709551615"),
    ],
)
def test_just_below_an_id_is_exact_in_64_bits(lab: Lab, pending: str, below: str) -> None:
    lab.make_group()
    lab.raw("XADD", lab.keys.stream, pending, "payload", "{}")
    lab.read()
    assert floor(lab) == f"{below} {below}"


def test_what_waits_is_handed_out_again_only_if_its_group_vanished_too(lab: Lab) -> None:
    pairs = lab.held(6)
    lab.call(scripts.park(lab.keys, lab.group, "me", 60_000, "waiting", [(*pairs[1], 1)]))
    lab.call(scripts.ack(lab.keys, lab.group, "me", [pairs[0], *pairs[2:]]))
    floor(lab)
    destroy(lab, lab.group)
    assert regroup(lab) == Regrouped("made", pairs[5][0].decode())
    destroy(lab, lab.group, lab.waiting)
    regroup(lab)
    assert [entry[0] for entry in lab.read()] == [id_ for id_, _ in pairs[1:]]


def test_a_vanished_or_empty_stream_starts_at_0(lab: Lab) -> None:
    lab.held(3)
    floor(lab)
    lab.raw("DEL", lab.keys.stream)
    assert regroup(lab) == Regrouped("made", "0-0")
    (id_,) = lab.add()
    assert [entry[0] for entry in lab.read()] == [id_]
    destroy(lab, lab.group)
    lab.trim(id_)
    assert regroup(lab) == Regrouped("made", "0-0")


def test_without_a_floor_nobody_knows(lab: Lab) -> None:
    lab.held(3)
    destroy(lab, lab.group)
    assert regroup(lab) == Regrouped("unknown")
    with pytest.raises(NoGroup):
        lab.read()
    with pytest.raises(NoGroup):
        floor(lab)


# ── levels ───────────────────────────────────────────────────────────────────────────────────────────


def levels(lab: Lab) -> Levels:
    return lab.call(scripts.levels(lab.keys, lab.group))


def test_the_backlog_is_unread_plus_pending_plus_waiting(lab: Lab) -> None:
    """DESIGN 8. What is parked until replayed is nobody's work."""
    lab.make_group()
    assert levels(lab) == (0, True, 0, 0, 0, 0)
    pairs = lab.held(6)
    lab.add(4)
    assert lab.call(scripts.ack(lab.keys, lab.group, "me", pairs[:1])) == [OK]
    lab.call(scripts.park(lab.keys, lab.group, "me", 60_000, "waiting", [(*pairs[1], 1)]))
    lab.call(scripts.park(lab.keys, lab.group, "me", -1, "parked", [(*pairs[2], 1)]))
    lab.age([pairs[3][0]], 30_000)
    found = levels(lab)
    assert (found.lag, found.lag_exact, found.pending, found.waiting, found.parked) == (4, True, 3, 1, 1)
    assert 30_000 <= found.oldest_idle_ms < 40_000
    assert found.backlog == 8


def test_where_the_server_knows_no_lag_some_entries_are_counted(lab: Lab) -> None:
    ids = lab.add(2_500)
    lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, ids[99])
    found = levels(lab)
    assert found.lag == 2_400 if found.lag_exact else found.lag == 1_000
    lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, ids[2_399])
    assert (levels(lab).lag, levels(lab).lag_exact) == (100, True)
    lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, "0")
    assert (levels(lab).lag, levels(lab).lag_exact) == (2_500, True)
