"""`headrace dlq`: dead letters listed, shown, replayed and purged (SPEC 28)."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from headrace.cli.ask import Limit, NotThere, Session, StreamName, asking, each_partition
from headrace.cli.letters import (
    FIELDS,
    Match,
    check_ids,
    id_order,
    letter_object,
    matching,
    pairs,
    print_letter,
    print_list,
)
from headrace.cli.show import Bar, exact, many
from headrace.deadletters import DeadLetter, DeadLetters, Replayed
from headrace.errors import ConfigError
from headrace.names import check_group, keys_of
from headrace.options import shown
from headrace.redis import commands

program = typer.Typer(help="Dead letters: list, show, replay, purge.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Of the dead letter, or of the message it was.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of dead letters.")]
Every = Annotated[bool, typer.Option("--all", help="All of them.")]
OfGroup = Annotated[str | None, typer.Option("--group", help="Only what this group buried.")]
Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        help=f"FIELD=VALUE is equal, FIELD~TEXT contains. Repeatable. Fields: {FIELDS}.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_BECAME = {
    "same": "replayed in place",
    "copy": "replayed as a copy, because the original was trimmed",
    "gone": "gone already",
    "pending": "left alone, because the group holds the message just now",
    "foreign": "left alone, because Headrace did not write it",
    "trimmed": "left alone, because nothing is left of the message",
}


@program.callback(invoke_without_command=True)
def dead_letters(context: typer.Context) -> None:
    """Dead letters: list, show, replay, purge."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@program.command("list")
@asking
@each_partition
async def list_letters(
    session: Session, stream: StreamName, group: OfGroup = None, where: Filter = None, limit: Limit = 100
) -> None:
    """The dead letters of a stream, oldest first: what failed, how often and why."""
    letters, match = await _letters(session, stream), matching(where)
    found: list[DeadLetter] = []
    async for letter in letters.each(group=group and check_group(group)):
        if match(letter):
            found.append(letter)
        if len(found) > limit:
            break
    if session.show.as_json:
        for letter in found[:limit]:
            session.show.json(letter_object(letter))
    else:
        print_list(session.show, stream, found[:limit], await letters.count())
    if len(found) > limit:
        session.show.aside(f"the first {limit}; --limit shows more")


@program.command("show")
@asking
async def show_letter(
    session: Session,
    stream: StreamName,
    id: Id,  # noqa: A002 - the word of the glossary
    message: Annotated[bool, typer.Option("--message", help="ID is the message's, not the dead letter's.")] = False,
) -> None:
    """One dead letter with all the fields the message had; by a message's id, one for each group that buried it."""
    (wanted,) = check_ids([id])
    letters = await _letters(session, stream)
    letter = None if message else await letters.show(wanted)
    found = [letter] if letter is not None else await letters.listed(original_id=wanted)
    if not found:
        raise NotThere(f"{shown(stream)} has no dead letter {wanted}: headrace dlq list shows those there are")
    for each in found:
        if session.show.as_json:
            fields = [[exact(name), exact(value)] for name, value in pairs(each)]
            session.show.json({**letter_object(each), "fields": fields})
        else:
            print_letter(session.show, each)


@program.command("replay")
@asking
@each_partition
async def replay(
    session: Session,
    stream: StreamName,
    ids: Ids = None,
    every: Every = False,
    group: OfGroup = None,
    where: Filter = None,
) -> None:
    """Give dead letters back to the group that buried them, as attempt 1."""
    match = _chosen(ids, every, group, where)
    letters = await _letters(session, stream)
    total, until = await letters.count(), await _newest(session, stream)
    became: Counter[str] = Counter()

    def told(one: Replayed) -> None:
        became[one.kind] += 1

    with session.show.progress("replaying", len(ids or ()) or total) as bar:
        # Only those that are there now: one that fails again at once must not be replayed for ever.
        await letters.replay(*ids or (), group=group, where=_counting(match, until, bar), told=told)
    done = became["same"] + became["copy"]
    if session.show.as_json:
        session.show.json({"stream": stream, "replayed": done, **dict.fromkeys(_BECAME, 0), **became})
        return
    session.show.line(f"replayed {many(done, 'dead letter')} of {stream}")
    for kind, number in became.items():
        if kind != "same":
            session.show.line(f"  {number:,} {_BECAME.get(kind, kind)}")


@program.command("purge")
@asking
@each_partition
async def purge(
    session: Session,
    stream: StreamName,
    ids: Ids = None,
    every: Every = False,
    group: OfGroup = None,
    where: Filter = None,
    yes: Yes = False,
) -> None:
    """Delete dead letters for good."""
    match = _chosen(ids, every, group, where)
    letters = await _letters(session, stream)
    total, until = await letters.count(), await _newest(session, stream)
    if total and not ids and not yes:
        _confirm(session, f"delete {many(total, 'dead letter')} of {stream}" if every else "delete what matches")
    with session.show.progress("purging", len(ids or ()) or total) as bar:
        purged = await letters.purge(*ids or (), group=group, where=_counting(match, until, bar))
    if session.show.as_json:
        session.show.json({"stream": stream, "purged": purged})
    else:
        session.show.line(f"purged {many(purged, 'dead letter')} of {stream}")


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────


async def _letters(session: Session, stream: str) -> DeadLetters:
    """The dead letters of a stream that exists, or whose dead letters do."""
    letters = session.app.stream(stream).dead_letters
    if not await letters.count():
        await session.groups(keys_of(stream))  # raises what is wrong with the stream
    return letters


def _chosen(ids: list[str] | None, every: bool, group: str | None, where: list[str] | None) -> Match:
    """What the words of a command choose. Refuses none, and two ways at once."""
    chosen = [name for name, given in (("ids", ids), ("--where", where), ("--group", group)) if given]
    if every and (ids or where):
        raise ConfigError(f"--all and {chosen[0]} contradict each other: give one of them")
    if ids and len(chosen) > 1:
        raise ConfigError(f"ids and {chosen[1]} contradict each other: give one of them")
    if not every and not chosen:
        raise ConfigError("which dead letters? give ids, --where, --group or --all")
    check_ids(ids or ())
    if group is not None:
        check_group(group)
    return matching(where)


async def _newest(session: Session, stream: str) -> tuple[int, int]:
    key = keys_of(stream).dead_letters
    page = await session.link.call(commands.entries(key, count=1, newest_first=True))
    return id_order(page[0][0].decode()) if page else (0, 0)


def _counting(match: Match, until: tuple[int, int], bar: Bar) -> Match:
    """The same test, up to the newest one that was there at the start, and the bar moves with it."""
    seen = 0

    def test(letter: DeadLetter) -> bool:
        nonlocal seen
        seen += 1
        bar.step(1, f"{seen:,}")
        return id_order(letter.id) <= until and match(letter)

    return test


def _confirm(session: Session, what: str) -> None:
    if session.show.as_json or not sys.stdin.isatty():
        raise ConfigError(f"this would {what} for good: add --yes")
    if not typer.confirm(f"{what} for good?", err=True):
        raise typer.Exit(1)
