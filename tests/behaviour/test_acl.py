"""Three ACL profiles, as docs/acl.md has them; a missing right is one error that names it (SPEC 52)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import App, MissingRight
from tests.support.lives import operate, produce, work
from tests.support.servers import Server

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "src/headrace/redis/lua"


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
            {file.stem for file in LUA.glob("*.lua") if not file.stem.startswith("go_")} - {"add", "replay"}
        ),
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
