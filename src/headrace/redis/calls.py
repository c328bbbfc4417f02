"""Calls: what is sent to a server and how its answer is read, free of any transport.

A :class:`Call` holds the words of one command and the function that reads its raw reply (RESP2, bytes,
nothing decoded). The asyncio link and the blocking one of threads send the same calls, so nothing about the
server is written twice.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from headrace.options import printable

T = TypeVar("T")

Wire = bytes | str | int | float
"""What can be one word of a command."""

Entry = tuple[bytes, list[bytes], int, int]
"""(id, field names and values in turn, attempt that starts now, how long it had been idle in ms)."""

Waited = tuple[bytes, list[bytes], int, int, str]
"""The same for one that waited: how long it was past due in ms, and the mark that says why it waited."""

Rescued = tuple[bytes, list[bytes], int, int, str]
"""The same for one that was taken over, with the owner that had it."""


@dataclass(frozen=True, slots=True)
class Script:
    """One file of lua/, with its header: the server keeps it under the SHA-1 of its text."""

    name: str
    text: str
    sha: str


@functools.cache
def load(name: str) -> Script:
    """Read a script. The text is constant, so its digest is too."""
    text = resources.files("headrace.redis").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command. For a script, ``words`` is what follows the digest: number of keys, keys, arguments."""

    words: tuple[Wire, ...]
    parse: Callable[[Any], T]
    script: Script | None = None


Kind = Literal["ok", "gone", "trimmed", "taken", "duplicate"]


class Word(NamedTuple):
    """What became of one delivery.

    ok          it happened
    gone        it is not pending any more: an outcome has happened before, this one or another
    trimmed     its entry was deleted from the stream
    taken       another owner, or the same one with another attempt, has it: holder and count say which
    duplicate   acked, but its key had been done before
    """

    kind: Kind
    holder: str = ""
    count: int = 0  # type: ignore[assignment]  # tuple.count is nobody's word here
    id: str = ""  # of what was written: the dead letter


OK: Final = Word("ok")
_PLAIN: Final[dict[bytes, Word]] = {
    b"ok": OK,
    b"gone": Word("gone"),
    b"trimmed": Word("trimmed"),
    b"duplicate": Word("duplicate"),
}


def parse_word(raw: bytes) -> Word:
    """Read a script's word: "ok", "ok <id>", "gone", "trimmed", "duplicate" or "taken <holder> <count>"."""
    plain = _PLAIN.get(raw)
    if plain is not None:
        return plain
    kind, _, rest = raw.partition(b" ")
    if kind == b"ok":
        return Word("ok", id=rest.decode())
    if kind == b"taken":
        holder, _, count = rest.rpartition(b" ")
        return Word("taken", printable(holder.decode("utf-8", "backslashreplace")), int(count))
    raise ValueError(f"no word of ours: {raw[:80]!r}")


def parse_words(reply: int | list[bytes]) -> list[Word]:
    """Read a word for each delivery. A bare number says that so many are ok, which is nearly always."""
    if isinstance(reply, int):
        return [OK] * reply
    return [parse_word(raw) for raw in reply]


def flat(rows: Iterable[Iterable[Wire]]) -> Iterator[Wire]:
    """Pairs and triples as words, one after the other."""
    return chain.from_iterable(rows)


def as_is(reply: Any) -> Any:
    """Leave a reply as the server sent it."""
    return reply


def nothing(reply: Any) -> None:
    """The reply says no more than that it happened."""


def text(raw: bytes) -> str:
    """Names and ids as text. What others wrote may be anything: it is shown, not obeyed."""
    return raw.decode("utf-8", "backslashreplace")
