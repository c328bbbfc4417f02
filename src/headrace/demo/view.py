"""What the server says, for the story and the ledger: every figure is asked from it, none is remembered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.deadletters import DeadLetter, read_letter
from headrace.demo.worker import GROUP, SETTLED, STREAM, TOTALS
from headrace.names import keys_of
from headrace.redis import commands, scripts
from headrace.redis.calls import Call, as_is
from headrace.redis.connect import Server

PAGE = 500


class View:
    """A connection of its own, without an event loop."""

    def __init__(self, url: str) -> None:
        self._keys = keys_of(STREAM)
        self._link = Server(url).sync_link("headrace:demo")
        self._letters_after = "-"
        self.letters: list[DeadLetter] = []

    def close(self) -> None:
        self._link.close()

    def server(self) -> str:
        """What kind of server this is."""
        info = self._link.call(commands.info("server"))
        name = "valkey" if "valkey_version" in info else "redis"
        return f"{name} {info.get('valkey_version') or info.get('redis_version')}"

    def finished(self) -> int:
        """Payments that have come to an end: settled or buried."""
        settled: Call[int] = Call(("HLEN", SETTLED), int)
        return sum(self._link.pipe([settled, commands.length(self._keys.dead_letters)]))

    def settled_among(self, ids: Collection[str], keys: Mapping[str, str]) -> set[str]:
        """Those message ids whose payment is settled."""
        wanted = list(ids)
        values = self._link.call(Call(("HMGET", SETTLED, *(keys[id_] for id_ in wanted)), _list))
        return {id_ for id_, value in zip(wanted, values, strict=True) if value is not None}

    def new_letters(self) -> list[DeadLetter]:
        """Dead letters since the last call."""
        page = self._link.call(
            commands.entries(self._keys.dead_letters, start=self._letters_after, count=PAGE),
        )
        found = [read_letter(raw_id, fields) for raw_id, fields in page]
        if found:
            self._letters_after = f"({found[-1].id}"
            self.letters += found
        return found

    def backlog(self) -> int:
        """Unread, pending or waiting."""
        return self._link.call(scripts.levels(self._keys, GROUP)).backlog

    def settled(self) -> dict[str, int]:
        return self._numbers(SETTLED)

    def totals(self) -> dict[str, int]:
        return self._numbers(TOTALS)

    def _numbers(self, key: str) -> dict[str, int]:
        flat: list[bytes] = self._link.call(Call(("HGETALL", key), as_is))
        return {name.decode(): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def _list(reply: Any) -> list[bytes | None]:
    return list(reply)
