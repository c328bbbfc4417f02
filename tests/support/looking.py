"""Looking at a stream from outside, and putting it into the state a test starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tests.support.servers import Server


@dataclass(frozen=True, slots=True)
class Held:
    """One line of a pending list."""

    owner: str
    idle_ms: int
    count: int


def pending(server: Server, stream: str, group: str) -> dict[str, Held]:
    """What a group holds, by id. For what waits: group + "~wait"."""
    rows = cast(list[dict[str, Any]], server.sync().xpending_range(stream, group, "-", "+", 20_000))
    return {
        row["message_id"].decode(): Held(row["consumer"].decode(), row["time_since_delivered"], row["times_delivered"])
        for row in rows
    }


def waiting(server: Server, stream: str, group: str) -> dict[str, Held]:
    """What waits, and why: the owner's name there is the mark."""
    names = [row["name"] for row in server.sync().xinfo_groups(stream)]
    if f"{group}~wait".encode() not in names:
        return {}
    return pending(server, stream, f"{group}~wait")


def fill(server: Server, stream: str, count: int, payload: str = '{"n":%d}') -> list[str]:
    """Add messages quickly, as Headrace writes them."""
    pipe = server.sync().pipeline(transaction=False)
    for n in range(count):
        pipe.xadd(stream, {"payload": payload % n if "%d" in payload else payload})
    return [raw.decode() for raw in pipe.execute()]


def orphan(server: Server, stream: str, group: str, count: int, *, owner: str = "dead", idle_ms: int = 0) -> list[str]:
    """Let an owner that will never be heard of again read some messages; their idle clock starts at `idle_ms`."""
    client = server.sync()
    make_group(server, stream, group)
    reply = cast(list[Any], client.xreadgroup(group, owner, {stream: ">"}, count=count))
    ids = [entry[0].decode() for entry in reply[0][1]] if reply else []
    if idle_ms:
        age(server, stream, group, ids, idle_ms)
    return ids


def age(server: Server, stream: str, group: str, ids: list[str], idle_ms: int) -> None:
    """Set the idle clocks of deliveries, without a change of owner or count."""
    client = server.sync()
    for id_, held in pending(server, stream, group).items():
        if id_ in ids:
            client.xclaim(stream, group, held.owner, 0, [id_], idle=idle_ms, justid=True)


def make_group(server: Server, stream: str, group: str) -> None:
    names: list[bytes] = []
    if server.sync().exists(stream):
        names = [row["name"] for row in server.sync().xinfo_groups(stream)]
    if group.encode() not in names:
        server.sync().xgroup_create(stream, group, id="0", mkstream=True)
