"""`headrace pending`, `owners`, `groups`, `backlog`: what is going on in a stream."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.ask import GroupName, Limit, Session, StreamName, asking, each_partition
from headrace.cli.show import NUMBER, TEXT, many, span
from headrace.errors import NoGroup
from headrace.names import Keys, keys_of, waiting_group
from headrace.redis import commands, scripts
from headrace.redis.calls import Call
from headrace.redis.replies import Pending

ALONE = 10**15  # added to the due time of what must run alone (due.lua)
GONE_AFTER = 3  # leases an owner may be silent for before it counts as gone (join.lua)
LETTERS_COUNTED = 5_000  # dead letters are counted by group up to so many

_WHY = {"waiting": "again later", "crashed": "after a crash", "parked": "until replayed"}


# ── pending ──────────────────────────────────────────────────────────────────────────────────────────


@asking
@each_partition
async def pending(session: Session, stream: StreamName, group: GroupName, limit: Limit = 100) -> None:
    """Who holds which message, how long it has been idle and at which attempt; and what waits, why and until when."""
    keys = await session.group(stream, group)
    held = await session.link.call(commands.pending(keys, group))
    rows = await session.link.call(commands.pending_rows(keys, group, limit))
    all_waiting, waiting = await _waiting(session, keys, group, limit)
    if session.show.as_json:
        session.show.json(
            {
                "stream": stream,
                "group": group,
                "held_total": held.total,
                "held": [
                    {"id": row.id, "owner": row.owner, "idle_ms": row.idle_ms, "attempt": row.count} for row in rows
                ],
                "waiting_total": all_waiting.total,
                "waiting": waiting,
            }
        )
        return
    _show_held(session, held, rows)
    _show_waiting(session, all_waiting, waiting)
    if len(rows) < held.total or len(waiting) < all_waiting.total:
        session.show.aside(f"the first {limit} of each; --limit shows more")


def _show_held(session: Session, held: Pending, rows: list[Any]) -> None:
    if not held.total:
        session.show.line("nobody holds a message")
        return
    columns = [("id", TEXT), ("owner", TEXT), ("idle", NUMBER), ("attempt", NUMBER)]
    title = f"{many(held.total, 'message')} held by {many(len(held.owners), 'owner')}"
    session.show.table(title, columns, [(row.id, row.owner, span(row.idle_ms), row.count) for row in rows])


def _show_waiting(session: Session, total: Pending, rows: list[dict[str, Any]]) -> None:
    if not total.total:
        session.show.line("nothing waits")
        return
    columns = [("id", TEXT), ("why", TEXT), ("due", NUMBER), ("attempts", NUMBER), ("", TEXT)]
    title = f"{many(total.total, 'message')} waiting"
    session.show.table(
        title,
        columns,
        [
            (row["id"], row["why"], _due(row["due_in_ms"]), row["attempts"], "alone" if row["alone"] else "")
            for row in rows
        ],
    )


def _due(ms: int | None) -> str:
    if ms is None:
        return "never"
    return f"in {span(ms)}" if ms > 0 else "now"


async def _waiting(session: Session, keys: Keys, group: str, limit: int) -> tuple[Pending, list[dict[str, Any]]]:
    """What waits in the waiting group, and when each is due by the server's clock."""
    try:
        total = await session.link.call(commands.pending(keys, waiting_group(group)))
        rows = await session.link.call(commands.pending_rows(keys, waiting_group(group), limit))
    except NoGroup:
        return Pending(0, "", "", {}), []  # nothing has waited yet
    now_ms = await session.link.call(commands.server_ms())
    scores = await session.link.call(_due_times(keys, group, [row.id for row in rows])) if rows else []
    waiting = []
    for row, score in zip(rows, scores, strict=True):
        due_ms = None if score is None else score % ALONE
        waiting.append(
            {
                "id": row.id,
                "why": why(row.owner),
                "due_in_ms": None if due_ms is None else max(0, due_ms - now_ms),
                "attempts": row.count,
                "alone": score is not None and score >= ALONE,
            }
        )
    return total, waiting


def why(mark: str) -> str:
    """Why a message waits, from the mark it waits under."""
    if mark.startswith("released-"):
        return f"released {mark.removeprefix('released-')}×"
    return _WHY.get(mark, mark)


def _due_times(keys: Keys, group: str, ids: list[str]) -> Call[list[int | None]]:
    return Call(("ZMSCORE", keys.due(group), *ids), _scores)


def _scores(reply: list[bytes | None]) -> list[int | None]:
    return [None if score is None else int(float(score)) for score in reply]


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────

MaybeGroup = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="One group; else all of them.", show_default=False)
]


@asking
@each_partition
async def owners(session: Session, stream: StreamName, group: MaybeGroup = None) -> None:
    """The owners of each group: what they hold, their lease, when they were last heard of."""
    if group is None:
        keys = keys_of(stream)
        names = [info.name for info in await session.groups(keys)]
    else:
        keys, names = await session.group(stream, group), [group]
    now_ms = await session.link.call(commands.server_ms())
    found = [owner for name in names for owner in await _owners(session, keys, name, now_ms)]
    if session.show.as_json:
        session.show.json({"stream": stream, "owners": found})
    elif not found:
        session.show.line(f"no owners in {', '.join(names) or 'any group'}: no worker runs")
    else:
        columns = [("group", TEXT), ("owner", TEXT), ("holds", NUMBER), ("lease", NUMBER), ("seen", NUMBER), ("", TEXT)]
        session.show.table(f"{many(len(found), 'owner')} of {stream}", columns, map(_owner_row, found))


async def _owners(session: Session, keys: Keys, group: str, now_ms: int) -> list[dict[str, Any]]:
    """What the server knows of its consumers, joined with what they said of themselves."""
    known = {owner.name: owner for owner in await session.link.call(commands.owners(keys, group))}
    found = []
    for consumer in await session.link.call(commands.consumers(keys, group)):
        own = known.get(consumer.name)
        seen_ms = None if own is None else max(0, now_ms - own.seen_ms)
        found.append(
            {
                "group": group,
                "owner": consumer.name,
                "holds": consumer.pending,
                "idle_ms": consumer.idle_ms,
                "lease_ms": own.lease_ms if own else None,
                "seen_ms_ago": seen_ms,
                "alive": own is not None and seen_ms is not None and seen_ms < GONE_AFTER * own.lease_ms,
                "about": own.about if own else {},
            }
        )
    return found


def _owner_row(owner: dict[str, Any]) -> tuple[object, ...]:
    if owner["lease_ms"] is None:
        return (owner["group"], owner["owner"], f"{owner['holds']:,}", "", span(owner["idle_ms"]), "not ours")
    state = "" if owner["alive"] else "gone"
    return (
        owner["group"],
        owner["owner"],
        f"{owner['holds']:,}",
        span(owner["lease_ms"]),
        span(owner["seen_ms_ago"]),
        state,
    )


# ── groups and backlog ───────────────────────────────────────────────────────────────────────────────


@asking
@each_partition
async def groups(session: Session, stream: StreamName) -> None:
    """The groups of a stream: lag, pending, waiting, backlog and dead letters."""
    keys = keys_of(stream)
    infos = await session.groups(keys)
    length = await session.link.call(commands.length(stream))
    letters = await session.app.stream(stream).dead_letters.count()
    buried = await _buried(session, stream) if 0 < letters <= LETTERS_COUNTED else {}
    found = []
    for info in infos:
        levels = await session.link.call(scripts.levels(keys, info.name))
        dead = buried.get(info.name, 0) if letters <= LETTERS_COUNTED else None
        found.append(
            {"group": info.name, "owners": info.owners, **_levels(levels), "dead_letters": dead}
            | {"parked": levels.parked, "oldest_idle_ms": levels.oldest_idle_ms}
        )
    if session.show.as_json:
        session.show.json({"stream": stream, "messages": length, "dead_letters": letters, "groups": found})
        return
    names = ("owners", "lag", "pending", "waiting", "backlog", "parked", "dead", "oldest")
    title = f"{stream}: {many(length, 'message')}, {many(letters, 'dead letter')}"
    session.show.table(title, [("group", TEXT), *((name, NUMBER) for name in names)], map(_group_row, found))
    if not found:
        session.show.aside("no group yet: a worker creates its own when it starts")


def _group_row(row: dict[str, Any]) -> tuple[object, ...]:
    at_least = "" if row["lag_exact"] else "≥ "
    return (
        row["group"],
        row["owners"],
        f"{at_least}{row['lag']:,}",
        *(f"{row[name]:,}" for name in ("pending", "waiting")),
        f"{at_least}{row['backlog']:,}",
        f"{row['parked']:,}",
        "?" if row["dead_letters"] is None else f"{row['dead_letters']:,}",
        span(row["oldest_idle_ms"]) if row["pending"] else "",
    )


def _levels(levels: Any) -> dict[str, Any]:
    return {
        "lag": levels.lag,
        "lag_exact": levels.lag_exact,
        "pending": levels.pending,
        "waiting": levels.waiting,
        "backlog": levels.backlog,
    }


async def _buried(session: Session, stream: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    async for letter in session.app.stream(stream).dead_letters.each():
        counts[letter.group] = counts.get(letter.group, 0) + 1
    return counts


@asking
async def backlog(session: Session, stream: StreamName, group: GroupName) -> None:
    """What is left to do for a group: lag + pending + waiting. The number to scale workers by."""
    cut = await session.partitions(stream)
    parts = [await session.group(name, group) for name in ([stream] if cut is None else cut.names)]
    found = [_levels(await session.link.call(scripts.levels(keys, group))) for keys in parts]
    total = {name: sum(levels[name] for levels in found) for name in found[0]}
    if session.show.as_json:
        exact = all(levels["lag_exact"] for levels in found)
        session.show.json({"stream": stream, "group": group, **total, "lag_exact": exact})
    else:
        session.show.line(str(total["backlog"]))
