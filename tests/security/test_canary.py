"""A canary for a password, in every place a URL has for a secret: it must come out nowhere (SPEC 53).

tests/behaviour/test_secrets.py watches whole lives of workers; here are the places around them: every part of a URL,
commands, doctor, Spark's source and sink, and what they write to disk.
"""

from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.endpoint import parse_url
from headrace.errors import HeadraceError
from headrace.redis.connect import Server as Connect
from headrace.spark.options import address_of
from headrace.spark.report_page import page
from headrace.spark.sink_options import SINK_OPTIONS
from headrace.spark.source_options import SourceSettings
from tests.cli.conftest import Ran, in_own_process
from tests.support.rights import Life, read_with_spark, write_with_spark
from tests.support.servers import Server
from tests.support.wait import wait_until

OwnServer = Callable[..., Server]
CANARY = "CANARY-7f3a"
ENCODED = "C%41NARY-7f3a"  # the same, percent-encoded: what is printed must hold neither

URLS = [
    f"redis://:{CANARY}@127.0.0.1:1",
    f"redis://user:{CANARY}@127.0.0.1:1/3",
    f"redis://user:{ENCODED}@127.0.0.1:1",
    f"redis://127.0.0.1:1?username=user&password={CANARY}",
    f"rediss://:{CANARY}@127.0.0.1:1?verify=none",
    f"rediss://127.0.0.1:1?client_cert=/certs/app.pem&client_key=/secrets/{CANARY}.pem",
    f"unix:///no/such.sock?password={CANARY}",
    f"redis+sentinel://:{CANARY}@127.0.0.1:1/main?sentinel_password={CANARY}",
    f"redis+sentinel://127.0.0.1:1/main?sentinel_username=s&sentinel_password={ENCODED}",
    f"redis+cluster://:{CANARY}@127.0.0.1:1",
]


FIGURES: dict[str, Any] = {  # a report without rows
    "pipeline": "orders",
    "headrace": "0",
    "made_ms": 0,
    "totals": dict.fromkeys(("batches", "rows_in", "out", "duplicates", "quarantined"), 0)
    | {"routes": {}, "exact": True},
    "ledger": [],
    "throughput": [],
    "columns": {},
    "quarantine": [],
    "attempts": {"buried": [], "all": []},
    "rescues": {"count": 0, "ms": []},
}


def _told(url: str) -> str:
    """Everything that is said about a URL, and by what fails with it."""
    end = parse_url(url)
    told = [repr(end), str(end), end.masked, f"{end}", repr([end])]
    try:
        server = Connect(url)
        told += [repr(server), repr(server.link()), repr(server.sync_link())]
        server.sync_link(timeout_ms=200).open()
    except HeadraceError as error:
        told += ["".join(traceback.format_exception(error)), repr(error), repr(pickle.dumps(error))]
    return "\n".join(told)


@pytest.mark.parametrize("url", URLS)
def test_no_part_of_a_url_that_is_secret_is_ever_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """SPEC 53: repr, errors with their causes, pickles, logs; a key file's path is a secret, too."""
    told = _told(url) + caplog.text
    assert CANARY not in told
    assert ENCODED not in told


@pytest.mark.servers("redis8")
def test_no_command_tells_a_password(
    own_server: OwnServer, server_key: str, stream: str, run_here: Callable[..., Ran]
) -> None:
    """SPEC 53: right and wrong password, with --json and --debug, doctor's findings included."""
    server = own_server(server_key, config={"requirepass": CANARY})
    for password in (CANARY, f"{CANARY}-wrong"):
        url = f"unix://{server.socket}?password={password}"
        for words in (
            ("add", stream, "{}"),
            ("groups", stream),
            ("groups", f"{stream}-none", "--debug"),
            ("pending", stream, "billing", "--debug"),
            ("dlq", "list", stream, "--json"),
            ("doctor", stream),
            ("doctor", "--json"),
            ("run", "no.such:app", "--debug"),
        ):
            ran = run_here(*words, "--url", url)
            assert CANARY not in ran.out + ran.err, words


@pytest.mark.servers("redis8")
async def test_dead_letters_and_a_page_about_them_tell_no_password(
    own_server: OwnServer, server_key: str, stream: str
) -> None:
    """SPEC 53: what handlers raise becomes a reason, and reasons become a ranking on a page and in JSON."""
    server = own_server(server_key, config={"requirepass": CANARY})
    app = App(f"unix://{server.socket}?password={CANARY}")
    orders = app.stream(stream)

    @orders.handler(group="billing", lease="2s", max_attempts=1)
    async def bill(order: dict[str, int]) -> None:
        if order["n"] == 0:
            raise RuntimeError(f"{app} {app!r} {app.server} {app.server.endpoint} {app.server.link()!r}")
        Connect(URLS[order["n"] - 1]).sync_link(timeout_ms=200).open()  # raises what a driver of the user's would

    async with app:
        await orders.add_many([{"n": n} for n in range(len(URLS) + 1)])
        async with app.worker():
            await wait_until(lambda: server.sync().xlen(f"{{{stream}}}:dlq") == len(URLS) + 1, 20)
        letters = await orders.dead_letters.listed()
    ranking = [{"what": f"{letter.error}: {letter.reason}", "rows": 1} for letter in letters]
    found = {**FIGURES, "dead_letters": {"count": len(letters), "ranking": ranking, "age_ms": {}}}
    told = [repr(server.sync().xrange(f"{{{stream}}}:dlq")), repr(letters), page(found), json.dumps(found)]
    assert "***" in told[0], "the URLs were told, and what is secret of them was not"
    for secret in (CANARY, ENCODED):
        assert secret not in "\n".join(told)


@pytest.mark.servers("redis8")
def test_a_password_reaches_children_by_environment_alone(
    own_server: OwnServer, server_key: str, tmp_path: Path
) -> None:
    """SPEC 53: `headrace run` looks at the app in a process of its own; nobody can read it from a command line."""
    server = own_server(server_key, config={"requirepass": CANARY})
    told = tmp_path / "told"
    (tmp_path / "shop.py").write_text(
        "import pathlib, os, headrace\n"
        "app = headrace.App()\n"
        "@app.stream('canary-orders').handler(group='g', lease='2s')\n"
        "async def bill(order): ...\n"
        "lines = [path.read_text().replace(chr(0), ' ') for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')\n"
        "         if os.access(path, os.R_OK)]\n"
        f"with open({str(told)!r}, 'a') as out: out.write(chr(10).join(lines))\n"
    )
    url = f"unix://{server.socket}?password={CANARY}"
    ran = in_own_process(
        "run", "shop:app", "--burst", "--log-level", "debug", HEADRACE_URL=url, PYTHONPATH=_path(tmp_path)
    )
    assert ran.code == 0, ran.err
    assert "headrace.child" in told.read_text()
    assert CANARY not in told.read_text()
    assert CANARY not in ran.out + ran.err


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@pytest.mark.servers("redis8")
def test_spark_options_settings_and_errors_hold_no_password_that_prints(
    own_server: OwnServer, server_key: str, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 53: source and sink at work under a password, and refused with a wrong one. Without a JVM."""
    server = own_server(server_key, config={"requirepass": CANARY})
    told = []
    for password in (CANARY, f"{CANARY}-wrong"):
        life = Life.__new__(Life)
        life.client, life.stream, life.errors = server.sync(), stream, []
        life.url = f"unix://{server.socket}?password={password}"
        read_with_spark(life)
        write_with_spark(life)
        assert bool(life.errors) == (password != CANARY)
        told += ["".join(traceback.format_exception(error)) for error in life.errors]
    settings = SourceSettings.of({"url": life.url, "streams": stream}, streaming=False)
    told += [repr(settings), repr(settings.address), str(settings.address)]
    told.append(repr(address_of(SINK_OPTIONS.read({"url": life.url, "stream": stream}))))
    assert CANARY not in "\n".join(told) + caplog.text


@pytest.mark.parametrize("word", ["url", "redis.password", "redis.sentinel_password"])
def test_an_option_with_a_secret_that_is_refused_is_not_quoted(word: str) -> None:
    """SPEC 53: Spark prints what a source raises."""
    given: dict[str, str] = {"url": "redis://127.0.0.1:1", "streams": "orders", word: f"{CANARY}@#"}
    with pytest.raises(HeadraceError) as caught:
        SourceSettings.of({**given, "bogus": "1"}, streaming=False)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_pipeline_prints_without_its_password() -> None:
    from headrace.spark.pipeline import pipeline_of

    told: dict[str, Any] = {"name": "a", "folder": "f", "decode": {"columns": {"a": "string"}}}
    pipeline = pipeline_of({**told, "source": {"url": f"redis://:{CANARY}@h", "streams": "orders"}})
    assert CANARY not in repr(pipeline)
    assert CANARY in str(asdict(pipeline)), "what Spark is told is whole"
