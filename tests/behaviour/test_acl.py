"""The ACL profiles, as docs/acl.md has them; a missing right is one error that names it (SPEC 52)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Delivery, MissingRight, Room
from tests.support.lives import (
    operate,
    operate_parts,
    own,
    own_parts,
    produce,
    produce_parts,
    speak_go,
    work,
    work_parts,
)
from tests.support.looking import fill
from tests.support.servers import Server
from tests.support.wait import wait_until

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "src/headrace/redis/lua"
OWNING = {
    *("announce", "take", "begin", "pos_ack", "give_up", "finish", "finished"),
    *("raise", "beat", "inherit", "expired", "claim", "set_aside", "trimmed"),
}


def profile(role: str, stream: str, *, without: str = "") -> list[str]:
    """The words of a role's line in docs/acl.md, for one stream and its relatives."""
    line = re.search(rf"^ACL SETUSER orders-{role} (.*)$", (ROOT / "docs/acl.md").read_text(), re.MULTILINE)
    assert line is not None
    words = [word.replace("orders", stream) for word in line[1].split()]
    for other in (f"{stream}-once", f"{stream}-deleted"):
        words += [f"~{other}", f"~{{{other}}}:*"]
    return [word for word in words if word != without]


def grant(server: Server, words: list[str]) -> str:
    """Make the user on the server; the URL that logs in as it."""
    server.sync().execute_command("ACL", "SETUSER", "app", "reset", *words)
    return f"redis://app:secret@127.0.0.1:{server.port}"


@pytest.fixture
def guarded(own_server: OwnServer, server_key: str) -> Server:
    return own_server(server_key, tcp=True)


async def test_a_producers_rights_are_enough_to_add(guarded: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 52: producer."""
    app = make_app(grant(guarded, profile("producer", stream)))
    await produce(app, stream)
    await app.close()


async def test_a_workers_and_an_operators_rights_are_enough_for_a_whole_life(
    guarded: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 52: worker, operator."""
    app = make_app(grant(guarded, profile("worker", stream)))
    await work(guarded, app, stream)
    await app.close()
    app = make_app(grant(guarded, profile("operator", stream)))
    await operate(guarded, app, stream)
    await app.close()


async def test_an_owners_rights_are_enough_to_announce_own_hand_back_and_finish(
    guarded: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 52: owner."""
    app = make_app(grant(guarded, profile("owner", stream)))
    await own(guarded, app, stream)
    await app.close()


async def test_the_rights_for_partitions_are_enough_to_add_work_and_own_them(
    guarded: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 52, 51: producer, worker, owner in order, and an operator with the owner's keys."""
    await produce_parts(app := make_app(grant(guarded, profile("parts-producer", stream))), stream)
    await app.close()
    for name, role, live in (("a", "parts-worker", work_parts), ("b", "parts-owner", own_parts)):
        app = make_app(grant(guarded, profile(role, f"{stream}-{name}")))
        await live(guarded, app, f"{stream}-{name}")
        await app.close()
    words = [word for word in profile("operator", f"{stream}-b") if not word.startswith("~")]
    words += [word for word in profile("parts-owner", f"{stream}-b") if word.startswith("~")]
    app = make_app(grant(guarded, words))
    await operate_parts(app, f"{stream}-b")
    await app.close()


async def test_a_go_clients_rights_are_enough_for_the_protocol(guarded: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 52, 47."""
    app = make_app(grant(guarded, profile("go", stream)))
    await speak_go(guarded, app, stream)
    await app.close()


def test_partitions_need_no_commands_that_streams_do_not() -> None:
    """Other keys, the same work; and nobody who owns partitions has to delete them."""

    def commands(role: str) -> set[str]:
        return {word for word in profile(role, "orders") if word.startswith("+")}

    assert commands("parts-producer") == commands("producer") | {"+type"}
    assert commands("parts-worker") == commands("worker")
    agreeing = {"+get", "+set", "+type"}  # on how many there are
    assert commands("parts-owner") - agreeing < commands("owner") - {"+del", "+expire"}


async def test_a_producer_may_neither_read_nor_delete(guarded: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 52: a profile grants no more than its role needs."""
    app = make_app(grant(guarded, profile("producer", stream)))
    orders = app.stream(stream)
    await orders.add({})
    with pytest.raises(MissingRight):
        await orders.dead_letters.listed()
    with pytest.raises(MissingRight):
        await orders.backlog("billing")
    other = app.stream(f"{stream}-secret")
    with pytest.raises(MissingRight):
        await other.add({})
    await app.close()


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("right", ["+xreadgroup", "+xpending", "+zadd"])
async def test_a_missing_right_of_a_worker_is_one_error_that_names_it(
    guarded: Server, stream: str, make_app: MakeApp, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 52, 54: NOPERM: FATAL, at once, also from inside a script and from a thread."""
    app = make_app(grant(guarded, profile("worker", stream, without=right)))
    with pytest.raises(MissingRight) as caught:
        await work(guarded, app, stream)
    assert right.removeprefix("+") in str(caught.value).lower()
    assert "\n" not in str(caught.value)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) <= 3
    await app.close()


@pytest.mark.servers("redis8", "redis6")
@pytest.mark.parametrize("role", ["owner", "parts-owner"])
async def test_an_owner_that_may_not_read_fails_and_buries_nothing(
    guarded: Server, stream: str, make_app: MakeApp, role: str
) -> None:
    """SPEC 52, 54: a missing right is no failure of a handler: no attempt is spent for it."""
    tries: list[int] = []
    app = make_app(grant(guarded, profile(role, stream, without="+xread")))
    names = await _owning(app, stream, role, tries)
    for name in names:
        fill(guarded, name, 2)
    with pytest.raises(MissingRight, match=r"(?i)xread"):
        async with asyncio.timeout(10), app.worker() as worker:
            await worker.wait()
    await app.close()
    app = make_app(grant(guarded, profile(role, stream)))
    await _owning(app, stream, role, tries)
    async with app.worker():
        await wait_until(lambda: len(tries) == 2 * len(names), what="all of them handled")
    await app.close()
    assert set(tries) == {1}
    assert list(guarded.sync().scan_iter("*:dlq")) == []


async def _owning(app: App, stream: str, role: str, tries: list[int]) -> list[str]:
    """The data streams of an app that owns them, and notes which attempt each message is."""
    options: dict[str, Any] = {"lease": "400ms", "backoff": "10ms", "max_attempts": 2}
    if role == "parts-owner":
        orders = app.stream(stream, partitions=3)

        @orders.handler(group="billing", ordered=True, **options)
        async def handle(order: object, delivery: Delivery[Any]) -> None:
            tries.append(delivery.attempt)

        return list(orders.partitions.names)
    rooms = app.assignments(stream)

    @rooms.owner(**options)
    async def own(room: Room[Any]) -> None:
        async for message in room:
            tries.append(room.attempt)
            await room.ack(message)

    await rooms.announce(f"{stream}-room-1")
    return [f"{stream}-room-1"]


@pytest.mark.servers("redis8", "redis6")
async def test_a_missing_key_pattern_is_an_error_too(guarded: Server, stream: str, make_app: MakeApp) -> None:
    """SPEC 52."""
    words = [word for word in profile("worker", stream) if not word.startswith("~{")]
    app = make_app(grant(guarded, words))
    with pytest.raises(MissingRight, match="key"):
        await work(guarded, app, stream)
    await app.close()


@pytest.mark.servers("redis8", "redis6")
async def test_a_worker_does_without_the_rights_that_only_make_it_quicker(
    guarded: Server, stream: str, make_app: MakeApp
) -> None:
    """SPEC 52: INFO and CLIENT (but its name) may be forbidden."""
    spare = {"+info", "+xautoclaim", "+client|id", "+client|unblock", "+client|kill", "+client|list"}
    words = [word for word in profile("worker", stream) if word not in spare]
    app = make_app(grant(guarded, words))
    await work(guarded, app, stream)
    await app.close()


def test_the_profiles_grant_every_command_that_the_scripts_of_the_role_use() -> None:
    """SPEC 52: also those of rare paths, which no life above comes to."""
    scripts = {
        "producer": ("add",),
        "operator": ("replay", "levels"),
        "worker": tuple(
            {file.stem for file in LUA.glob("*.lua") if not file.stem.startswith("go_")} - {"add", "replay"} - OWNING
        ),
        "owner": (*OWNING, "park", "due", "bury", "mine", "join", "stay", "remove_owner", "ensure_group"),
        "parts-producer": ("add", "agree"),
        "parts-owner": (*(OWNING - {"finish"}), "park", "due", "bury", "mine", "join", "stay", "agree"),
        "go": ("go_hold", "go_done", "go_requeue", "go_lock", "go_unlock", "ensure_group"),
    }
    optional = {"xackdel"}  # granted where the server knows it
    assert "~lock:{orders}:* +del" in (ROOT / "docs" / "acl.md").read_text()  # for handlers that recover by requeue
    extra = {"hold": {"del"}, "leave": {"del"}, "requeue": {"del"}}
    for role, names in scripts.items():
        granted = {word[1:] for word in profile(role, "orders") if word.startswith("+")}
        for name in names:
            text = "\n".join(line.partition("--")[0] for line in (LUA / f"{name}.lua").read_text().splitlines())
            used = {word.lower() for word in re.findall(r"call\('(\w+)'", text)}
            used |= {word.lower() for word in re.findall(r"\{'(X[A-Z]+|Z[A-Z]+)',", text)}
            missing = {
                word for word in used if word not in granted and not any(g.startswith(word + "|") for g in granted)
            }
            assert missing <= optional | extra.get(name, set()), f"{role} lacks {missing} for {name}.lua"
