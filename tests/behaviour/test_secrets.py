"""A canary password: it must appear nowhere (SPEC 53)."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, AuthFailed, Bury, Delivery, HeadraceError
from headrace.config import ConnectSettings
from headrace.errors import UrlRefused
from headrace.redis.connect import Server as Connect
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workers import Workers
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

CANARY = "kanarienvogel-7f3a"
SOURCE = Path(__file__).resolve().parents[2] / "src"


def everything_on(server: Server) -> str:
    """Every key and every value of the server."""
    client = server.sync()
    found = []
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        found.append(repr(key))
        if kind == b"stream":
            found.append(repr(client.xrange(key)) + repr(client.xinfo_groups(key)))
        elif kind == b"hash":
            found.append(repr(client.hgetall(key)))
        elif kind == b"string":
            found.append(repr(client.get(key)))
    return "\n".join([*found, repr(client.client_list())])


@pytest.mark.servers("redis8", "redis6")
async def test_a_password_is_in_no_repr_log_or_key_of_a_whole_life(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 53: at log level DEBUG, with handlers that fail, a connection that is cut, and dead letters."""
    caplog.set_level(logging.DEBUG)
    server = own_server(server_key, config={"requirepass": CANARY})
    async with Proxy(server.socket) as proxy:
        app = make_app(f"redis://:{CANARY}@127.0.0.1:{proxy.port}")
        orders, seen = app.stream(stream), []

        @orders.handler(group=GROUP, lease="500ms", max_attempts=2, backoff="10ms")
        async def bill(order: Any, delivery: Delivery[Any]) -> None:
            seen.append(repr(delivery))
            if order["n"]:
                raise RuntimeError("no")
            raise Bury("never")

        async with app.worker() as worker:
            await orders.add({"n": 0}, key="a")
            await proxy.cut()
            await orders.add({"n": 1}, key="b")
            await wait_until(lambda: counted(app, "handled_total", outcome="bury") == 2, 10)
            seen += [repr(thing) for thing in (app, app.server, worker, orders, app.link, *worker.lanes)]
            seen += [repr(letter) for letter in await orders.dead_letters.listed()]
            told = everything_on(server)
        await app.close()
    assert CANARY not in "\n".join(seen)
    assert CANARY not in told
    assert CANARY not in caplog.text
    assert len(caplog.records) > 5


@pytest.mark.servers("redis8")
async def test_a_password_is_in_no_error_whatever_went_wrong(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 53: refused, unreachable, unreadable; with the whole chain of causes."""
    caplog.set_level(logging.DEBUG)
    server = own_server(server_key, config={"requirepass": "another"}, tcp=True)
    errors = []
    for url in (
        f"redis://:{CANARY}@127.0.0.1:{server.port}",
        f"redis://{CANARY}:{CANARY}@127.0.0.1:{server.port}",
        f"redis://:{CANARY}@127.0.0.1:1",
        f"rediss://:{CANARY}@127.0.0.1:{server.port}",
        f"redis://:{CANARY}@no-such-host.invalid:6379",
        f"unix:///no/such/socket?password={CANARY}",
    ):
        app = make_app(url, connect=ConnectSettings(connect_timeout_ms=300, command_timeout_ms=300))
        with pytest.raises(HeadraceError) as caught:
            await app.stream(stream).add({})
        errors.append("".join(traceback.format_exception(caught.value)))
        assert CANARY not in repr(copy.copy(caught.value))
        assert CANARY.encode() not in pickle.dumps(caught.value)
        seen = repr(app) + repr(app.server)
        assert CANARY not in seen.replace(f"{CANARY}:***@", "")  # a user's name is not secret
        await app.close()
    assert len(errors) == 6
    told = "\n".join(errors).replace(f"{CANARY}:***@", "")
    assert CANARY not in told
    assert CANARY not in caplog.text


def test_a_url_that_is_refused_is_not_quoted() -> None:
    """SPEC 53: a stray character in the password is the likeliest reason for a refusal."""
    for url in (
        f"redis://:{CANARY}/x@host:6379",
        f"redis://:{CANARY}@host:port",
        f"redis://user:{CANARY}@host/notanumber",
        f"http://:{CANARY}@host",
        f"redis://:{CANARY}@host?pasword={CANARY}",
        f"redis://host?password={CANARY}&db=x",
    ):
        with pytest.raises(UrlRefused) as caught:
            Connect(url)
        assert CANARY not in "".join(traceback.format_exception(caught.value))


async def test_a_wrong_password_is_not_quoted_back(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 53, 54."""
    server = own_server(server_key, config={"requirepass": "another"})
    app = make_app(f"unix://{server.socket}?password={CANARY}")
    app.stream(stream).handler(group=GROUP, lease="2s")(_nothing)
    with pytest.raises(AuthFailed) as caught:
        async with app.worker():
            pass
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    await app.close()


async def _nothing(order: Any) -> None:
    pass


@pytest.mark.servers("redis8")
def test_a_password_is_in_no_log_of_a_supervisor_and_not_on_its_childrens_command_line(
    own_server: OwnServer, server_key: str, stream: str, tmp_path: Path
) -> None:
    """SPEC 53: everybody on the machine can read command lines."""
    server = own_server(server_key, config={"requirepass": CANARY}, tcp=True)
    workers = Workers(tmp_path, f"redis://:{CANARY}@127.0.0.1:{server.port}", stream)
    try:
        parent = workers.supervise(1, options={"log_level": "DEBUG"})
        message = workers.add(server, do="ok")
        workers.until(lambda history: history.ends(id=message))
        (child,) = parent.children()
        assert CANARY not in Path(f"/proc/{child}/cmdline").read_text()
        workers.kill(child)
        parent.ready(2)
        parent.term()
        assert parent.wait() == 0
        assert CANARY not in parent.log
    finally:
        workers.end()


def test_nothing_of_ours_unpickles_or_evaluates() -> None:
    """SPEC 53: never pickle."""
    for file in SOURCE.rglob("*.py"):
        found = re.search(
            r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill)\b|\beval\(|\bexec\(", file.read_text(), re.M
        )
        assert found is None, f"{file}: {found}"
