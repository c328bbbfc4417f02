"""Calls: what is sent to a server and how its answer is read, free of any transport.

A :class:`Call` holds the words of one command and the function that reads its raw reply (RESP2, bytes,
nothing decoded). The asyncio link and the blocking one of threads send the same calls, so nothing about the
server is written twice.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

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
    at: Any = None  # a key or a node: where it has to be sent in a cluster although it holds no key

    @property
    def key(self) -> Wire | None:
        """The key that decides where it is sent in a cluster; None if it goes with its neighbours, or anywhere."""
        return self.words[1] if self.script is not None else key_of(self.words)

    def aimed(self, at: Any) -> Call[T]:
        """The same call, sent to the server that holds a key, or to one node."""
        return replace(self, at=at)


_KEYLESS: Final = frozenset(
    ("ACL", "ASKING", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "EXEC", "INFO", "MULTI", "PING")
) | {"PSUBSCRIBE", "ROLE", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF"}
_KEY_SECOND: Final = frozenset(("XINFO", "XGROUP", "OBJECT"))


def key_of(words: tuple[Wire, ...]) -> Wire | None:
    """The first key of a plain command.

    >>> key_of(("XADD", "orders", "*")), key_of(("XINFO", "STREAM", "orders")), key_of(("PING",))
    ('orders', 'orders', None)
    """
    name = words[0]
    if name in _KEYLESS or len(words) < 2:
        return None
    if name in ("XREADGROUP", "XREAD"):
        return words[words.index("STREAMS") + 1]
    if name in _KEY_SECOND:
        return words[2]
    if name in ("EVAL", "EVALSHA"):
        return words[3] if len(words) > 3 and str(words[2]).isdigit() and int(words[2]) else None
    return words[1]


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
        return Word("taken", holder.decode("utf-8", "replace"), int(count))
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
