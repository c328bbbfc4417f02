"""Row 2 for owned streams: an owner is killed at every point of its own, and a sibling finishes its rooms, in order.

Every case has an announcement stream of its own, with rooms of every kind. Three of them are left by an owner that is
gone: one in mid-work, one that it had taken with a higher count than its announcement has, one finished by half. The
sibling comes when the owners are at work: those that live hand rooms on to it, those that died leave theirs.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import Any, Final

from chaos.crew import Worker
from chaos.inorder import judge
from chaos.stage import Stage
from chaos.verdict import Verdict
from headrace import points
from headrace.holding import place_of
from headrace.names import keys_of
from headrace.redis import ownership, scripts
from headrace.redis.connect import Server as Address
from tests.support.history import History
from tests.support.wait import wait_until

GROUP: Final = "owners"
PREFIX: Final = "owned"
GONE: Final = "gone"
OF_OWNERS: Final = ("announcements.", "holding.", "heartbeat.", "acquirer.", "takeover.", "positions.", "handover.")
OCCURRENCES: Final = 2
ONCE: Final = ("holding.joined", "holding.leaving")  # in a process's life
ALONE_S: Final = 1.2  # how long the owners are by themselves
LIFE_S: Final = 3.5  # and how long one may take to its point before it is stopped
DRAIN_S: Final = 30.0
BURIED: Final = "late"
ROOMS: Final[dict[str, list[str]]] = {  # what each message says
    "left": ["", "", "", "", "finish"],
    "stale": ["", "", "finish"],
    "half": [],
    "plain": ["", "raise", "", "announce", "", "", "finish"],
    "back": ["", "return", "", "aside", "", "finish"],
    # Announced by a message of another, perhaps twice: a finished room would be announced anew, a buried one is not.
    BURIED: ["", "", "grave"],
}
LEFT: Final = ("left", "stale", "half")


def names() -> list[str]:
    """The points of owners."""
    return [name for name in points.NAMES if name.startswith(OF_OWNERS)]


def cases(occurrences: int = OCCURRENCES) -> list[tuple[str, int]]:
    return [(name, at) for name in names() for at in range(1, occurrences + 1) if at == 1 or name not in ONCE]


def room(stream: str, kind: str) -> str:
    return f"{stream}-{kind}"


async def play(stage: Stage, wanted: list[tuple[str, int]]) -> Verdict:
    """All cases side by side. What they leave on the server is looked at and taken away."""
    streams = [f"{PREFIX}-{number}" for number in range(len(wanted))]
    await asyncio.to_thread(_prepare_all, stage, streams)
    owners = []
    for stream, case in zip(streams, wanted, strict=True):
        # A fixed name: what an earlier process of this name held is mine, and I have never seen it.
        name = {"owner": GONE} if case[0] == "acquirer.found" else {}
        owners.append(await _hire(stage, [stream], crash=case, app={"grace": "2s", **name}))
    await asyncio.sleep(ALONE_S)
    sibling = await _hire(stage, streams)
    await _until_dead(owners, LIFE_S - ALONE_S)
    late = await _drained(stage, streams)
    sibling.signal(signal.SIGTERM)
    await wait_until(lambda: not sibling.alive, 20.0, 0.02, what="the end of the owners' sibling")
    events = History(stage.folder).events()
    expected = {room(stream, kind): len(said) for stream in streams for kind, said in ROOMS.items()}
    verdict = judge(events, expected, [*late, *_left(stage, streams)])
    _clear(stage)
    return verdict


async def _hire(stage: Stage, streams: list[str], **settings: Any) -> Worker:
    worker = await stage.crew.hire(streams=[], owned=streams, **settings)
    worker.kept = False
    return worker


async def _until_dead(owners: list[Worker], life_s: float) -> None:
    with suppress(AssertionError):
        await wait_until(lambda: not any(owner.alive for owner in owners), life_s, 0.02)
    for owner in owners:
        owner.signal(signal.SIGTERM)
    await wait_until(lambda: not any(owner.alive for owner in owners), 20.0, 0.02, what="the owners' end")


# ── before ───────────────────────────────────────────────────────────────────────────────────────────


def _prepare_all(stage: Stage, streams: list[str]) -> None:
    link = Address(stage.topology.url).sync_link("headrace:producer")
    try:
        for stream in streams:
            _prepare(stage, stream, link)
    finally:
        link.close()


def _prepare(stage: Stage, stream: str, link: Any) -> None:
    client: Any = stage.topology.admin
    keys = keys_of(stream)
    link.call(scripts.ensure_group(keys, GROUP))
    for kind, said in ROOMS.items():
        for n, do in enumerate(said):
            payload = {"n": n, "do": do, "name": room(stream, BURIED)}
            client.xadd(room(stream, kind), {"payload": json.dumps(payload)})
    for kind in LEFT:
        link.call(ownership.announce(keys, room(stream, kind), b"null"))
    ((_, entries),) = client.xreadgroup(GROUP, GONE, {stream: ">"}, count=len(LEFT))
    ids = [id_ for id_, _ in entries]
    client.xclaim(stream, GROUP, GONE, 0, ids, idle=60_000, justid=True)
    _leave(stage, stream, dict(zip(LEFT, ids, strict=True)), link)
    for kind in ("plain", "back"):
        link.call(ownership.announce(keys, room(stream, kind), b"null"))


def _leave(stage: Stage, stream: str, ids: dict[str, bytes], link: Any) -> None:
    """What the owner that is gone had done."""
    place = {kind: place_of(stream, GROUP, room(stream, kind)) for kind in LEFT}
    took = link.call(ownership.take(place["left"], ids["left"], 1, GONE))
    client: Any = stage.topology.admin
    ((first, _),) = client.xrange(room(stream, "left"), count=1)
    link.call(ownership.pos_ack(place["left"], GONE, took.epoch, first, 1))
    for op, kind in (("room-start", ""), ("room-ack", "invoke"), ("room-ack", "ok")):
        stage.pen.note(op, kind, owner=GONE, name=room(stream, "left"), epoch=took.epoch, n=0)  # type: ignore[arg-type]
    link.call(ownership.take(place["stale"], ids["stale"], 5, GONE))
    took = link.call(ownership.take(place["half"], ids["half"], 1, GONE))
    link.call(ownership.finish(place["half"], GONE, took.epoch, ids["half"]))


# ── after ────────────────────────────────────────────────────────────────────────────────────────────


async def _drained(stage: Stage, streams: list[str]) -> list[str]:
    """Wait until every room is finished but the one that is buried. Answers where that did not happen."""
    client: Any = stage.topology.admin
    left = list(streams)
    for _ in range(int(DRAIN_S / 0.05)):
        left = [stream for stream in left if set(client.hkeys(keys_of(stream).names)) != _buried(stream)]
        if not left:
            return []
        await asyncio.sleep(0.05)
    return [f"{stream}: {sorted(client.hkeys(keys_of(stream).names))} are not finished" for stream in left]


def _buried(stream: str) -> set[bytes]:
    return {room(stream, BURIED).encode()}


def _left(stage: Stage, streams: list[str]) -> list[str]:
    """What should not be there when all owners have ended."""
    client: Any = stage.topology.admin
    found = []
    for stream in streams:
        keys = keys_of(stream)
        pending = client.xpending(stream, GROUP)["pending"]
        waiting = client.zcard(keys.due(GROUP))
        letters = [client.xlen(keys_of(name).dead_letters) for name in (stream, room(stream, "back"))]
        data = [kind for kind in ROOMS if kind != BURIED and client.exists(room(stream, kind))]
        if pending or waiting or data or letters != [1, 1]:
            found.append(f"{stream}: {pending} pending, {waiting} waiting, data of {data}, dead letters {letters}")
    return found


def _clear(stage: Stage) -> None:
    client: Any = stage.topology.admin
    for key in list(client.scan_iter(match=f"*{PREFIX}-*", count=1000)):
        client.delete(key)
