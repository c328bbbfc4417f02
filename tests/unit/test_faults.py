"""What servers and redis-py say, mapped once (SPEC 54). The texts were taken from Redis 6.2, 7.0, 8.10, Valkey 9.1."""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl

import pytest
from redis import exceptions as client
from redis._parsers.base import BaseParser
from redis.sentinel import MasterNotFoundError

from headrace.errors import (
    AuthFailed,
    BusyGroup,
    CommandRefused,
    DecodeError,
    HeadraceError,
    MissingRight,
    NoGroup,
    NoScript,
    ServerError,
    ServerRefused,
    ServerTooOld,
    Unavailable,
    Verdict,
    WrongType,
)
from headrace.redis.faults import TEXT_LIMIT, translate


def _reply(text: str) -> Exception:
    """An error reply as redis-py's parser hands it on."""
    error: Exception = BaseParser.parse_error(text)  # type: ignore[no-untyped-call]
    return error


SHA = "6e811b139564201b18ee3136bad6ce232559bad8"
OLD = f"ERR Error running script (call to f_{SHA}): @user_script:1: "  # how Redis 6.2 tells of an error in a script
NEW = f" script: {SHA}, on @user_script:1."  # Redis 7 and later
VALKEY = " script: on @user_script:1."

BY_CLASS = [  # known by the class that redis-py's parser gave them
    ("ERR max number of clients reached", Unavailable),
    ("ERR invalid password", AuthFailed),
    ("ERR wrong number of arguments for 'auth' command", AuthFailed),
    ("ERR Client sent AUTH, but no password is set", AuthFailed),
]
REPLIES = [
    *BY_CLASS,
    ("OOM command not allowed when used memory > 'maxmemory'.", ServerRefused),
    (f"{OLD}@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.", ServerRefused),
    (f"OOM command not allowed when used memory > 'maxmemory'.{NEW}", ServerRefused),
    ("MISCONF Errors writing to the AOF file: No space left on device", ServerRefused),
    ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist", ServerRefused),
    (f"{OLD}@user_script: 1: -MISCONF Errors writing to the AOF file: No space", ServerRefused),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", ServerRefused),
    ("NOREPLICAS Not enough good replicas to write.", ServerRefused),
    (f"{OLD}@user_script: 1: -NOREPLICAS Not enough good replicas to write.", ServerRefused),
    ("LOADING Redis is loading the dataset in memory", Unavailable),
    ("CLUSTERDOWN The cluster is down", Unavailable),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Unavailable),
    ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
    ("READONLY You can't write against a read only replica.", Unavailable),
    (f"{OLD}@user_script: 1: -READONLY You can't write against a read only replica.", Unavailable),
    (f"READONLY You can't write against a read only replica.{VALKEY}", Unavailable),
    ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", Unavailable),
    ("NOGROUP No such key 'nope' or consumer group 'g' in XREADGROUP with GROUP option", NoGroup),
    (f"{OLD}NOGROUP No such key 'nope' or consumer group 'g'", NoGroup),
    (f"NOGROUP No such key 'nope' or consumer group 'g'{NEW}", NoGroup),
    ("NOSCRIPT No matching script. Please use EVAL.", NoScript),
    ("BUSYGROUP Consumer Group name already exists", BusyGroup),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
    (f"{OLD}WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
    (f"WRONGTYPE Operation against a key holding the wrong kind of value{VALKEY}", WrongType),
    ("WRONGPASS invalid username-password pair or user is disabled.", AuthFailed),
    ("NOAUTH Authentication required.", AuthFailed),
    ("DENIED Redis is running in protected mode because protected mode is enabled", AuthFailed),
    ("NOPERM this user has no permissions to run the 'xadd' command or its subcommand", MissingRight),
    ("NOPERM User w has no permissions to run the 'xadd' command", MissingRight),
    ("NOPERM this user has no permissions to access one of the keys used as arguments", MissingRight),
    ("NOPERM No permissions to access a key", MissingRight),
    ("NOPERM No permissions to access a channel", MissingRight),
    (f"{OLD}@user_script: 1: The user executing the script can't run this command or subcommand", MissingRight),
    (f"ERR The user executing the script can't access at least one of the keys mentioned{NEW}", MissingRight),
    (f"ERR ACL failure in script: User w has no permissions to run the 'xack' command{VALKEY}", MissingRight),
    (f"ERR ACL failure in script: No permissions to access a key{NEW}", MissingRight),
    ("ERR unknown command `XAUTOCLAIM`, with args beginning with: `orders`, ", ServerTooOld),
    ("ERR unknown command 'XREADGROUP', with args beginning with: 'GROUP' ", ServerTooOld),
    ("ERR unknown command 'XACKDEL', with args beginning with: 'orders' ", CommandRefused),
    (f"ERR Unknown Redis command called from script{NEW}", CommandRefused),
    ("ERR syntax error", CommandRefused),
    ("MOVED 3999 127.0.0.1:6381", CommandRefused),
    ("ASK 3999 127.0.0.1:6381", CommandRefused),
    ("CROSSSLOT Keys in request don't hash to the same slot", CommandRefused),
    ("EXECABORT Transaction discarded because of previous errors.", CommandRefused),
    ("whatever", CommandRefused),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "kind"), REPLIES, ids=[reply[:40] for reply, _ in REPLIES])
def test_every_reply_finds_its_place_in_the_tree(reply: str, kind: type[HeadraceError]) -> None:
    """SPEC 54: as redis-py parses it, on old and new servers, alone and inside a script."""
    error = translate(_reply(reply))
    assert type(error) is kind
    assert "\n" not in str(error)
    assert "user_script" not in str(error)
    assert SHA not in str(error)


def test_a_reply_that_was_not_parsed_means_the_same() -> None:
    """Another parser may leave the code in the text and everything a plain ResponseError."""
    by_text = [pair for pair in REPLIES if pair not in BY_CLASS]
    assert [type(translate(client.ResponseError(reply))) for reply, _ in by_text] == [kind for _, kind in by_text]


@pytest.mark.parametrize(
    "error",
    [
        client.ConnectionError("Error 111 connecting to localhost:6379. Connection refused."),
        client.TimeoutError("Timeout reading from socket"),
        client.BusyLoadingError("Redis is loading the dataset in memory"),
        client.MaxConnectionsError("Too many connections"),
        client.InvalidResponse("Protocol Error: b'HTTP/1.1 400'"),
        client.ClusterError("TTL exhausted."),
        client.RedisClusterException("Redis Cluster cannot be connected"),
        client.SlotNotCoveredError("slot 5 is not covered"),
        MasterNotFoundError("No master found for 'main'"),
        ConnectionResetError(104, "Connection reset by peer"),
        socket.gaierror(-2, "Name or service not known"),
        TimeoutError(),
        EOFError(),
        asyncio.IncompleteReadError(b"", 1),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trouble_on_the_way_is_retried(error: Exception) -> None:
    """SPEC 20, 54."""
    found = translate(error)
    assert type(found) is Unavailable
    assert found.verdict is Verdict.RETRY
    assert str(found)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError(
            1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch"
        ),
        client.ConnectionError(
            "Error 1 connecting to h:6380. [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed."
        ),
        client.ConnectionError("Error 1 connecting to h:6379. [SSL: WRONG_VERSION_NUMBER] wrong version number."),
    ],
)
def test_a_peer_that_tls_refuses_is_fatal_at_once(error: Exception) -> None:
    """SPEC 48, 54: trying again would not help."""
    found = translate(error)
    assert type(found) is AuthFailed
    assert "ca_cert" in str(found)


@pytest.mark.parametrize("error", [client.DataError("Invalid input of type: 'dict'"), ValueError("bug"), KeyError("x")])
def test_a_bug_is_fatal(error: Exception) -> None:
    found = translate(error)
    assert type(found) is CommandRefused
    assert type(error).__name__ in str(found)


def test_our_own_errors_pass_unchanged() -> None:
    error = DecodeError("x")
    assert translate(error) is error


def test_every_exception_of_the_client_has_a_verdict() -> None:
    """SPEC 54: none of redis-py's classes falls through to something outside the tree."""
    for _, cls in inspect.getmembers(client, inspect.isclass):
        if not issubclass(cls, Exception):
            continue
        error = cls("5 127.0.0.1:7000") if issubclass(cls, client.AskError) else cls("text")
        found = translate(error)
        assert isinstance(found, ServerError), cls
        auth = issubclass(cls, (client.AuthenticationError, client.AuthorizationError))
        assert isinstance(found, AuthFailed) or not auth, cls


def test_a_missing_right_is_named() -> None:
    """SPEC 52: one FATAL error that names it."""
    found = translate(_reply("NOPERM User w has no permissions to run the 'xgroup|create' command"))
    assert isinstance(found, MissingRight)
    assert (found.command, found.key) == ("xgroup|create", "")
    assert "grant +xgroup|create" in str(found)
    assert found.verdict is Verdict.FATAL
    told = translate(_reply("NOPERM User w has no permissions to access the 'orders' key"))
    assert isinstance(told, MissingRight)
    assert (told.command, told.key) == ("", "orders")
    assert "grant ~orders" in str(told)
    assert "grant the key" in str(translate(_reply("NOPERM No permissions to access a key")))
    assert "grant the channel" in str(translate(_reply("NOPERM No permissions to access a channel")))


SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    "error",
    [
        _reply(f"ERR unknown command 'AUTH', with args beginning with: 'user' '{SECRET}' "),
        _reply(f"ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `u`, `{SECRET}`, "),
        client.ConnectionError(f"cannot reach redis://user:{SECRET}@host:6379"),
        client.ConnectionError(f"cannot reach rediss://:{SECRET}@@host:6379/0"),
        OSError(f"unix://u:{SECRET}@/run/x.sock"),
        client.AuthenticationError(f"bad redis://:{SECRET}@h"),
    ],
)
def test_no_translated_error_holds_a_password(error: Exception) -> None:
    """SPEC 53."""
    found = translate(error)
    assert SECRET not in str(found)
    assert SECRET not in repr(found)


def test_a_long_reply_is_cut() -> None:
    assert len(str(translate(client.ResponseError("ERR " + "x" * 10_000)))) < TEXT_LIMIT + 100
    assert "\n" not in str(translate(client.ResponseError("ERR a\nb\r\nc")))
