"""`headrace dlq` (SPEC 28)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Ran, Scene
from tests.support.servers import Server

pytestmark = pytest.mark.servers("redis8", "redis6")


@pytest.fixture
def letters(scene: Scene) -> list[str]:
    """Three dead letters: two ValueErrors and a poison."""
    scene.add(3)
    return [scene.bury("ann"), scene.bury("ann", reason="time is up"), scene.bury("ben", "Bury", "\x1b[2Jpoison")]


def listed(headrace: Callable[..., Ran], stream: str, *words: str) -> list[Any]:
    return [letter["id"] for letter in headrace("dlq", "list", stream, "--json", *words).lines]


def test_dead_letters_are_listed_with_why(headrace: Callable[..., Ran], stream: str, letters: list[str]) -> None:
    said = headrace("dlq", "list", stream, "--json").lines
    assert [letter["id"] for letter in said] == letters
    assert (said[0]["error"], said[0]["reason"], said[0]["attempts"]) == ("ValueError", "no such order", 1)
    assert said[0]["payload"] == {"id": 0}
    told = headrace("dlq", "list", stream)
    assert f"3 dead letters of {stream}" in told.out
    assert "\x1b" not in told.out
    assert "\\x1b[2Jpoison" in told.out
    short = headrace("dlq", "list", stream, "--limit", "2", "--json")
    assert len(short.lines) == 2
    assert "the first 2" in short.err


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["error=ValueError"], [0, 1]),
        (["error=ValueError", "reason~TIME"], [1]),
        (["owner=ben"], [2]),
        (['payload~"id": 2'], [2]),
        (["attempts=7"], []),
    ],
)
def test_filters_leave_what_matches_all_of_them(
    headrace: Callable[..., Ran], stream: str, letters: list[str], filters: list[str], found: list[int]
) -> None:
    words = [word for each in filters for word in ("--where", each)]
    assert listed(headrace, stream, *words) == [letters[at] for at in found]
    assert listed(headrace, stream, "--group", "billing", *words) == [letters[at] for at in found]
    assert listed(headrace, stream, "--group", "shipping", *words) == []


def test_one_is_shown_by_its_own_id_and_by_its_messages(
    headrace: Callable[..., Ran], stream: str, letters: list[str]
) -> None:
    said = headrace("dlq", "show", stream, letters[2], "--json").json
    assert said["fields"] == [["payload", '{"id": 2}']]
    told = headrace("dlq", "show", stream, said["original_id"], "--message")
    assert letters[2] in told.out
    assert "\x1b" not in told.out
    headrace("dlq", "show", stream, "5-5").refused(1, "has no dead letter 5-5")


def test_replayed_ones_go_back_to_their_group(
    headrace: Callable[..., Ran], scene: Scene, server: Server, stream: str, letters: list[str]
) -> None:
    some = headrace("dlq", "replay", stream, "--where", "owner=ben", "--json").json
    assert (some["replayed"], some["same"]) == (1, 1)
    server.sync().xtrim(stream, maxlen=0)
    told = headrace("dlq", "replay", stream, "--all")
    assert f"replayed 2 dead letters of {stream}" in told.out
    assert "as a copy" in told.out
    assert listed(headrace, stream) == []
    assert headrace("dlq", "list", stream).out == f"{stream} has no dead letters\n"


def test_purging_everything_asks_first(headrace: Callable[..., Ran], stream: str, letters: list[str]) -> None:
    headrace("dlq", "purge", stream, "--all").refused(2, "3 dead letters", "add --yes")
    headrace("dlq", "purge", stream, "--where", "owner=ben", "--json").refused(2, "add --yes")
    assert headrace("dlq", "purge", stream, letters[0], "--json").json == {"stream": stream, "purged": 1}
    assert headrace("dlq", "purge", stream, "--where", "owner=ben", "--yes", "--json").json["purged"] == 1
    assert headrace("dlq", "purge", stream, "--all", "--yes").out == f"purged 1 dead letter of {stream}\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("replay",), 2, "which dead letters?"),
        (("purge", "--all", "1-1"), 2, "contradict"),
        (("replay", "1-1", "--group", "billing"), 2, "contradict"),
        (("replay", "abc"), 2, "is no id"),
        (("replay", "1-1"), 1, "no dead letter 1-1"),
        (("list", "--where", "eror=1"), 2, "did you mean 'error'?"),
        (("list", "--where", "error"), 2, "FIELD=VALUE"),
        (("list", "--limit", "0"), 2, "--limit"),
        (("lst",), 2, "lst"),
    ],
)
def test_bad_words_are_refused(
    headrace: Callable[..., Ran], scene: Scene, stream: str, words: tuple[str, ...], code: int, said: str
) -> None:
    headrace("dlq", words[0], stream, *words[1:]).refused(code, said)


def test_an_unknown_stream_is_named_but_letters_outlive_theirs(
    headrace: Callable[..., Ran], server: Server, stream: str, letters: list[str]
) -> None:
    headrace("dlq", "list", stream + "-no").refused(1, "there is no stream")
    server.sync().delete(stream)
    assert listed(headrace, stream) == letters
