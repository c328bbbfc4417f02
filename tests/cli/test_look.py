"""`headrace pending`, `owners`, `groups`, `backlog` (SPEC 59, 60)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.cli.look import why
from headrace.cli.show import ago, brief, exact, many, plain, readable, span
from tests.cli.conftest import Ran, Scene

pytestmark = pytest.mark.servers("redis6", "redis8")


def test_pending_says_who_holds_what_and_what_waits_why_and_until_when(
    headrace: Callable[..., Ran], scene: Scene, stream: str
) -> None:
    first, retried, crashed, parked, released = scene.add(5)
    scene.read("ann")
    scene.wait("ben", 60_000, "waiting")
    scene.wait("ben", 0, "crashed", alone=True)
    scene.wait("ben", -1, "parked")
    scene.wait("ben", 5_000, "released-2")
    said = headrace("pending", stream, "billing", "--json").json
    (held,) = said["held"]
    assert (held["id"], held["owner"], held["attempt"]) == (first, "ann", 1)
    assert held["idle_ms"] >= 0
    waiting = {row["id"]: row for row in said["waiting"]}
    assert waiting[retried]["why"] == "again later"
    assert 50_000 < waiting[retried]["due_in_ms"] <= 60_000
    assert waiting[crashed] == {"id": crashed, "why": "after a crash", "due_in_ms": 0, "attempts": 1, "alone": True}
    assert (waiting[parked]["why"], waiting[parked]["due_in_ms"]) == ("until replayed", None)
    assert waiting[released]["why"] == "released 2×"
    assert (said["held_total"], said["waiting_total"]) == (1, 4)
    told = headrace("pending", stream, "billing", "--limit", "2")
    for words in ("1 message held by 1 owner", "ann", "4 messages waiting", "again later", "alone"):
        assert words in told.out
    assert "the first 2 of each" in told.err


def test_pending_of_a_quiet_group_says_so(headrace: Callable[..., Ran], scene: Scene, stream: str) -> None:
    told = headrace("pending", stream, "billing")
    assert told.out.splitlines() == ["nobody holds a message", "nothing waits"]


def test_groups_and_backlog_count_lag_pending_waiting_and_dead_letters(
    headrace: Callable[..., Ran], scene: Scene, stream: str
) -> None:
    scene.add(10)
    scene.read("ann", 2)
    scene.wait("ann", 60_000, "waiting")
    scene.wait("ann", -1, "parked")
    scene.bury("ann")
    said = headrace("groups", stream, "--json").json
    (group,) = said["groups"]
    assert (said["messages"], said["dead_letters"]) == (10, 1)
    assert {name: group[name] for name in ("lag", "pending", "waiting", "backlog", "parked", "dead_letters")} == {
        "lag": 5,
        "pending": 2,
        "waiting": 1,
        "backlog": 8,
        "parked": 1,
        "dead_letters": 1,
    }
    assert headrace("backlog", stream, "billing").out == "8\n"
    assert headrace("backlog", stream, "billing", "--json").json["backlog"] == 8
    told = headrace("groups", stream).out
    assert f"{stream}: 10 messages, 1 dead letter" in told
    assert "~wait" not in told


def test_owners_tell_what_they_hold_and_who_is_gone(headrace: Callable[..., Ran], scene: Scene, stream: str) -> None:
    scene.add(3)
    scene.join("ann")
    scene.read("ann", 2)
    scene.read("foreign", 1)
    said = {owner["owner"]: owner for owner in headrace("owners", stream, "--json").json["owners"]}
    assert (said["ann"]["holds"], said["ann"]["lease_ms"], said["ann"]["alive"]) == (2, 10_000, True)
    assert said["ann"]["about"] == {"host": "h1", "pid": 7}
    assert (said["foreign"]["holds"], said["foreign"]["alive"]) == (1, False)
    told = headrace("owners", stream, "billing").out
    assert "2 owners of" in told
    assert "not ours" in told


@pytest.mark.parametrize("command", ["groups", "owners", "pending", "backlog"])
def test_an_unknown_stream_is_named(headrace: Callable[..., Ran], stream: str, command: str) -> None:
    group = ("billing",) if command in ("pending", "backlog") else ()
    headrace(command, stream, *group).refused(1, "there is no stream", stream)


def test_an_unknown_group_is_told_which_was_meant(headrace: Callable[..., Ran], scene: Scene, stream: str) -> None:
    headrace("pending", stream, "biling").refused(1, "has no group 'biling'", "did you mean 'billing'?")
    headrace("backlog", stream, "biling", "--json").refused(1, "did you mean 'billing'?")


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (3_210, "3.2 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (250_000, "4 min 10 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_read_as_people_write_them(ms: int, words: str) -> None:
    assert span(ms) == words
    assert ago(ms).startswith(words.split()[0])


def test_what_others_wrote_is_shown_and_never_obeyed() -> None:
    assert plain("\x1b[31mred\n\u202e") == "\\x1b[31mred\\n\\u202e"
    assert plain("abcdef", 4) == "abc…"
    assert brief(b"\xff[red]") == "\\xff[red]"
    assert readable(b'{"a": 1}') == {"a": 1}
    assert readable(b"NaN") == "NaN"
    assert exact(b"1") == "1"
    assert exact(b"\xff") == {"base64": "/w=="}
    assert why("somebody-elses") == "somebody-elses"
    assert many(1, "process", "processes") == "1 process"
