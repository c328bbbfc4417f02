"""What the driver does in a consumer group for one batch: ack the last one, claim for the next, list what is held."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from headrace.names import Keys, keys_of
from headrace.redis import commands, scripts
from headrace.redis.calls import Call, Wire, as_is
from headrace.redis.replies import PendingRow
from headrace.spark.source_options import SourceSettings

PAGE: Final = 200  # claimed at a time: their payloads pass through the driver, and are dropped there
ACK_PAGE: Final = 500

log = logging.getLogger("headrace.spark")


class Claims:
    """The group in all its streams. Everything may be repeated: what was claimed is held, whoever lost the answer."""

    def __init__(self, settings: SourceSettings) -> None:
        assert settings.group is not None
        self._settings = settings
        self._group = settings.group
        timeout_ms = settings.address.command_ms + settings.block_ms
        self._link = settings.address.server().sync_link("headrace-spark-driver", timeout_ms=timeout_ms)
        self._link.open()
        self._keys = [keys_of(stream) for stream in settings.streams]
        self._budget: dict[str, int] | None = None  # with AvailableNow: new messages left to this run

    def ensure_groups(self) -> None:
        """Make the groups that are not there. A new one begins where startingOffsets says."""
        for keys in self._keys:
            start = "0" if self._settings.starting == "earliest" else "$"
            if isinstance(self._settings.starting, dict):
                start = self._settings.starting[keys.stream]
            self._link.call(scripts.ensure_group(keys, self._group, start))

    def bound(self) -> None:
        """Remember how many messages are new now: no more belong to this run."""
        self._budget = {}
        for keys in self._keys:
            groups = {group.name: group for group in self._link.call(commands.groups(keys))}
            lag = groups[self._group].lag if self._group in groups else None
            self._budget[keys.stream] = self._link.call(commands.length(keys.stream)) if lag is None else lag

    def ack(self, owner: str) -> None:
        """A batch is committed: end its deliveries. Those that others took over meanwhile are theirs, and said so."""
        for keys in self._keys:
            for page in self._pages(keys, owner):
                pairs = [(row.id.encode(), row.count) for row in page]
                words = self._link.call(scripts.ack(keys, self._group, owner, pairs))
                taken = sum(word.kind != "ok" for word in words)
                if taken:
                    log.warning(
                        "spark.taken stream=%s group=%s owner=%s count=%d", keys.stream, self._group, owner, taken
                    )
            self._link.call(scripts.remove_owner(keys, self._group, owner))

    def take(self, owner: str, most: int) -> int:
        """Claim for a batch what is due, what dead owners left, and what is new. Answers how many it has in all."""
        held = self._count(owner)
        if not held:
            for keys in self._keys:
                held += self._take_old(keys, owner, most - held)
            held += self._take_new(owner, most - held, wait=not held)
            held -= self._bury_exhausted(owner)
        if not held:
            for keys in self._keys:  # a last attempt runs alone
                held = held or len(self._link.call(scripts.due(keys, self._group, owner, 1, alone=True)).taken)
        return held

    def held(self, owner: str) -> dict[str, list[str]]:
        """The ids of a batch by stream."""
        found = {keys.stream: [row.id for page in self._pages(keys, owner) for row in page] for keys in self._keys}
        return {stream: ids for stream, ids in found.items() if ids}

    def close(self) -> None:
        self._link.close()

    # ── steps ──

    def _count(self, owner: str) -> int:
        return sum(self._link.call(commands.pending(keys, self._group)).owners.get(owner, 0) for keys in self._keys)

    def _take_old(self, keys: Keys, owner: str, most: int) -> int:
        taken, cursor = 0, "-"
        while taken < most:
            some = self._link.call(scripts.due(keys, self._group, owner, min(PAGE, most - taken))).taken
            taken += len(some)
            if not some:
                break
        while taken < most:
            found = self._link.call(
                scripts.rescue(keys, self._group, owner, self._settings.lease_ms, cursor, min(PAGE, most - taken))
            )
            taken, cursor = taken + len(found.taken), found.cursor
            if cursor in ("-", "late"):
                break
        return taken

    def _take_new(self, owner: str, most: int, *, wait: bool) -> int:
        taken = 0
        while taken < most:
            keys = [one.stream for one in self._keys if self._budget is None or self._budget[one.stream] > 0]
            if not keys:
                break
            page = max(1, min(PAGE, (most - taken) // len(keys)))
            if self._budget is not None:
                page = min(page, *(self._budget[key] for key in keys))
            words: list[Wire] = ["XREADGROUP", "GROUP", self._group, owner, "COUNT", page]
            if wait and not taken and self._budget is None and self._settings.block_ms:
                words += ("BLOCK", self._settings.block_ms)
            words += ("STREAMS", *keys, *(">" for _ in keys))
            reply: Any = self._link.call(Call(tuple(words), as_is)) or []
            for key, entries in reply:
                taken += len(entries)
                if self._budget is not None:
                    self._budget[key.decode()] -= len(entries)
            if not reply:
                break
        return taken

    def _bury_exhausted(self, owner: str) -> int:
        """Deliveries that were tried too often go to the dead letters, as they would with a worker."""
        buried = 0
        for keys in self._keys:
            for page in self._pages(keys, owner):
                for row in page:
                    if row.count > self._settings.max_attempts:
                        extra = self._about(keys, row, owner)
                        self._link.call(scripts.bury(keys, self._group, owner, row.id.encode(), row.count, extra=extra))
                        buried += 1
        return buried

    def _about(self, keys: Keys, row: PendingRow, owner: str) -> dict[str, Wire]:
        now = self._link.call(commands.server_ms())
        return {
            "_original_id": row.id,
            "_stream": keys.stream,
            "_group": self._group,
            "_owner": owner,
            "_attempts": row.count - 1,
            "_first_ms": row.id.partition("-")[0],
            "_last_ms": now,
            "_error": "exhausted",
            "_reason": f"tried {row.count - 1} times: taken over by Spark, which allows {self._settings.max_attempts}",
        }

    def _pages(self, keys: Keys, owner: str) -> Iterator[list[PendingRow]]:
        start = "-"
        while True:
            page = self._link.call(commands.pending_rows(keys, self._group, ACK_PAGE, start=start, owner=owner))
            if not page:
                return
            yield page
            start = "(" + page[-1].id
