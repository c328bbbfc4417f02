"""`headrace assignments` and `headrace announce`: streams that are owned whole and in order."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.announcements import Listed
from headrace.cli.ask import Limit, Session, asking
from headrace.cli.show import LONG, NUMBER, SHORT, TEXT, many
from headrace.errors import ConfigError

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The assignments, as in app.assignments(NAME).", show_default=False)
]
DataStream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream to be owned.", show_default=False)]
Info = Annotated[str | None, typer.Option("--info", metavar="JSON", help="What its owner should know.")]
Group = Annotated[str, typer.Option("--group", help="The owners' group.")]


@asking
async def assignments(session: Session, name: Name, group: Group = "owners", limit: Limit = 100) -> None:
    """Which streams are announced and not finished, who owns each, and how far it is."""
    rows = await session.app.assignments(name, group=group).listed()
    if session.show.as_json:
        owned = sum(bool(row.owner) for row in rows)
        told = {"name": name, "group": group, "total": len(rows), "owned": owned}
        session.show.json({**told, "assignments": [asdict(row) for row in rows[:limit]]})
        return
    if not rows:
        session.show.line(f"no assignments in {name}: announce one, as in headrace announce {name} STREAM")
        return
    owners = {row.owner for row in rows} - {""}
    columns = [
        ("stream", TEXT),
        ("owner", TEXT),
        ("epoch", NUMBER),
        ("position", TEXT),
        ("lag", NUMBER),
        ("info", LONG),
    ]
    title = f"{many(len(rows), 'assignment')} of {name}, {many(len(owners), 'owner')}"
    session.show.table(title, columns, map(_row, rows[:limit]))
    if len(rows) > limit:
        session.show.aside(f"the first {limit}; --limit shows more")


def _row(row: Listed) -> tuple[object, ...]:
    lag = "" if row.lag is None else f"{row.lag:,}"
    return (row.name, row.owner or "nobody", row.epoch, row.position or "-", lag, _short(row.info))


def _short(info: Any) -> str:
    text = "" if info in ({}, None) else json.dumps(info, ensure_ascii=False)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


@asking(create=True)
async def announce(
    session: Session, name: Name, stream: DataStream, info: Info = None, group: Group = "owners"
) -> None:
    """Announce a stream: exactly one owner gets it, until it is finished. Doing it again changes nothing."""
    announced = await session.app.assignments(name, group=group).announce(stream, _parsed(info))
    if session.show.as_json:
        session.show.json({"name": name, "stream": stream, "id": announced.id, "new": announced.new})
    elif announced.new:
        session.show.line(f"announced {stream} in {name} as {announced.id}")
    else:
        session.show.line(f"nothing to do: {stream} was announced in {name} before, as {announced.id}")


def _parsed(info: str | None) -> Any:
    if info is None:
        return None
    try:
        return json.loads(info)
    except ValueError as error:
        raise ConfigError(f"--info is not JSON ({error}): quote it for the shell, as in '{{\"tenant\": 1}}'") from error
