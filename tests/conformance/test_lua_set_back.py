"""pull_back: a group that is ahead of its stream, because that was set back, is set back after it (ADR 14)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import scripts
from headrace.redis.replies import Pulled
from tests.support.lab import Lab
from tests.support.setback import set_ahead, set_back

MINUTE = 60


def pull_back(lab: Lab, *, thorough: bool = False) -> Pulled:
    return lab.call(scripts.pull_back(lab.keys, lab.group, thorough=thorough))


def back(lab: Lab, highest: bytes | int) -> None:
    """``highest``: an id, or a time in ms."""
    set_back(lab.server.sync(), lab.keys.stream, highest.decode() if isinstance(highest, bytes) else f"{highest}-0")


def info(lab: Lab) -> dict[str, Any]:
    (group,) = (row for row in lab.server.sync().xinfo_groups(lab.keys.stream) if row["name"] == lab.group.encode())
    return group  # type: ignore[no-any-return]


def done(lab: Lab, count: int) -> list[bytes]:
    pairs = lab.held(count)
    lab.call(scripts.ack(lab.keys, lab.group, "me", pairs))
    return [id_ for id_, _ in pairs]


def look(lab: Lab) -> None:
    """A look that finds nothing: in a later millisecond than all that happened, which is as exact as it can be."""
    client: Any = lab.server.sync()
    begun = client.time()
    while client.time()[1] // 1000 == begun[1] // 1000:
        pass
    assert pull_back(lab) == Pulled("even")


def in_the_future(lab: Lab) -> int:
    """Five are done, then five that a wrong clock gave ids of the future; both were seen."""
    done(lab, 5)
    future_ms = set_ahead(lab.server.sync(), lab.keys.stream, MINUTE)
    done(lab, 5)
    look(lab)
    return future_ms


def test_without_it_the_server_never_hands_out_what_is_added_below_the_group(lab: Lab) -> None:
    """What the script is there for, on every server."""
    back(lab, in_the_future(lab))
    added = lab.add(3)
    assert lab.read() == []
    assert pull_back(lab).kind == "pulled"
    assert [entry[0] for entry in lab.read()] == added


def test_what_was_added_before_anybody_looked_is_handed_out_and_nothing_that_was_done(lab: Lab) -> None:
    back(lab, in_the_future(lab))
    added = lab.add(3)
    assert pull_back(lab).kind == "pulled"
    added += lab.add(2)
    assert [entry[0] for entry in lab.read()] == added
    assert pull_back(lab) == Pulled("even")


def test_with_nothing_added_since_the_group_goes_to_the_end_of_the_stream(lab: Lab) -> None:
    ids = done(lab, 5)
    look(lab)
    back(lab, ids[2])
    assert pull_back(lab) == Pulled("pulled", ids[4].decode(), ids[2].decode())
    assert lab.read() == []
    assert pull_back(lab) == Pulled("even")


def test_a_clock_behind_the_streams_end_counts_up_there_and_is_followed(lab: Lab) -> None:
    """The clock was set back with the stream: ids go on where the stream ends, and not at the clock's time."""
    done(lab, 2)
    future_ms = set_ahead(lab.server.sync(), lab.keys.stream, MINUTE)
    ids = done(lab, 6)
    pull_back(lab)
    back(lab, ids[2])
    added = lab.add(2)  # the ids of messages that are gone
    assert added == ids[3:5]
    assert lab.read() == []
    assert pull_back(lab).kind == "pulled"
    assert [entry[0] for entry in lab.read()][-2:] == added
    assert int(info(lab)["last-delivered-id"].split(b"-")[0]) == future_ms


def test_what_is_pending_below_stays_where_it_is(lab: Lab) -> None:
    done(lab, 1)
    held = lab.held(2)
    future_ms = set_ahead(lab.server.sync(), lab.keys.stream, MINUTE)
    done(lab, 3)
    look(lab)
    back(lab, future_ms)
    (added,) = lab.add()
    pull_back(lab)
    assert [entry[0] for entry in lab.read("other")] == [added]
    assert {id_: lab.pending()[id_][0] for id_, _ in held} == dict.fromkeys((id_ for id_, _ in held), "me")


def test_a_group_that_was_never_even_is_left_where_somebody_put_it(lab: Lab) -> None:
    """start= may be an id that is still to come."""
    lab.make_group(start="99999999999999-0")
    lab.add(2)
    found = pull_back(lab)
    assert (found.kind, found.before) == ("ahead", "99999999999999-0")
    assert lab.read() == []


def test_a_group_set_ahead_by_hand_while_it_was_watched_comes_back(lab: Lab) -> None:
    done(lab, 3)
    pull_back(lab)
    lab.raw("XGROUP", "SETID", lab.keys.stream, lab.group, "99999999999999-0")
    added = lab.add(2)
    assert pull_back(lab).kind == "pulled"
    assert [entry[0] for entry in lab.read()][-2:] == added


@pytest.mark.parametrize("note", ["", "x", "1 2-3", "-1 0-0 0", "99999999999999999999 0-0 0", "1-1 2-2"])
def test_a_forged_note_is_none(lab: Lab, note: str) -> None:
    back(lab, in_the_future(lab))
    lab.raw("SET", lab.keys.looked(lab.group), note)
    assert pull_back(lab).kind == "ahead"


def test_a_stream_that_keeps_its_length_is_looked_at_when_asked_thoroughly(lab: Lab) -> None:
    """Whoever trims with each add keeps the length, and the group does not move: only the stream's last id tells."""
    back(lab, in_the_future(lab))
    before = lab.raw("XLEN", lab.keys.stream)
    lab.raw("SET", lab.keys.looked(lab.group), f"1000 {info(lab)['last-delivered-id'].decode()} {before}")
    lab.raw("XADD", lab.keys.stream, "MAXLEN", before, "*", "payload", "{}")
    assert pull_back(lab) == Pulled("even")
    assert pull_back(lab, thorough=True).kind == "pulled"


@pytest.mark.servers("redis8", "redis6")
def test_a_lag_is_right_afterwards(lab: Lab) -> None:
    back(lab, in_the_future(lab))
    lab.add(3)
    pull_back(lab)
    lab.read()
    assert lab.call(scripts.levels(lab.keys, lab.group)).lag == 0
