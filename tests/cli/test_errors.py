"""Every error a person can make is one line with a way out, and no password is ever in it (SPEC 53, 54, 60)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import headrace as package
from headrace.cli import main
from headrace.errors import HeadraceError
from tests.cli.conftest import Ran, in_own_process
from tests.support.servers import Server

WITHOUT_EXTRA = """
import sys
sys.modules[sys.argv[1]] = None
from headrace.cli import main
sys.exit(main(["version"]))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("groups", "orders", "--jsno"), "headrace groups --help"),
        (("run", "shop:app", "--procesess", "3"), "--processes"),
        (("run", "shop:app", "--processes", "0"), "--processes"),
        (("run", "shop:app", "--log-level", "loud"), "'warning'"),
        (("groups",), "STREAM"),
        (("grups", "orders"), "grups"),
        (("groups", "a{b", "--url", "redis://127.0.0.1:1"), "a{b"),
    ],
)
def test_bad_words_are_refused(run_here: Callable[..., Ran], words: tuple[str, ...], said: str) -> None:
    run_here(*words).refused(1 if "--url" in words else 2, "cannot be reached" if "--url" in words else said)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_get_it(missing: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA, missing], capture_output=True, text=True, check=False)
    Ran(done.returncode, done.stdout, done.stderr).refused(2, "pip install 'headrace[cli]'")


def test_versions_are_told_in_words_and_in_json(run_here: Callable[..., Ran]) -> None:
    assert run_here("version", "--json").json["headrace"] == package.__version__
    assert f"headrace {package.__version__}" in run_here("--version").out
    assert in_own_process("version").out == run_here("version").out


@pytest.mark.parametrize("words", [(), ("dlq",), ("--help",), ("run", "-h")])
def test_help_is_an_answer(run_here: Callable[..., Ran], words: tuple[str, ...]) -> None:
    ran = run_here(*words)
    assert ran.code == 0
    assert "Usage: headrace" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://x", "redis://u:s3cr@et@h", "redis://:s3cret@h:port"])
def test_a_bad_url_is_refused_and_not_repeated(run_here: Callable[..., Ran], url: str) -> None:
    ran = run_here("groups", "orders", "--url", url)
    ran.refused(2, "--url: ")
    assert "s3cr" not in ran.err


def test_an_unreachable_server_is_named_at_once(run_here: Callable[..., Ran]) -> None:
    for words in (("groups", "orders"), ("add", "orders", "1", "--key", "k"), ("doctor",)):
        run_here(*words, "--url", "redis://u:s3cret@127.0.0.1:1").refused(
            1, "redis://u:***@127.0.0.1:1/0 cannot be reached", "check that it runs"
        )


def test_debug_shows_where_an_error_came_from_and_no_password(run_here: Callable[..., Ran]) -> None:
    ran = run_here("groups", "orders", "--debug", "--url", "redis://u:s3cret@127.0.0.1:1")
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "s3cret" not in ran.err


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_wrong_or_missing_password_is_told_and_never_printed(
    run_here: Callable[..., Ran], own_server: Callable[..., Server], server_key: str, way: str
) -> None:
    server = own_server(server_key, config={"requirepass": "r1ght"}, tcp=True)
    scheme, place = ("redis", f"127.0.0.1:{server.port}") if way == "tcp" else ("unix", str(server.socket))
    for login in (":wr0ng@", "nobody:wr0ng@"):
        ran = run_here("groups", "orders", "--debug", "--url", f"{scheme}://{login}{place}")
        assert ran.code == 1
        assert "check user and password in the URL" in ran.err.splitlines()[-1]
        assert "wr0ng" not in ran.err
        assert "r1ght" not in ran.err
    run_here("groups", "orders", "--url", f"{scheme}://{place}").refused(1, "the server wants a password")


@pytest.mark.servers("redis8", "valkey9")
def test_a_key_of_another_type_is_told(headrace: Callable[..., Ran], server: Server, stream: str) -> None:
    server.sync().set(stream, "text")
    for words in (("groups",), ("owners",), ("add", "1"), ("dlq list",)):
        command, *rest = words
        headrace(*command.split(), stream, *rest).refused(1, "WRONGTYPE", "use another stream name")


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch, run_here: Callable[..., Ran]) -> None:
    monkeypatch.setattr("headrace.cli.where.find", lambda given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["groups", "orders"])


def test_an_error_stays_on_one_line_whatever_it_holds(
    monkeypatch: pytest.MonkeyPatch, run_here: Callable[..., Ran]
) -> None:
    def fail(given: str | None) -> None:
        raise HeadraceError("two\nlines and \x1b[2J")

    monkeypatch.setattr("headrace.cli.where.find", fail)
    run_here("groups", "orders").refused(1, "two lines and \\x1b[2J")
