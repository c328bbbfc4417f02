"""Names: what is refused, what is derived, and that nothing derived collides (SPEC 1, 52b)."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import NameRefused
from headrace.names import (
    Keys,
    check_group,
    check_key,
    check_owner,
    check_stream,
    keys_of,
    owner_name,
    published_key,
    same_slot,
    tag_of,
    waiting_group,
)


def _accepted(check: object, name: str) -> bool:
    try:
        check(name)  # type: ignore[operator]
    except NameRefused:
        return False
    return True


# few letters, so that what could collide does
_NASTY = st.text(alphabet="a:{}hrdlq~1", min_size=1, max_size=12)
STREAMS = st.one_of(
    st.sampled_from(["orders", "{a}b", "a{b}", "a{b}:dlq", "a:b", "a{b}:hr", "{a}:hr", "a:hr", "due", "x{t}y"]), _NASTY
).filter(lambda name: _accepted(check_stream, name))
GROUPS = st.one_of(st.sampled_from(["g", "a:b", ":", "1:g", "due:g", "{x}", "g:dlq"]), _NASTY).filter(
    lambda name: _accepted(check_group, name)
)
KEYS = st.one_of(st.sampled_from(["k", "1:g:k", ":k", "g:k"]), _NASTY)


@pytest.mark.parametrize("name", ["orders", "a", "shop:{eu}:orders", "{eu}:orders", "x{eu}", "größe", "a b", "x" * 512])
def test_good_stream_names_are_returned(name: str) -> None:
    assert check_stream(name) is name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("{orders}", "outside"),
        ("a{}b", "empty {tag}"),
        ("a{b", "one {tag}"),
        ("a}b", "one {tag}"),
        ("a}b{c", "one {tag}"),
        ("{a}{b}", "one {tag}"),
        ("{{a}}x", "one {tag}"),
        ("orders:hr:due", "own keys"),
        ("x{t}:hr:", "own keys"),
        ("a\x00b", "NUL"),
        ("a\ud800", "surrogate"),
        ("x" * 513, "513 bytes"),
        ("ü" * 257, "514 bytes"),
    ],
)
def test_bad_stream_names_are_refused_with_the_reason(name: str, why: str) -> None:
    """SPEC 52b."""
    with pytest.raises(NameRefused) as caught:
        check_stream(name)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300
    str(caught.value).encode()  # printable anywhere


@pytest.mark.parametrize("value", [b"orders", 1, None, ["orders"]])
def test_a_name_that_is_no_text_is_refused(value: object) -> None:
    for check in (check_stream, check_group, check_owner, check_key):
        with pytest.raises(NameRefused, match="must be a str"):
            check(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "g~wait", "~wait", "a\x00", "\udfff", "g" * 513])
def test_bad_group_names_are_refused(name: str) -> None:
    """SPEC 52b."""
    with pytest.raises(NameRefused):
        check_group(name)


@pytest.mark.parametrize("name", ["", "two words", "tab\t", "line\n", "bell\x07", "a\x00", "\ud800", "o" * 257])
def test_bad_owner_names_are_refused(name: str) -> None:
    with pytest.raises(NameRefused):
        check_owner(name)


@pytest.mark.parametrize("key", ["", "k" * 513, "\ud800", "é" * 257])
def test_bad_idempotency_keys_are_refused(key: str) -> None:
    with pytest.raises(NameRefused):
        check_key(key)


@pytest.mark.parametrize("key", ["k", "order 1", "a\x00b", "{x}", ":hr:", "k" * 512])
def test_idempotency_keys_may_hold_anything_else(key: str) -> None:
    assert check_key(key) == key


def test_derived_names_read_as_the_design_says() -> None:
    """SPEC 52b."""
    plain, tagged = keys_of("orders"), keys_of("shop:{eu}:orders")
    assert plain.due("billing") == "{orders}:hr:due:billing"
    assert plain.owners("billing") == "{orders}:hr:owners:billing"
    assert plain.floor("billing") == "{orders}:hr:floor:billing"
    assert plain.looked("billing") == "{orders}:hr:looked:billing"
    assert plain.dead_letters == "{orders}:dlq"
    assert plain.sink("q1") == "{orders}:hr:sink:q1"
    assert published_key(plain.stage("q1", 7, "a1")) == "{orders}:hr:stage:2:q1:7:a1:n"
    assert tagged.due("billing") == "shop:{eu}:orders:hr:due:billing"
    assert tagged.dead_letters == "shop:{eu}:orders:dlq"
    assert waiting_group("billing") == "billing~wait"


def test_a_bad_stream_has_no_keys() -> None:
    with pytest.raises(NameRefused):
        keys_of("{orders}")


def test_dead_letters_are_a_stream_that_a_handler_may_read() -> None:
    assert keys_of(keys_of("orders").dead_letters).dead_letters == "{orders}:dlq:dlq"


def _all(keys: Keys, group: str, key: str) -> dict[tuple[object, ...], str]:
    stream = keys.stream
    return {
        (stream, "due", group): keys.due(group),
        (stream, "owners", group): keys.owners(group),
        (stream, "floor", group): keys.floor(group),
        (stream, "looked", group): keys.looked(group),
        (stream, "once", group, key): keys.once(group, key),
        (stream, "added", key): keys.added(key),
        (stream, "sink", key): keys.sink(key),
        (stream, "stage", key): keys.stage(key, 7, "a1b2"),
    }


@given(STREAMS, GROUPS, KEYS, STREAMS, GROUPS, KEYS)
@example("a{b}", "g", "k", "a{b}:hr", "g", "k")
@example("a", "1:g", "k", "a", "1", "g:k")
@example("a", "g:1", "k", "a", "g", "1:k")
def test_no_two_derived_names_collide(s1: str, g1: str, k1: str, s2: str, g2: str, k2: str) -> None:
    """SPEC 52b: no two streams share a helper key, nor do two kinds, groups or keys of one."""
    one, two = _all(keys_of(s1), g1, k1), _all(keys_of(s2), g2, k2)
    together = one | two
    assert len(set(together.values())) == len(together)
    # an own key is nobody's stream or dead-letter stream
    others = {s1, s2, keys_of(s1).dead_letters, keys_of(s2).dead_letters}
    assert not others & set(together.values())
    assert (keys_of(s1).dead_letters == keys_of(s2).dead_letters) == (s1 == s2)


@given(STREAMS, GROUPS, KEYS)
def test_every_derived_name_stays_in_the_slot_of_its_stream(stream: str, group: str, key: str) -> None:
    """SPEC 52b."""
    keys = keys_of(stream)
    for name in [*_all(keys, group, key).values(), keys.dead_letters]:
        assert same_slot(name, stream), name


@given(st.text(alphabet="ab{}", max_size=8))
def test_the_tag_follows_the_rule_of_the_server(key: str) -> None:
    """Checked against a second writing of the rule: first brace, first closing one behind it, not empty."""
    tag = tag_of(key)
    _, opening, after = key.partition("{")
    inside, closing, _ = after.partition("}")
    assert tag == (inside if opening and closing and inside else key)


def test_slots_are_compared_by_tag() -> None:
    assert same_slot("{orders}:totals", "orders")
    assert same_slot("a{eu}", "shop:{eu}:orders")
    assert not same_slot("totals", "orders")
    assert not same_slot("{}orders", "orders")


@pytest.mark.parametrize(
    ("env", "start"),
    [
        ({"HEADRACE_OWNER": "mine", "POD_NAME": "pod", "HOSTNAME": "host"}, "mine-"),
        ({"POD_NAME": "pod", "HOSTNAME": "host"}, "pod-"),
        ({"HEADRACE_OWNER": "", "HOSTNAME": "host"}, "host-"),
    ],
)
def test_the_owner_prefix_comes_from_the_first_variable_that_is_set(env: dict[str, str], start: str) -> None:
    """SPEC 1."""
    assert owner_name(env=env).startswith(start)
    assert owner_name("given", env=env).startswith("given-")


def test_without_a_variable_the_host_names_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC 1."""
    monkeypatch.setattr("socket.gethostname", lambda: "box.local")
    assert owner_name(env={}).startswith("box.local-")
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert owner_name(env={}).startswith("host-")


def test_two_owner_names_are_never_the_same() -> None:
    """SPEC 1."""
    assert len({owner_name("pod", env={}) for _ in range(1_000)}) == 1_000


@given(st.binary(min_size=1, max_size=300))
def test_whatever_a_host_is_called_its_owner_name_is_good(host: bytes) -> None:
    name = owner_name(env={"HOSTNAME": host.decode(errors="surrogateescape")})
    assert check_owner(name) == name
    assert set(name) <= set(string.ascii_letters + string.digits + "-_.")
