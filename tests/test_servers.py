"""The matrix itself: every server is what it says, and the fixtures keep their word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import binaries
from tests.support.leaks import leaked
from tests.support.servers import MATRIX, Server, fetch
from tests.support.tls import TlsFiles, make_tls
from tests.support.wait import wait_until, wait_until_sync

OwnServer = Callable[..., Server]


def test_each_server_is_of_the_version_its_key_promises(server: Server, server_key: str) -> None:
    info = server.sync().info("server")
    told = info.get("valkey_version", info["redis_version"])
    assert tuple(map(int, told.split(".")))[:2] == MATRIX[server_key].version
    assert info["process_id"] == server.pid


def test_a_killed_server_comes_back_at_the_same_address_with_its_file(own_server: OwnServer, server_key: str) -> None:
    server = own_server(server_key, aof=True, config={"appendfsync": "always"}, tcp=True)
    server.sync().set("kept", "1")
    address, first = server.url, server.pid
    server.kill()
    assert not server.alive
    server.restart()
    assert (server.url, server.sync().get("kept")) == (address, b"1")
    assert server.pid != first


def test_a_paused_server_is_silent_until_it_continues(own_server: OwnServer, server_key: str) -> None:
    server = own_server(server_key)
    server.pause()
    assert not server.alive
    server.cont()
    wait_until_sync(lambda: server.alive)
    server.pause()  # stop() must end a paused one too


def test_a_tls_server_is_trusted_by_its_own_authority_only(
    own_server: OwnServer, server_key: str, tls_files: TlsFiles, tmp_path: Path
) -> None:
    """SPEC 48, the server's half."""
    server = own_server(server_key, tls=tls_files)
    connect = partial(redis.Redis, host="127.0.0.1", port=server.port, ssl=True, retry=Retry(NoBackoff(), 0))
    with connect(ssl_ca_certs=str(tls_files.ca)) as client:
        assert client.ping()
    stranger = make_tls(tmp_path)
    with connect(ssl_ca_certs=str(stranger.ca)) as client:
        with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            client.ping()


@pytest.mark.servers("valkey9")
def test_a_key_without_a_prefix_is_found_and_removed(own_server: OwnServer, server_key: str) -> None:
    server = own_server(server_key)
    server.sync().mset({"t123-orders": "", "{t123-orders}:hr:due:g": "", "astray": ""})
    assert leaked(server, {"t123"}) == ["b'astray'"]
    assert server.sync().dbsize() == 0


def test_two_who_fetch_at_once_build_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built: list[str] = []
    building, go_on = threading.Event(), threading.Event()

    def build(target: Path) -> None:
        built.append(str(target))
        building.set()
        go_on.wait(10)
        binaries._wrapper(target, next(binaries.packaged()), None)

    source = binaries.Source("redis6", MATRIX["valkey9"].version, required=True, fetch=build)
    monkeypatch.setitem(MATRIX, "redis6", source)
    first = threading.Thread(target=binaries.obtain, args=("redis6", str))
    first.start()
    building.wait(10)
    second = threading.Thread(target=binaries.obtain, args=("redis6", lambda _: go_on.set()))
    second.start()
    first.join(10)
    second.join(10)
    assert len(built) == 1


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_required_server_that_cannot_be_had_fails_only_in_ci(
    ci: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(_: Path) -> None:
        raise binaries.NotToBeHad("no compiler")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    for key, source in list(MATRIX.items()):
        if key != "valkey9":
            monkeypatch.setitem(
                MATRIX, key, binaries.Source(key, source.version, required=source.required, fetch=refuse)
            )
    assert fetch() == status
    assert "WITHOUT redis8, its tests will be skipped: no compiler" in capsys.readouterr().err


async def test_wait_until_returns_the_answer_or_says_what_did_not_happen() -> None:
    answers = iter([0, 0, 7])
    assert await wait_until(lambda: next(answers)) == 7
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: the tide; the last answer was 0"):
        await wait_until(lambda: 0, timeout=0.02, what="the tide")
