"""Slots, maps, redirections and votes: pure values (SPEC 49)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AskError, MovedError

from headrace.names import keys_of, tag_of
from headrace.redis.calls import Call, as_is, key_of
from headrace.redis.topology import Node, Told, agreed, chosen, read_slots, read_told, redirection, slot_of

ASKED = Node("10.0.0.1", 7000)


def test_the_slot_of_a_key_is_that_of_its_tag() -> None:
    """The check value of CRC16/XMODEM, and the examples of the cluster specification."""
    assert slot_of("123456789") == 0x31C3 % 16_384
    assert slot_of("foo{bar}zap") == slot_of("bar")
    assert slot_of("foo{{bar}}zap") == slot_of("{bar")
    assert slot_of("foo{}{bar}") != slot_of("bar")
    assert slot_of(b"foo{bar}zap") == slot_of("foo{bar}zap")


@given(st.text(min_size=1))
def test_bytes_and_text_have_one_slot_and_the_tag_decides(key: str) -> None:
    key = key.encode("utf-8", "replace").decode()
    assert slot_of(key) == slot_of(key.encode()) == slot_of(tag_of(key)) or "{" in tag_of(key)


@pytest.mark.parametrize("name", ["orders", "shop:{eu}:orders", "straße"])
def test_every_helper_key_is_in_its_streams_slot(name: str) -> None:
    keys = keys_of(name)
    helpers = (
        keys.dead_letters,
        keys.due("g"),
        keys.owners("g"),
        keys.floor("g"),
        keys.looked("g"),
        keys.once("g", "k"),
        keys.added("k"),
    )
    assert {slot_of(key) for key in helpers} == {slot_of(name)}


def test_a_map_is_read_with_nodes_that_do_not_say_their_host() -> None:
    """None and an empty host mean: the host you asked; "?" means nobody knows, unless the address stands beside it."""
    found = read_slots(
        [
            [5, 9, [None, 7001, b"b"], [b"10.0.0.9", 7004, b"d"]],
            [0, 4, [b"", 7000, b"a", []]],
            [10, 11, [b"?", 7002, b"c", [b"ip", b"10.0.0.3"]]],
            [12, 13, [b"?", 7003, b"e", []]],
        ],
        ASKED,
    )
    masters = [found.master(slot) for slot in (0, 4, 5, 9, 10, 12, 14)]
    one, two, three = Node("10.0.0.1", 7000), Node("10.0.0.1", 7001), Node("10.0.0.3", 7002)
    assert masters == [one, one, two, two, three, None, None]
    assert found.masters == (one, two, three)
    assert found.nodes == (one, two, three, Node("10.0.0.9", 7004))
    assert found.covered == 12


def test_redirections_say_where_to_go_and_for_how_long() -> None:
    assert redirection(MovedError("7 10.0.0.2:7001"), ASKED) == (7, Node("10.0.0.2", 7001), True)
    assert redirection(AskError("7 ::1:7001"), ASKED) == (7, Node("::1", 7001), False)
    assert redirection(MovedError("7 :7001"), ASKED) == (7, Node("10.0.0.1", 7001), True)
    assert redirection(ValueError("7"), ASKED) is None


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("XADD", "s", "*", "a", "b"), "s"),
        (("XREADGROUP", "GROUP", "g", "me", "COUNT", 1, "STREAMS", "s", ">"), "s"),
        (("XINFO", "GROUPS", "s"), "s"),
        (("XGROUP", "CREATE", "s", "g", "0"), "s"),
        (("EVALSHA", "0" * 40, 1, "s"), "s"),
        (("EVALSHA", "0" * 40, 0), None),
        (("CLIENT", "UNBLOCK", 7), None),
        (("WAIT", 1, 100), None),
        (("TIME",), None),
    ],
)
def test_the_key_of_a_command_is_known(words: tuple[Any, ...], key: str | None) -> None:
    assert key_of(words) == key
    assert Call(words, as_is).key == key


def test_an_owner_keeps_its_node_when_another_one_goes() -> None:
    """SPEC 50: assigned deterministically; a change moves only the owners of what changed."""
    nodes = [Node("h", port) for port in range(7000, 7006)]
    owners = [f"owner-{number}" for number in range(600)]
    before = {owner: chosen(owner, nodes) for owner in owners}
    after = {owner: chosen(owner, reversed(nodes[1:])) for owner in owners}
    assert all(after[owner] == before[owner] for owner in owners if before[owner] != nodes[0])
    assert {before[owner] for owner in owners} == set(nodes)
    assert chosen("owner", []) is None


def test_the_latest_failover_outvotes_the_majority_and_a_tie_is_nobody() -> None:
    old, new = Node("a", 1), Node("b", 1)
    assert agreed([Told(old, 1), Told(old, 1), Told(new, 2)]) == Told(new, 2)
    assert agreed([Told(old, 2), Told(new, 2)]) is None
    assert agreed([Told(old)]) == Told(old)


def test_a_sentinels_view_is_read_as_far_as_it_may_be_asked() -> None:
    about = [b"config-epoch", b"7", b"quorum", b"2", b"num-other-sentinels", b"2", b"num-slaves", b"1", b"flags", b"x"]
    assert read_told([b"a", b"1"], about) == Told(Node("a", 1), 7, 2, 3, 1, "x")
    assert read_told([b"a", b"1"], PermissionError()) == Told(Node("a", 1))
    assert read_told(None, about) is None
