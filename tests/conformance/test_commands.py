"""Plain commands read raw, and what a server can do, on every server of the matrix."""

from __future__ import annotations

import pytest

from headrace.errors import BusyGroup, MissingRight, NoGroup, ServerTooOld, Unavailable, WrongType
from headrace.redis import capabilities, commands, scripts
from headrace.redis.calls import Call, Entry
from headrace.redis.connect import Server as Address
from tests.support.lab import Lab


def take_over(lab: Lab, count: int = 10, lease_ms: int = 30_000) -> list[Entry]:
    return lab.call(scripts.take_over(lab.keys, lab.group, "me", lease_ms, count)).entries


@pytest.mark.servers("redis8")
def test_taking_over_brings_idle_entries_first_with_their_attempt(lab: Lab) -> None:
    """SPEC 6: XREADGROUP CLAIM came with Redis 8.4."""
    old, *_ = lab.held(2, owner="dead")
    lab.age([old[0]], 60_000, "dead")
    (new,) = lab.add()
    entries = take_over(lab)
    assert [(id_, attempt) for id_, _, attempt, _ in entries] == [(old[0], 2), (new, 1)]
    assert 60_000 <= entries[0][3] < 70_000
    assert entries[1][3] == 0
    assert lab.pending()[old[0]] == ("me", 2)
    assert take_over(lab) == []


@pytest.mark.servers("redis8")
def test_taking_over_does_nothing_after_its_deadline(lab: Lab) -> None:
    """SPEC 20: it lay in the socket of a server that stood still."""
    ((old, _),) = lab.held(owner="dead")
    lab.age([old], 60_000, "dead")
    lab.add()
    now_ms = lab.call(commands.server_ms())
    late = lab.call(scripts.take_over(lab.keys, lab.group, "me", 30_000, 10, now_ms - 1))
    assert late.late
    assert late.entries == []
    assert late.server_ms >= now_ms
    assert lab.pending() == {old: ("dead", 1)}
    assert len(lab.call(scripts.take_over(lab.keys, lab.group, "me", 30_000, 10, now_ms + 60_000)).entries) == 2


@pytest.mark.servers("redis8")
def test_what_was_given_back_with_xnack_has_an_idle_time_that_makes_sense(lab: Lab) -> None:
    ((id_, _),) = lab.held(owner="dead")
    lab.raw("XNACK", lab.keys.stream, lab.group, "SILENT", "IDS", 1, id_)
    ((again, _, attempt, idle_ms),) = take_over(lab)
    assert (again, attempt) == (id_, 1)
    assert 0 <= idle_ms < 10_000


@pytest.mark.servers("redis8")
def test_taking_over_leaves_out_trimmed_entries(lab: Lab) -> None:
    pairs = lab.held(2, owner="dead")
    lab.age([id_ for id_, _ in pairs], 60_000, "dead")
    lab.trim(pairs[0][0])
    entries = take_over(lab)
    assert [entry[0] for entry in entries] == [pairs[1][0]]


def test_a_group_is_made_once_and_with_its_stream(lab: Lab) -> None:
    """SPEC 3."""
    lab.call(commands.create_group(lab.keys, lab.group))
    with pytest.raises(BusyGroup):
        lab.call(commands.create_group(lab.keys, lab.group))
    lab.add(2)
    assert len(lab.read()) == 2
    lab.call(commands.create_group(lab.keys, "late", "$"))
    assert lab.read(group="late") == []
    with pytest.raises(NoGroup):
        lab.read(group="nobody")


def test_pending_entries_whose_message_is_gone_are_purged_and_named(lab: Lab) -> None:
    """SPEC 18, where CLAIM does the rescuing: it leaves them in the pending list."""
    pairs = lab.held(5, owner="dead")
    lab.age([id_ for id_, _ in pairs], 60_000, "dead")
    lab.trim(pairs[1][0], pairs[3][0])
    cursor, trimmed = lab.call(commands.purge_trimmed(lab.keys, lab.group, "me"))
    assert cursor == "0-0"
    if lab.server.key == "redis6":
        assert trimmed == []
    else:
        assert trimmed == [pairs[1][0].decode(), pairs[3][0].decode()]
        assert list(lab.pending()) == [pairs[at][0] for at in (0, 2, 4)]
    assert {owner for owner, _ in lab.pending().values()} == {"dead"}, "nothing is claimed"


def test_listings_tell_who_holds_what(lab: Lab) -> None:
    lab.make_group()
    assert lab.call(commands.pending(lab.keys, lab.group)) == (0, "", "", {})
    one = lab.held(3, owner="one")
    two = lab.held(2, owner="two")
    lab.call(scripts.park(lab.keys, lab.group, "two", 60_000, "waiting", [(*two[1], 1)]))
    summary = lab.call(commands.pending(lab.keys, lab.group))
    assert summary == (4, one[0][0].decode(), two[0][0].decode(), {"one": 3, "two": 1})
    assert lab.call(commands.pending(lab.keys, lab.waiting)).owners == {"waiting": 1}

    lab.age([one[0][0]], 60_000, "one")
    rows = lab.call(commands.pending_rows(lab.keys, lab.group, 10, min_idle_ms=30_000))
    assert [(row.id, row.owner, row.count) for row in rows] == [(one[0][0].decode(), "one", 1)]
    rows = lab.call(commands.pending_rows(lab.keys, lab.group, 10, start=f"({one[0][0].decode()}", owner="one"))
    assert [row.id.encode() for row in rows] == [one[1][0], one[2][0]]

    lab.add(2)
    info = {group.name: group for group in lab.call(commands.groups(lab.keys))}
    assert (info[lab.group].owners, info[lab.group].pending) == (2, 4)
    assert info[lab.group].last_id == two[1][0].decode()
    assert info[lab.group].lag == (None if lab.server.key == "redis6" else 2)
    assert info[lab.waiting].pending == 1
    consumers = lab.call(commands.consumers(lab.keys, lab.group))
    assert [(consumer.name, consumer.pending) for consumer in consumers] == [("one", 3), ("two", 1)]
    assert all(0 <= consumer.idle_ms < 10_000 for consumer in consumers)
    stream = lab.call(commands.stream_info(lab.keys))
    assert (stream.length, stream.groups, stream.first_id) == (7, 2, one[0][0].decode())


def test_entries_are_paged_both_ways_counted_and_deleted(lab: Lab) -> None:
    ids = lab.add(5, ["f", "1", "f", "2"])
    key = lab.keys.stream
    page = lab.call(commands.entries(key, count=2))
    assert page == [(id_, [b"f", b"1", b"f", b"2"]) for id_ in ids[:2]]
    page = lab.call(commands.entries(key, f"({ids[1].decode()}", "+", 10))
    assert [id_ for id_, _ in page] == ids[2:]
    page = lab.call(commands.entries(key, end=f"({ids[4].decode()}", count=2, newest_first=True))
    assert [id_ for id_, _ in page] == [ids[3], ids[2]]
    assert lab.call(commands.delete(key, [ids[0].decode(), "1-1"])) == 1
    assert lab.call(commands.length(key)) == 4


def test_small_questions_get_small_answers(lab: Lab) -> None:
    key = lab.keys.once(lab.group, "k")
    lab.raw("SET", key, b"\0")
    assert lab.call(commands.values([key, lab.keys.once(lab.group, "none")])) == [b"\0", None]
    assert lab.call(commands.type_of(key)) == "string"
    assert lab.call(commands.type_of(lab.keys.stream)) == "none"
    assert lab.call(commands.info("server"))["tcp_port"].isdigit()
    assert lab.call(commands.config("maxmemory")) == "0"
    assert lab.call(commands.config("no-such-setting")) is None
    assert lab.call(commands.appendfsync()) in ("everysec", "always", "no")
    assert lab.call(commands.replicated(1)) is False


def test_connections_are_known_until_they_are_closed(lab: Lab) -> None:
    """DESIGN 11: a dead child's deliveries are handed back once its connections are closed."""
    other = lab.dial()
    other.open()
    lab.link.open()
    ids = [lab.link.client_id, other.client_id, 10**9]
    assert lab.call(commands.still_connected(ids)) == set(ids[:2])
    found = lab.call(commands.connection(other.client_id))
    assert found is not None
    assert found.name == other.name
    assert lab.call(commands.kill(other.client_id, "192.0.2.1:1")) == 0, "the number is not enough"
    assert lab.call(commands.kill(other.client_id, found.address)) == 1
    assert lab.call(commands.kill(other.client_id, found.address)) == 0
    assert lab.call(commands.connection(other.client_id)) is None
    assert lab.call(commands.still_connected(ids)) == {ids[0]}
    assert lab.call(commands.unblock(ids[0])) is False
    before = other.client_id
    other.call(commands.server_ms())
    assert other.client_id != before, "a connection closed while it was idle is made anew, nothing was lost on it"


# ── capabilities ─────────────────────────────────────────────────────────────────────────────────────

KNOWN = {
    "redis6": ("redis", (6, 2), False, False, False, False),
    "redis7": ("redis", (7, 0), False, False, False, True),
    "redis8": ("redis", (8, 10), True, True, True, True),
    "valkey9": ("valkey", (9, 1), False, False, True, True),
}


def test_a_server_is_asked_what_it_can_do_and_nothing_changes(lab: Lab) -> None:
    """SPEC 6: asked with and without the stream, and with something else in its place."""
    for prepare in (lambda: None, lab.make_group, lambda: lab.raw("DEL", lab.keys.stream)):
        prepare()
        before = lab.raw("DBSIZE")
        found = capabilities.judge(lab.link.pipe(capabilities.probe(lab.keys)))
        assert lab.raw("DBSIZE") == before
        version = found.version[:2]
        told = (found.server, version, found.claim, found.ackdel, found.waitaof, found.lag)
        assert told == KNOWN[lab.server.key]
        assert found.role == "master"
        assert len(found.run_id) == 40
        assert found.shown.startswith(f"{found.server} {version[0]}.{version[1]}.")
    lab.raw("SET", lab.keys.stream, "no stream")
    assert capabilities.judge(lab.link.pipe(capabilities.probe(lab.keys))).claim == KNOWN[lab.server.key][2]


def test_without_the_right_to_info_the_capabilities_are_still_found(lab: Lab) -> None:
    """SPEC 52: a forbidden INFO is not fatal."""
    user = f"u{lab.keys.stream}"
    taken = ["-xackdel"] if lab.server.key == "redis8" else []
    lab.raw("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-info", *taken)
    path = lab.server.socket
    link = Address(f"unix://{user}:secret@{path}").sync_link("lab")
    try:
        found = capabilities.judge(link.pipe(capabilities.probe(lab.keys)))
    finally:
        link.close()
        lab.raw("ACL", "DELUSER", user)
    assert (found.server, found.version, found.shown) == ("unknown", (), "unknown ?")
    assert found.claim == KNOWN[lab.server.key][2]
    assert not found.ackdel


def test_a_server_without_xautoclaim_is_too_old() -> None:
    """SPEC 54."""
    unknown = ServerTooOld("ERR unknown command 'XAUTOCLAIM'")
    old = [{"redis_version": "6.0.9"}, {"role": "master"}, unknown, unknown, unknown, unknown]
    with pytest.raises(ServerTooOld, match=r"needs Redis 6\.2.*6\.0\.9"):
        capabilities.judge(old)
    with pytest.raises(Unavailable):
        capabilities.judge([Unavailable("away")] * 6)
    forbidden = [MissingRight("INFO")] * 2 + [MissingRight("XAUTOCLAIM"), NoGroup(), WrongType(), MissingRight()]
    found = capabilities.judge(forbidden)
    assert (found.claim, found.ackdel, found.waitaof) == (True, True, False)


def test_a_call_is_words_and_a_way_to_read_the_answer(lab: Lab) -> None:
    assert lab.call(Call(("ECHO", b"\xff"), len)) == 1
