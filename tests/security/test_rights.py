"""Every right of every profile in docs/acl.md, taken away in turn: one FATAL error names it (SPEC 52, 54).

The profiles are read from the page itself, so the page and these tests cannot drift apart. Each role is played call by
call (tests/support/rights.py); what an app makes of the error is in tests/behaviour/test_acl.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from headrace.errors import MissingRight, Verdict, classify
from tests.support.rights import LIVES, ROOT, Life, login, lose_with_spark, profile, share_with_spark
from tests.support.servers import Server

PAGE = ROOT / "docs/acl.md"

OwnServer = Callable[..., Server]

# Rights without which the role goes on, the slower way or with less to tell: docs/acl.md says so of each.
_SLOWER = {"client|setname", "client|id", "client|unblock", "client|kill", "client|list", "info", "xautoclaim"}
SPARE = {
    "producer": {"client|setname", "client|id"},
    "worker": _SLOWER | {"xgroup|setid"},
    "operator": {"client|setname", "client|id", "info", "get", "mget", "exists", "type", "xinfo|stream"},
    "owner": _SLOWER | {"xgroup|setid"},
    "parts-producer": {"client|setname", "client|id"},
    "parts-worker": _SLOWER | {"xgroup|setid"},
    "parts-owner": _SLOWER | {"xgroup|setid"},
    "go": {"client|setname", "client|id", "client|unblock"},
    "spark-source": {"client|setname", "client|id", "hset", "hvals", "expire"},  # without them losses are logged alone
    "spark-sink": {"client|setname", "client|id", "get"},  # get: only where two drivers publish the same batch
}
RIGHTS = {
    role: [word[1:] for word in profile(role, "orders") if word.startswith("+") and word[1:] not in SPARE[role]]
    for role in LIVES
}


@pytest.fixture
def guarded(own_server: OwnServer, server_key: str) -> Iterator[Server]:
    """A server of its own: users outlive a test."""
    return own_server(server_key)  # type: ignore[return-value]


def play(server: Server, role: str, stream: str, words: list[str]) -> list[Exception]:
    server.sync().script_flush()  # scripts that others loaded would hide that one may not
    life = Life(server, login(server, words), stream)
    try:
        LIVES[role](life)
    finally:
        life.close()
    return list(life.errors)


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("role", LIVES)
def test_a_profile_is_enough_for_its_role(guarded: Server, stream: str, role: str) -> None:
    """SPEC 52: also without what it could do without."""
    words = profile(role, stream)
    assert play(guarded, role, stream, words) == []
    assert play(guarded, role, stream, [word for word in words if word[1:] not in SPARE[role]]) == []


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("role", LIVES)
def test_each_right_that_is_taken_away_is_one_fatal_error_that_names_it(
    guarded: Server, stream: str, role: str, server_key: str
) -> None:
    """SPEC 52, 54: none is granted in vain. Redis 6.2 names the command only where it is not inside a script."""
    words = profile(role, stream)
    for right in RIGHTS[role]:
        errors = play(guarded, role, stream, [word for word in words if word != f"+{right}"])
        assert errors, f"{role} does without {right}: take it out of docs/acl.md"
        assert {type(error) for error in errors} == {MissingRight}, (right, errors)
        for error in errors:
            assert classify(error) is Verdict.FATAL
            assert "ACL SETUSER" in str(error)
            assert "\n" not in str(error)
        named = any(right.partition("|")[0] in str(error).lower() for error in errors)
        assert named or server_key == "redis6", (right, errors)


@pytest.mark.servers("redis8", "redis6")
def test_losses_that_spark_may_not_count_are_said_once_and_end_no_query(
    guarded: Server, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 52: the log of the tasks has them then."""

    def lose(words: list[str]) -> int:
        life = Life(guarded, login(guarded, words), stream)
        try:
            life.scene(0)
            for _ in range(3):
                life.client.xadd(stream, {"payload": "{}"})
            return lose_with_spark(life)
        finally:
            life.close()

    words = profile("spark-source", stream)
    assert lose(words) == 1
    assert "spark.lost.uncounted" not in caplog.text
    for right in ("hset", "hvals"):
        caplog.clear()
        assert lose([word for word in words if word != f"+{right}"]) == 0
        assert caplog.text.count("spark.lost.uncounted") == 1
        assert f"'{right}'" in caplog.text


@pytest.mark.servers("redis8", "redis6")
def test_a_workers_line_and_what_the_page_adds_are_enough_for_sparks_group_mode(guarded: Server, stream: str) -> None:
    """SPEC 52: the words are those of docs/acl.md."""
    (more,) = re.findall(r"`mode = group` is a worker and needs a worker's line, and `([^`]*)`", PAGE.read_text())
    words = profile("worker", stream) + more.split()
    assert group_mode(guarded, stream, words) == 3
    for right in set(more.split()) - {"+expire"}:  # without it losses are in the log
        with pytest.raises(MissingRight, match=right[1:]):
            group_mode(guarded, stream, [word for word in words if word != right])
    assert group_mode(guarded, stream, [word for word in words if word != "+expire"]) == 1


def group_mode(server: Server, stream: str, words: list[str]) -> int:
    life = Life(server, login(server, words), stream)
    try:
        return share_with_spark(life)
    finally:
        life.close()


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("role", LIVES)
def test_each_key_pattern_that_is_taken_away_is_an_error_about_a_key(guarded: Server, stream: str, role: str) -> None:
    """SPEC 52: servers do not say which key, so the error says that it was one."""
    words = profile(role, stream)
    patterns = [word for word in words if word.startswith("~")]
    for pattern in patterns:
        errors = play(guarded, role, stream, [word for word in words if word != pattern])
        assert errors, f"{role} does without {pattern}: take it out of docs/acl.md"
        assert {type(error) for error in errors} == {MissingRight}
        assert all("key" in str(error) for error in errors), errors


@pytest.mark.servers("redis8")
def test_no_profile_grants_what_could_hurt_others(guarded: Server, stream: str) -> None:
    """SPEC 52: no role may delete, rename, reconfigure, read foreign keys or run texts of its own as a script."""
    hurting = (
        "flushall",
        "config",
        "eval",
        "function",
        "keys",
        "rename",
        "acl",
        "debug",
        "replicaof",
        "shutdown",
        "del",
    )
    for role in LIVES:
        granted = {word[1:].partition("|")[0] for word in profile(role, stream) if word.startswith("+")}
        # the protocol's locks; and a stream that is finished is deleted by its owner, unless it is told to keep it
        needed = {"del"} if role in ("go", "owner") else set()
        assert not (granted & set(hurting)) - needed, role
        assert not [word for word in profile(role, stream) if word in ("~*", "allkeys", "+@all", "allcommands", "&*")]
