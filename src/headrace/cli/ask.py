"""What all commands that talk to a server have in common: --url, --json, --debug, a session, and its end.

    @program.command()
    @asking
    async def groups(session: Session, stream: StreamName) -> None: ...

`asking` makes a plain command out of it: the session is opened and closed around the call, and the three options
follow the command's own.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headrace.app import App
from headrace.cli.show import Show
from headrace.cli.where import Where, located
from headrace.errors import CommandRefused, ConfigError, HeadraceError, NoGroup, Unavailable
from headrace.names import WAITING_SUFFIX, Keys, check_group, keys_of
from headrace.options import did_you_mean, shown
from headrace.partitions import Partitions
from headrace.redis import commands
from headrace.redis.link import Link
from headrace.redis.replies import GroupInfo

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server: redis://, rediss:// or unix://. Else HEADRACE_URL or headrace.toml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.", show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Show at most so many.")]


class NotThere(HeadraceError):
    """The stream, group or dead letter somebody asked for is not on this server."""


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command: the server it talks to and how it answers."""

    where: Where
    app: App
    show: Show

    @property
    def link(self) -> Link:
        return self.app.link

    async def partitions(self, stream: str) -> Partitions | None:
        """Into what a stream is cut, if it is."""
        (count,) = await self.link.call(commands.values([keys_of(stream).partitions]))
        return None if count is None else Partitions(stream, int(count))

    async def groups(self, keys: Keys) -> list[GroupInfo]:
        """The stream's groups, waiting ones left out. Raises NotThere and WrongType."""
        try:
            found = await self.link.call(commands.groups(keys))
        except CommandRefused as error:
            if "no such key" not in str(error):
                raise
            raise NotThere(
                f"there is no stream {shown(keys.stream)} on {self.where.masked}: check its name, or add a message"
            ) from error
        return [group for group in found if not group.name.endswith(WAITING_SUFFIX)]

    async def group(self, stream: str, group: str) -> Keys:
        """The keys of a stream that has this group. Raises NotThere, with the group that was meant."""
        keys = keys_of(stream)
        check_group(group)
        names = [info.name for info in await self.groups(keys)]
        if group not in names:
            meant = did_you_mean(group, names) if names else "start a worker, which creates it"
            raise NotThere(f"stream {shown(stream)} has no group {shown(group)}: {meant}")
        return keys


def each_partition(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A partitioned stream is asked for partition by partition: each answers for itself, one JSON object a line."""

    @functools.wraps(function)
    async def command(session: Session, stream: str, **words: Any) -> None:
        cut = await session.partitions(stream)
        if cut is not None and words.get("ids"):
            raise ConfigError(
                f"{shown(stream)} has {cut.count} partitions, and an id belongs to one of them: "
                f"name it, as in {cut.names[0]}"
            )
        for name in [stream] if cut is None else cut.names:
            await function(session, name, **words)

    return command


def asking(function: Callable[..., Awaitable[Any]] | None = None, *, create: bool = False) -> Callable[..., Any]:
    """Make a command of an async function whose first parameter is the session. See the module's example.

    ``create``: without any URL the embedded server of this directory is started, even if there was none.
    """
    if function is None:
        return functools.partial(asking, create=create)
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(*, url: str | None, as_json: bool, debug: bool, **words: Any) -> None:
        try:
            with located(url, create=create) as where:
                asyncio.run(_ask(function, where, Show(as_json=as_json), words))
        except HeadraceError:
            if debug:
                traceback.print_exc()
            raise

    # typer reads the signature: it is the function's own without the session, and the three options.
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*(_by_name(each) for each in own), *_SHARED])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*own, *_SHARED)}
    return command


async def _ask(function: Callable[..., Awaitable[Any]], where: Where, show: Show, words: dict[str, Any]) -> None:
    async with App(where.url) as app:
        try:
            await app.link.open()  # known at once: an add with a key would try for half a minute
        except Unavailable as error:
            raise unreachable(where, error) from error
        try:
            await function(Session(where, app, show), **words)
        except NoGroup as error:
            raise NotThere(str(error)) from error


def unreachable(where: Where, error: Unavailable) -> Unavailable:
    """A worker backs off and tries again; a command ends, so it says something else."""
    why = str(error).partition(": the server cannot be reached")[0]
    return Unavailable(f"{where.masked} cannot be reached ({why}): check that it runs, and the URL in {where.source}")


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _shared(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SHARED = (_shared("url", Url, None), _shared("as_json", AsJson, False), _shared("debug", Debug, False))
