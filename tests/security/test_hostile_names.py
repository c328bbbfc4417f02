"""What could forge a log or leave its slot is no name; look-alikes are names of their own (SPEC 52b)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import NameRefused
from headrace.names import check_group, check_owner, check_stream, keys_of
from tests.cli.conftest import Ran

INVISIBLE = [
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x1b[2J",
    "a\x07",
    "a\x7f",
    "a\x85b",
    "a\u2028b",
    "a\u202eb",
    "a\u200bb",
    "\ufeffa",
    "a\u00a0b",
]
BRACES = ["{", "}", "{}", "a{}", "{a", "a}", "}{", "{a}{b}", "{{a}}", "{a}", "a{b}c}d", "a{b{c}d}"]
LOOK_ALIKES = ["orders", "оrders", "ordеrs", "ｏrders", "orders̈", "ORDERS", "orders "]
LONG = ["x" * 513, "ü" * 257, "x" * (1 << 20)]


@pytest.mark.parametrize(
    "name", [*INVISIBLE, *BRACES, *LONG, "a:hr:b", ":hr:", "a\x00", "\ud800", ""], ids=lambda n: ascii(n)[:20]
)
def test_a_stream_name_that_could_deceive_is_refused(name: str) -> None:
    with pytest.raises(NameRefused) as caught:
        check_stream(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", [*INVISIBLE, *LONG, "g~wait", "~wait", "a\x00", "\ud800", ""], ids=lambda n: ascii(n)[:20]
)
def test_a_group_or_owner_name_that_could_deceive_is_refused(name: str) -> None:
    with pytest.raises(NameRefused) as caught:
        check_group(name)
    assert str(caught.value).isprintable()
    if not name.endswith("~wait"):
        with pytest.raises(NameRefused):
            check_owner(name)


def test_names_that_look_alike_are_names_of_their_own() -> None:
    """Nothing is folded or normalised: no two of them share a key, and none takes part in another's."""
    keys = [keys_of(name) for name in LOOK_ALIKES]
    for derived in (lambda one: one.due("g"), lambda one: one.dead_letters, lambda one: one.owners("g")):
        assert len({derived(one) for one in keys}) == len(LOOK_ALIKES)


@pytest.mark.parametrize("name", [*INVISIBLE, *BRACES, *LONG[:2], "a:hr:b", "\udcff"])
@pytest.mark.parametrize("command", [("groups",), ("add", "{}")])
@pytest.mark.servers("redis8")
def test_a_command_refuses_such_a_name_in_one_line(
    headrace: Callable[..., Ran], command: tuple[str, ...], name: str
) -> None:
    """SPEC 60: whatever stands in the arguments, even what is no text."""
    extra = ("{}",) if command[0] == "add" else ()
    ran = headrace(command[0], "--", name, *extra)
    assert ran.code in (1, 2)
    assert len(ran.err.splitlines()) == 1
    assert ran.err.rstrip("\n").isprintable()
