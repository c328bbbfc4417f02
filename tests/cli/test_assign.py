"""`headrace announce` and `headrace assignments`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.names import keys_of
from headrace.redis import ownership
from headrace.redis.connect import Server as Address
from tests.cli.conftest import Ran
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "redis6")

Headrace = Callable[..., Ran]


def test_a_stream_is_announced_once(headrace: Headrace, server: Server, stream: str) -> None:
    """SPEC 42."""
    room = f"{stream}-room"
    first = headrace("announce", stream, room, "--info", '{"tenant": 1}', "--json").json
    assert first["new"] is True
    assert headrace("announce", stream, room, "--json").json == {**first, "new": False}
    assert "nothing to do" in headrace("announce", stream, room).out
    ((_, entry),) = server.sync().xrange(stream)
    assert entry == {b"stream": room.encode(), b"info": b'{"tenant":1}'}


def test_assignments_tell_owner_epoch_position_lag_and_info(headrace: Headrace, server: Server, stream: str) -> None:
    for number in range(3):
        headrace("announce", stream, f"{stream}-{number}", "--info", f'{{"n": {number}}}')
    keys, room = keys_of(stream), f"{stream}-1"
    place = ownership.Place(room, keys_of(room).ownership(stream, "owners"), f"{stream}:owners")
    ids = [server.sync().xadd(room, {"payload": "{}"}) for _ in range(4)]
    link = Address(server.url).sync_link("test")
    id_ = link.call(ownership.id_of(keys, room)).encode()
    link.call(ownership.take(place, id_, 1, "somebody"))
    link.call(ownership.pos_ack(place, "somebody", 1, ids[0], 1))
    link.close()
    told = headrace("assignments", stream, "--json").json
    assert (told["total"], told["owned"]) == (3, 1)
    assert [row["name"] for row in told["assignments"]] == [f"{stream}-{number}" for number in range(3)]
    owned = told["assignments"][1]
    assert (owned["owner"], owned["epoch"], owned["position"]) == ("somebody", 1, ids[0].decode())
    assert owned["lag"] == (3 if server.key != "redis6" else None)
    assert owned["info"] == {"n": 1}
    shown = headrace("assignments", stream).out
    assert "3 assignments" in shown
    assert "somebody" in shown
    assert shown.count("nobody") == 2
    assert len(headrace("assignments", stream, "--limit", "1", "--json").json["assignments"]) == 1


def test_nothing_announced_and_bad_words_are_said_in_one_line(headrace: Headrace, stream: str) -> None:
    assert "no assignments" in headrace("assignments", stream).out
    headrace("announce", stream, "x", "--info", "{bad").refused(2, "--info is not JSON")
    headrace("announce", stream, "{}").refused(2, "stream name")
