"""`headrace add`: one message from the command line, or one a line from stdin."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import typer

from headrace.cli.ask import Session, StreamName, asking
from headrace.cli.show import many
from headrace.errors import AddUnknown, ConfigError, HeadraceError, Verdict, classify
from headrace.partitioned import PartitionedStream
from headrace.producer import Addition
from headrace.stream import Stream

BLOCK = 1 << 16  # bytes read at a time
AnyStream = Stream[Any] | PartitionedStream[Any]
EXAMPLE = """'{"id": 1}'"""
SEEN = 40  # characters of a bad line in its error

Payload = Annotated[
    str, typer.Argument(metavar="JSON|-", help="The payload; - reads one a line from stdin.", show_default=False)
]
Key = Annotated[str | None, typer.Option("--key", help="Add once: the same key within 24 h adds nothing new.")]
KeyField = Annotated[
    str | None, typer.Option("--key-field", help="With -: the field of each JSON object that is its key.")
]
Header = Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; repeatable.")]


@asking(create=True)
async def add(
    session: Session,
    stream: StreamName,
    payload: Payload,
    key: Key = None,
    key_field: KeyField = None,
    header: Header = None,
) -> None:
    """Add a message to a stream, or with - one for each line of stdin."""
    headers = dict(_header(text) for text in header or ())
    cut = await session.partitions(stream)
    target = session.app.stream(stream) if cut is None else session.app.stream(stream, partitions=cut.count)
    if payload == "-":
        if key is not None:
            raise ConfigError("--key names one message: with - give --key-field, the field that holds each one's key")
        await _add_lines(session, target, key_field, headers)
        return
    if key_field is not None:
        raise ConfigError("--key-field is for lines from stdin: for one message give --key")
    added = await target.add(
        _parse(payload, "the payload", f"; quote it for the shell, as in {EXAMPLE}"), key=key, headers=headers or None
    )
    if session.show.as_json:
        session.show.json({"stream": stream, "id": added.id, "first": added.first})
    elif added.first:
        session.show.line(f"added {added.id} to {stream}")
    else:
        session.show.line(f"nothing added: this key was added to {stream} before, as {added.id}")


async def _add_lines(session: Session, stream: AnyStream, key_field: str | None, headers: dict[str, str]) -> None:
    """Add what stdin has to give, as it comes. When a line is bad, all before it are added and none after it."""
    added = first = number = 0
    with session.show.progress(f"adding to {stream.name}", _size(sys.stdin.fileno())) as bar:
        for lines in _lines(sys.stdin.buffer):
            chunk, bad = _additions(stream, lines, number, key_field, headers)
            try:
                answers = await session.app.producer.add_many(chunk)
            except AddUnknown as error:
                raise _stopped(error, added) from error
            number += len(lines)
            added, first = added + len(answers), first + sum(answer.first for answer in answers)
            bar.step(sum(map(len, lines)) + len(lines), many(added, "message"))
            if bad is not None:
                raise type(bad)(f"{bad}; {_before(added)}")
    if session.show.as_json:
        session.show.json({"stream": stream.name, "added": first, "duplicates": added - first})
    else:
        before = f", {added - first:,} were there before" if added > first else ""
        session.show.line(f"added {many(first, 'message')} to {stream.name}{before}")


def _before(number: int) -> str:
    return f"{many(number, 'message')} before it {'was' if number == 1 else 'were'} added"


def _stopped(error: AddUnknown, before: int) -> HeadraceError:
    """What to say when the server stopped answering, or refused, in the middle."""
    known = before + sum(1 for result in error.results if result is not None)
    cause = error.__cause__
    if isinstance(cause, HeadraceError) and classify(cause) is not Verdict.RETRY:
        return type(cause)(f"{cause}; {_before(known)}")
    unknown = sum(1 for result in error.results if result is None)
    return HeadraceError(
        f"{many(known, 'message')} added, and of the next {unknown:,} it is unknown ({cause or error}): "
        "repeat with --key-field, which adds each once"
    )


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def _size(file: int) -> int | None:
    """How much there is to read, if stdin is a file."""
    about = os.fstat(file)
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines as they come: whatever one read brought, so that a slow writer's line does not wait for the next."""
    begun: list[bytes] = []
    while data := source.read1(BLOCK):  # type: ignore[attr-defined]
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            yield b"".join([*begun, head]).split(b"\n")
            begun = []
        begun.append(rest)
    if any(begun):
        yield [b"".join(begun)]


def _additions(
    stream: AnyStream, lines: list[bytes], number: int, key_field: str | None, headers: dict[str, str]
) -> tuple[list[Addition], HeadraceError | None]:
    """A message for each line that is not empty, up to the first bad one, and what is wrong with that."""
    chunk: list[Addition] = []
    for line in lines:
        number += 1
        if not line.strip():
            continue
        try:
            payload = _parse(line, f"line {number}")
            key = None if key_field is None else _key(payload, key_field, number)
            chunk.append(stream.addition(payload, key, headers=headers or None))
        except HeadraceError as error:
            return chunk, error
    return chunk, None


def _parse(text: str | bytes, what: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        seen = text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")
        raise ConfigError(f"{what} is not JSON ({error}): {seen.strip()[:SEEN]!r}{hint}") from error


def _key(payload: Any, field: str, number: int) -> str:
    value = payload.get(field) if isinstance(payload, dict) else None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f"line {number} has no text or number in field {field!r}, which --key-field names")
    return str(value)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--header {text[:SEEN]!r} is no NAME=VALUE: write --header tenant=a")
    return name, value
