"""Claims one batch in all streams of a group, page by page, so that it is claimed once and never grows afterwards."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.names import Keys
from headrace.redis import scripts
from headrace.redis.calls import Call
from headrace.redis.replies import TakenBatch
from headrace.redis.scripts import TakeBatch
from headrace.redis.synclink import SyncLink
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import in_parts

PAGE: Final = 1_000  # claimed by one script
AT_ONCE: Final = 250  # streams in one write


def owner_of(token: str, batch: int) -> str:
    """The owner of a batch. What it holds is what the batch reads."""
    return f"spark-{token}-{batch}"


class Overdue(NamedTuple):
    """After how long a delivery is taken over, 0: none is, and until when, by each stream's server (ADR 15)."""

    lease_ms: int
    until_ms: Mapping[str, int]


class Taking:
    """One question for a batch. Afterwards ``found`` names the streams in which it has something.

    Where nothing was found, ``last_ids`` says from where on messages are new to the group, and ``next_ms`` when
    something will be due.
    """

    def __init__(
        self, link: SyncLink, settings: SourceSettings, budget: dict[str, int] | None, token: str, batch: int
    ) -> None:
        assert settings.group is not None
        self._link = link
        self._settings = settings
        self._group = settings.group
        self._budget = budget
        self._wanted = TakeBatch(token, batch, max_attempts=settings.max_attempts, prefix=settings.prefix)
        self.owner = owner_of(token, batch)
        self._until_ms: Mapping[str, int] = {}
        self._found: dict[str, Keys] = {}
        self._alone: list[Keys] = []
        self.last_ids: dict[str, str] = {}
        self.next_ms: int | None = None

    @property
    def found(self) -> list[Keys]:
        return list(self._found.values())

    def run(self, streams: Sequence[Keys], most: int, overdue: Overdue) -> None:
        """Claim up to ``most``; with a lease also what was idle for so long."""
        self._until_ms = overdue.until_ms
        first = self._wanted.batch % max(1, len(streams))  # another stream begins each time a limit is short
        queue, left = [*streams[first:], *streams[:first]], most
        while queue and left > 0:
            queue, left = self._page(queue, left, overdue.lease_ms)
            self._wanted = replace(self._wanted, page=self._wanted.page + 1)
        if not self._found:
            self._take_alone()
        if self._found:
            self._close(streams)

    def _page(self, queue: Sequence[Keys], left: int, lease_ms: int) -> tuple[list[Keys], int]:
        """Ask every stream once. Answers those that gave all they were asked for, and what is left of the limit."""
        share, full, at = max(1, min(PAGE, left // len(queue))), [], 0
        wanted = replace(self._wanted, most=share, lease_ms=lease_ms)
        while at < len(queue) and left > 0:
            some = queue[at : at + min(AT_ONCE, left)]
            at += len(some)
            for keys, answer in zip(some, self._ask(some, wanted), strict=True):
                left -= answer.taken
                self._note(keys, answer)
                if answer.taken == share:
                    full.append(keys)
        return full, left

    def _note(self, keys: Keys, answer: TakenBatch) -> None:
        if answer.taken or answer.before:
            self._found[keys.stream] = keys
            if self._budget is not None:
                self._budget[keys.stream] = self._budget.get(keys.stream, 0) - answer.new
            return
        self.last_ids[keys.stream] = answer.last_id
        if answer.next_ms is not None:
            self.next_ms = answer.next_ms if self.next_ms is None else min(self.next_ms, answer.next_ms)
        if answer.alone:
            self._alone.append(keys)

    def _take_alone(self) -> None:
        """A last attempt after a crash runs in a batch of its own (DESIGN 11b)."""
        for keys in self._alone:
            (answer,) = self._ask([keys], replace(self._wanted, mode="alone"))
            if answer.taken:
                self._found[keys.stream] = keys
                return

    def _close(self, streams: Sequence[Keys]) -> None:
        """The batch has what it gets: mark it where it found nothing, and enter its owner where it has something."""
        rest = [keys for keys in streams if keys.stream not in self._found]
        for some in in_parts(rest, AT_ONCE):
            self._ask(some, replace(self._wanted, mode="mark"))
        about = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "kind": "spark"})
        lease_ms, token = self._settings.lease_ms, self._wanted.token
        for some in in_parts(self.found, AT_ONCE):
            self._pipe([scripts.join(keys, self._group, self.owner, token, lease_ms, about) for keys in some])

    def _ask(self, streams: Sequence[Keys], wanted: TakeBatch) -> list[TakenBatch]:
        calls: list[Call[Any]] = []
        for keys in streams:
            new = None if self._budget is None else max(0, self._budget.get(keys.stream, 0))
            until_ms = self._until_ms.get(keys.stream, 0)
            page = replace(wanted, most_new=new, until_ms=until_ms)
            calls.append(scripts.take_batch(keys, self._group, self.owner, page))
        return self._pipe(calls)

    def _pipe(self, calls: list[Call[Any]]) -> list[Any]:
        answers = self._link.pipe(calls)
        for answer in answers:
            if isinstance(answer, HeadraceError):
                raise answer
        return answers
