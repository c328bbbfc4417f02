"""Dead letters: looked at, counted, replayed and purged (SPEC 27, 28).

A dead letter is an entry of ``{stream}:dlq``: the original fields byte for byte, then how many words they are, then
why, when, who and how often (the layout stands on top of bury.lua). Replaying gives it back to the one group that
buried it: in place and with its old id while the message is still in the stream, else as a copy that other groups skip.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.fields import FIELD_BYTES, find_field
from headrace.names import Keys, is_group, waiting_group
from headrace.recorder import Recorder
from headrace.redis import commands, ownership, scripts
from headrace.redis.calls import Call
from headrace.redis.letters import Letter, open_letter
from headrace.redis.link import Link
from headrace.redis.ownership import NAME_FIELD

PAGE = 100  # dead letters read at a time

_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A buried message: what it was, and why it is here."""

    id: str  # of the dead letter itself
    original_id: str
    stream: str
    group: str
    owner: str
    attempts: int
    first_ms: int  # when the message was added
    last_ms: int  # when it was buried
    error: str  # type of the error, or who decided
    reason: str
    fields: list[bytes] = field(repr=False)  # the original, names and values in turn

    @property
    def payload(self) -> bytes | None:
        """The bytes of the payload field, if the message has one."""
        return find_field(self.fields, FIELD_BYTES)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one dead letter: ``same`` (in place), ``copy`` (the original was trimmed), ``gone`` (somebody else
    was quicker), ``pending`` (its group holds the message just now) or ``foreign`` (not written by Headrace)."""

    id: str
    kind: str
    message_id: str = ""


class DeadLetters:
    def __init__(self, keys: Keys, link: Link, recorder: Recorder, *, prefix: str = "_") -> None:
        self._keys = keys
        self._link = link
        self._recorder = recorder
        self._prefix = prefix

    async def count(self) -> int:
        return await self._link.call(commands.length(self._keys.dead_letters))

    async def listed(
        self, *, group: str | None = None, original_id: str | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """The oldest first. One message can have several, one for each group that buried it."""
        found: list[DeadLetter] = []
        async for letter in self.each(group=group):
            if original_id is not None and letter.original_id != original_id:
                continue
            if limit is not None and len(found) >= limit:
                break
            found.append(letter)
        return found

    async def each(self, *, group: str | None = None) -> AsyncIterator[DeadLetter]:
        """All that are there now, page by page, oldest first. What is buried meanwhile is not among them: a replayed
        message that fails at once would be replayed for ever."""
        start, last = "-", await self._link.call(commands.entries(self._keys.dead_letters, count=1, newest_first=True))
        while last:
            end = last[0][0].decode()
            page = await self._link.call(commands.entries(self._keys.dead_letters, start, end, PAGE))
            for raw_id, fields in page:
                letter = read_letter(raw_id, fields, self._prefix)
                if group is None or letter.group == group:
                    yield letter
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"

    async def show(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, by its own id. By the message's: ``listed(original_id=...)``."""
        page = await self._link.call(commands.entries(self._keys.dead_letters, letter_id, letter_id, 1))
        return read_letter(*page[0], self._prefix) if page else None

    async def replay(
        self,
        *ids: str,
        group: str | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        told: Callable[[Replayed], None] | None = None,
    ) -> list[Replayed]:
        """Give dead letters back to the group that buried them: those named, or all that ``group`` and ``where`` leave.

        Safe to repeat: a dead letter that was replayed already answers ``gone``.
        """
        done: list[Replayed] = []
        async for letter in self._chosen(ids, group, where):
            replayed = await self._replay(letter)
            done.append(replayed)
            if told is not None:
                told(replayed)
        return done

    async def purge(
        self, *ids: str, group: str | None = None, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Delete dead letters for good: those named, or all that ``group`` and ``where`` leave.

        With the dead letter of an assignment its name is free: it may be announced again.
        """
        purged = 0
        async for letter in self._chosen(ids, group, where):
            purged += await self._link.call(self._purge(letter))
        return purged

    # ── parked: exhausted while dead letters are off (SPEC 29) ──

    async def parked(self, group: str, limit: int = PAGE) -> list[str]:
        """Ids of the messages that a group without dead letters has given up. They stay in the stream."""
        rows = await self._link.call(commands.pending_rows(self._keys, waiting_group(group), limit, owner="parked"))
        return [row.id for row in rows]

    async def replay_parked(self, group: str, *ids: str) -> list[Replayed]:
        """Give parked messages back to their group: those named, or all that are parked now."""
        done: list[Replayed] = []
        for one in ids or await self.parked(group, limit=10_000):
            answer = await self._link.call(scripts.replay(self._keys, group, one, prefix=self._prefix))
            done.append(Replayed(one, answer.kind, answer.id))
        return done

    # ── inside ──

    async def _chosen(
        self, ids: tuple[str, ...], group: str | None, where: Callable[[DeadLetter], bool] | None
    ) -> AsyncIterator[DeadLetter]:
        if ids:
            for one in ids:
                letter = await self.show(one)
                if letter is None:
                    raise HeadraceError(
                        f"{self._keys.stream}: no dead letter {one}: list them with `headrace dlq list`"
                    )
                yield letter
            return
        async for letter in self.each(group=group):
            if where is None or where(letter):
                yield letter

    def _purge(self, letter: DeadLetter) -> Call[int]:
        name = find_field(letter.fields, NAME_FIELD.encode())
        if name is not None and _names_a_message(letter):
            return ownership.forget(self._keys, letter.id, name, letter.original_id)
        return commands.delete(self._keys.dead_letters, [letter.id])

    async def _replay(self, letter: DeadLetter) -> Replayed:
        if not _names_a_message(letter):
            return Replayed(letter.id, "foreign")
        answer = await self._link.call(
            scripts.replay(self._keys, letter.group, letter.original_id, letter.id, prefix=self._prefix)
        )
        if answer.kind in ("same", "copy"):
            self._recorder.count("replayed_total", 1, stream=self._keys.stream, group=letter.group)
        return Replayed(letter.id, answer.kind, answer.id)


def _names_a_message(letter: DeadLetter) -> bool:
    """Whether it says whose message it was. Anybody who may add to the dead letters can write anything there, and the
    group becomes part of a key."""
    return is_group(letter.group) and _ID.fullmatch(letter.original_id) is not None


def read_letter(raw_id: bytes, fields: list[bytes], prefix: str = "_") -> DeadLetter:
    """A dead letter for people. One that Headrace did not write shows its fields and nothing else."""
    letter = open_letter(fields, prefix) or Letter(fields, {})

    def word(name: str) -> str:
        return letter.about.get(name, b"").decode("utf-8", "replace")

    def number(name: str) -> int:
        return int(word(name)) if _NUMBER.fullmatch(word(name)) else 0

    return DeadLetter(
        id=raw_id.decode(),
        original_id=word("original_id"),
        stream=word("stream"),
        group=word("group"),
        owner=word("owner"),
        attempts=number("attempts"),
        first_ms=number("first_ms"),
        last_ms=number("last_ms"),
        error=word("error"),
        reason=word("reason"),
        fields=letter.original,
    )
