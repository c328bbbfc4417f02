"""`headrace run` as a user starts it: real processes, real signals (SPEC 8, 22)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, in_own_process
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

SHOP = """
import asyncio, os
from headrace import App

app = App({app})
orders = app.stream({stream!r})

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

@orders.handler(group="billing", lease="500ms", backoff="50ms")
async def bill(order, delivery):
    print("a handler prints this")
    note(os.getpid(), order["id"], delivery.attempt)
    if order.get("hold") and delivery.attempt == 1:
        await asyncio.sleep(60)
    note("done", order["id"])
"""


class Shop:
    """An app in a directory of its own, and what its handlers noted."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.folder, self.stream = folder, stream

    def write(self, app: str = "") -> None:
        (self.folder / "shop.py").write_text(SHOP.format(app=app, stream=self.stream))

    def notes(self) -> list[list[str]]:
        file = self.folder / "notes"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def starts(self, order: int) -> list[tuple[int, int]]:
        """(pid, attempt) of each start of a handler for this order."""
        return [(int(note[0]), int(note[2])) for note in self.notes() if note[0] != "done" and note[1] == str(order)]

    def done(self) -> set[int]:
        return {int(note[1]) for note in self.notes() if note[0] == "done"}


@pytest.fixture
def shop(nowhere: Path, stream: str) -> Shop:
    made = Shop(nowhere, stream)
    made.write()
    return made


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `headrace run shop:app`; what a test leaves running is ended."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headrace.cli", "run", "shop:app", *words]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> Ran:
    out, err = process.communicate(timeout=20)
    return Ran(process.returncode, out, err)


def add(server: Server, stream: str, *orders: dict[str, object]) -> None:
    for order in orders:
        server.sync().xadd(stream, {"payload": json.dumps(order)})


@pytest.mark.servers("redis8")
def test_messages_are_handled_until_sigterm_which_ends_well(
    shop: Shop, start: Callable[..., subprocess.Popen[str]], server: Server
) -> None:
    process = start("--json", "--processes", "2", HEADRACE_URL=server.url)
    add(server, shop.stream, {"id": 1}, {"id": 2})
    wait_until_sync(lambda: shop.done() == {1, 2}, 30, what="both orders")
    process.send_signal(signal.SIGTERM)
    ran = ended(process)
    assert ran.code == 0, ran.err
    events = ran.lines
    assert events[0]["event"] == "run.started"
    assert events[0]["processes"] == 2
    assert events[0]["handlers"][0]["group"] == "billing"
    assert [event["event"] for event in events].count("child.started") == 2
    assert events[-1] == {"event": "run.ended", "code": 0}
    assert "a handler prints this" in ran.err


@pytest.mark.servers("redis8", "redis6")
def test_a_killed_childs_message_is_handled_by_another(
    shop: Shop, start: Callable[..., subprocess.Popen[str]], server: Server
) -> None:
    process = start("--processes", "2", HEADRACE_URL=server.url)
    add(server, shop.stream, {"id": 1, "hold": True})
    ((pid, _),) = wait_until_sync(lambda: shop.starts(1), 30, what="the first start")
    os.kill(pid, signal.SIGKILL)
    wait_until_sync(lambda: shop.done() == {1}, 30, what="the second start")
    (_, first), (other, second) = shop.starts(1)
    assert other != pid
    assert (first, second) == (1, 2)
    process.send_signal(signal.SIGTERM)
    ran = ended(process)
    assert ran.code == 0
    assert "SIGKILL" in ran.err


@pytest.mark.servers("redis8")
def test_while_the_server_hangs_a_killed_child_is_replaced_and_signals_are_passed_on(
    shop: Shop, start: Callable[..., subprocess.Popen[str]], own_server: Callable[..., Server], server_key: str
) -> None:
    server = own_server(server_key)
    process = start("--json", "--processes", "2", HEADRACE_URL=server.url)
    add(server, shop.stream, {"id": 1, "hold": True})
    ((pid, _),) = wait_until_sync(lambda: shop.starts(1), 30, what="the first start")
    (other,) = wait_until_sync(lambda: children(process) - {pid}, 30, what="its sibling")
    server.pause()
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until_sync(lambda: children(process) - {pid, other}, 2, what="a new child")
        process.send_signal(signal.SIGTERM)
        wait_until_sync(lambda: not children(process) - {other}, 2, what="the new child was told to end")
    finally:
        server.cont()
    ran = ended(process)
    assert ran.code == 0, ran.err
    assert {"event": "owner.adopted", "deliveries": 1}.items() <= next(
        event for event in ran.lines if event["event"] == "owner.adopted"
    ).items()


def children(process: subprocess.Popen[str]) -> set[int]:
    """Those that live."""
    return set(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))


def test_without_any_url_parent_and_children_share_the_embedded_server(shop: Shop) -> None:
    lines = b"".join(b'{"id": %d}\n' % at for at in range(20))
    assert in_own_process("add", shop.stream, "-", stdin=lines).code == 0
    ran = in_own_process("run", "shop:app", "--burst", "--concurrency", "4")
    assert ran.code == 0, ran.err
    assert "4 at once" in ran.err
    assert ran.out == "a handler prints this\n" * 20
    assert shop.done() == set(range(20))


@pytest.mark.servers("valkey9")
def test_the_url_in_the_apps_code_wins_and_its_password_is_nowhere_to_be_seen(
    shop: Shop,
    start: Callable[..., subprocess.Popen[str]],
    own_server: Callable[..., Server],
    server_key: str,
    run_here: Callable[..., Ran],
) -> None:
    server = own_server(server_key, config={"requirepass": "s3cret"})
    shop.write(repr(server.url))
    process = start("--log-level", "debug", HEADRACE_URL="redis://127.0.0.1:1")
    add(server, shop.stream, {"id": 1, "hold": True})
    ((pid, _),) = wait_until_sync(lambda: shop.starts(1), 30, what="the first start")
    assert "s3cret" not in Path(f"/proc/{pid}/cmdline").read_text()
    os.kill(pid, signal.SIGKILL)  # handed back at once: so the parent speaks to the same server
    wait_until_sync(lambda: shop.done() == {1}, 30, what="the second start")
    process.send_signal(signal.SIGINT)
    ran = ended(process)
    assert ran.code == 0, ran.err
    assert "the code of shop:app" in ran.err
    assert "deliveries handed back" in ran.err
    assert "s3cret" not in ran.err + ran.out
    run_here("run", "shop:app", "--url", "redis://127.0.0.1:1").refused(2, "names its server in its code")


def test_a_child_that_begins_when_its_parent_has_just_died_ends_in_peace(shop: Shop) -> None:
    """It finds nobody to say hello to, has read nothing, and leaves no trace of an error."""
    hello_read, hello = os.pipe()
    leash, leash_write = os.pipe()
    os.close(hello_read)
    os.close(leash_write)
    with (shop.folder / "board").open("w+b") as board:
        fds = (board.fileno(), hello, leash)
        words = [f"--{name}={fd}" for name, fd in zip(("board", "hello", "leash"), fds, strict=True)]
        command = [sys.executable, "-m", "headrace.child", "shop:app", *words]
        env = {**os.environ, "HEADRACE_URL": "redis://127.0.0.1:1"}
        ran = subprocess.run(command, pass_fds=fds, env=env, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    os.close(hello)
    os.close(leash)
    assert "Traceback" not in ran.stderr
    assert "parent.died" in ran.stderr
    assert ran.returncode == 0


def test_what_cannot_run_is_told_before_anything_starts(shop: Shop, run_here: Callable[..., Ran]) -> None:
    run_here("run", "nope:app").refused(2, "no module 'nope'")
    run_here("run", "shop:ap").refused(2, "did you mean shop:app?")
    run_here("run", "shop:app", "--url", "redis://:s3cret@127.0.0.1:1").refused(1, "cannot be reached")
    (shop.folder / "empty.py").write_text("from headrace import App\napp = App()\n")
    run_here("run", "empty:app").refused(2, "has no handlers")


def test_an_error_in_the_users_own_code_shows_its_trace(shop: Shop) -> None:
    (shop.folder / "broken.py").write_text("import nowhere_to_be_found\n")
    broken = in_own_process("run", "broken:app")
    assert broken.code == 1
    assert "nowhere_to_be_found" in broken.err
    assert broken.err.splitlines()[-1].startswith("headrace: broken:app could not be loaded")
