"""What the driver does in a consumer group for one batch: end the last one, claim for the next, list what is held."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.errors import NoGroup
from headrace.names import DEAD_LETTERS_SUFFIX, Keys
from headrace.policy import spread
from headrace.redis import commands, scripts
from headrace.redis.calls import Wire
from headrace.redis.replies import PendingRow
from headrace.spark.arrivals import Arrivals
from headrace.spark.keyspace import find_streams, known_keys
from headrace.spark.loss import Loss
from headrace.spark.source_options import SourceSettings
from headrace.spark.taking import Overdue, Taking
from headrace.spark.tally import collect
from headrace.spark.told import starting_ids

ACK_PAGE: Final = 500
NOTHING: Final = Overdue(0, {})
DUE_MS: Final = 200  # how often what waits is looked at, as every worker does

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
        self._arrivals = Arrivals(settings.address, self._link)
        self._keys: list[Keys] = []
        self._looked_at = 0.0
        self._budget: dict[str, int] | None = None  # with AvailableNow: new messages left to this run
        self._rescue_at = 0.0
        self._refusals: set[str] = set()  # told already
        self._skipped: set[str] = set()  # streams under the pattern whose names are none of ours

    @property
    def streams(self) -> list[Keys]:
        """The streams as they were last looked up."""
        return self._keys

    def close(self) -> None:
        self._arrivals.close()
        self._link.close()

    # ── groups ──

    def ensure_groups(self) -> None:
        """Make the groups that are not there. A new one begins where startingOffsets says."""
        found = self._look_up()
        told = starting_ids(self._settings, [keys.stream for keys in found])
        start = "0" if self._settings.starting == "earliest" or told is not None else "$"
        for keys in found:
            self._link.call(scripts.ensure_group(keys, self._group, (told or {}).get(keys.stream, start)))

    def bound(self) -> None:
        """Remember how many messages are new now: no more belong to this run."""
        self._budget = {}
        for keys in self._now():
            groups = {group.name: group for group in self._link.call(commands.groups(keys))}
            lag = groups[self._group].lag if self._group in groups else None
            self._budget[keys.stream] = self._link.call(commands.length(keys.stream)) if lag is None else lag

    def _now(self) -> list[Keys]:
        """The streams. A pattern is looked up at intervals; in a stream that it finds later the group is made."""
        pattern = self._settings.pattern is not None
        if self._keys and not (pattern and time.monotonic() - self._looked_at >= self._settings.pattern_ms / 1000):
            return self._keys
        known = {keys.stream for keys in self._keys}
        for keys in self._look_up():
            if pattern and keys.stream not in known:
                self._link.call(scripts.ensure_group(keys, self._group))
        return self._keys

    def _look_up(self) -> list[Keys]:
        found = find_streams(self._link, self._settings)
        if self._settings.pattern is not None:  # dead letters are nobody's work, unless they are named
            found = tuple(stream for stream in found if not stream.endswith(DEAD_LETTERS_SUFFIX))
        self._keys, self._looked_at = known_keys(found, self._settings, self._skipped), time.monotonic()
        return self._keys

    # ── a batch that is committed ──

    def end(self, owner: str) -> None:
        """End the deliveries of a committed batch. Those that others took over meanwhile are theirs, and said so."""
        for keys in self._now():
            try:
                self._end_in(keys, owner)
            except NoGroup as error:
                self._look_again(error)

    def _end_in(self, keys: Keys, owner: str) -> None:
        for page in self._pages(keys, owner):
            self._bury_exhausted(keys, owner, page)
            pairs = [(row.id.encode(), row.count) for row in page if row.count <= self._settings.max_attempts]
            words = self._link.call(scripts.ack(keys, self._group, owner, pairs)) if pairs else []
            taken = sum(word.kind != "ok" for word in words)
            if taken:
                log.warning("spark.taken stream=%s group=%s owner=%s count=%d", keys.stream, self._group, owner, taken)
        self._link.call(scripts.remove_owner(keys, self._group, owner))

    def lost(self, owner: str) -> dict[str, list[Loss]]:
        """What the tasks of a committed batch have lost, by stream."""
        return collect(self._link, owner, [keys.stream for keys in self._now()], self._refusals)

    # ── the next batch ──

    def take(self, token: str, batch: int, most: int) -> bool:
        """Claim for a batch what is due, what dead owners left and what is new. False: there is nothing yet.

        A batch that was claimed before, by this driver or another, stays as it is, even if nothing is left of it.
        """
        try:
            taking = self._claimed(token, batch, most)
            if not taking.found and (self._news(taking) or self._wait_for_the_dead()):
                taking = self._claimed(token, batch, most)
            for keys in taking.found:
                for page in self._pages(keys, taking.owner):
                    self._bury_exhausted(keys, taking.owner, page)
        except NoGroup as error:
            self._look_again(error)
            return False
        return bool(taking.found)

    def _look_again(self, error: NoGroup) -> None:
        """A stream that a pattern found may go: the pattern is looked up again. One that was named may not."""
        if self._settings.pattern is None:
            raise error
        log.warning("spark.gone group=%s error=%s", self._group, error)
        self._looked_at = 0.0

    def _claimed(self, token: str, batch: int, most: int) -> Taking:
        taking = Taking(self._link, self._settings, self._budget, token, batch)
        taking.run(self._now(), most, self._overdue())
        return taking

    def _overdue(self) -> Overdue:
        """What the dead left is taken over when it is time to look for it, four times a lease.

        Not within half a lease of a connect, or of an answer that came late: a server that was away counted its absence
        as idle time, and those who are alive must get to renew first (ADR 3, 15).
        """
        begun = time.monotonic()
        if begun < max(self._rescue_at, self._rescue_from):
            return NOTHING
        lease_ms, server_ms = self._leases()
        now = time.monotonic()
        if (now - begun) * 1000 > lease_ms / 4:
            self._rescue_at = now + lease_ms / 2000
            return NOTHING
        self._rescue_at = now + spread(lease_ms // 4, random.random()) / 1000
        return Overdue(lease_ms, {stream: ms + lease_ms // 4 for stream, ms in server_ms.items()})

    @property
    def _rescue_from(self) -> float:
        return self._link.connected_at + self._settings.lease_ms / 2000

    def _leases(self) -> tuple[int, dict[str, int]]:
        """The group's longest lease, and what time it is at each stream."""
        told = {keys.stream: self._link.call(scripts.stay(keys, self._group, "spark", "none")) for keys in self._now()}
        longest_ms = max([self._settings.lease_ms, *(one.lease_ms for one in told.values())])
        return longest_ms, {stream: one.server_ms for stream, one in told.items()}

    def _wait_for_the_dead(self) -> bool:
        """Whether it is time to look for dead owners once more: a run to an end does not leave out what they held, so
        it waits until it may."""
        if self._budget is None:
            return False
        lease_ms, _ = self._leases()
        idle = (commands.pending_rows(keys, self._group, 1, min_idle_ms=lease_ms) for keys in self._now())
        if not any(self._link.call(one) for one in idle):
            return False
        time.sleep(max(0.0, self._rescue_from - time.monotonic()))
        self._rescue_at = 0.0
        return True

    def _news(self, taking: Taking) -> bool:
        """Wait inside the server for new messages, no longer than until something is due."""
        if self._budget is not None or not self._settings.block_ms or not taking.last_ids:
            return False
        wait_ms = max(1, min(self._settings.block_ms, DUE_MS if taking.next_ms is None else taking.next_ms))
        return bool(self._arrivals.wait(taking.last_ids, wait_ms))

    def held(self, owner: str) -> dict[str, list[str]]:
        """The ids of a batch by stream, without those that were tried too often."""
        most, found = self._settings.max_attempts, dict[str, list[str]]()
        for keys in self._now():
            try:
                found[keys.stream] = [row.id for page in self._pages(keys, owner) for row in page if row.count <= most]
            except NoGroup as error:
                self._look_again(error)
        return {stream: ids for stream, ids in found.items() if ids}

    # ── steps ──

    def _bury_exhausted(self, keys: Keys, owner: str, rows: Sequence[PendingRow]) -> None:
        """Deliveries that were tried too often go to the dead letters, as they would with a worker."""
        for row in rows:
            if row.count > self._settings.max_attempts:
                extra = self._about(keys, row, owner)
                call = scripts.bury(
                    *(keys, self._group, owner, row.id.encode(), row.count), extra=extra, prefix=self._settings.prefix
                )
                self._link.call(call)
                log.info("message.buried stream=%s group=%s id=%s", keys.stream, self._group, row.id)

    def _about(self, keys: Keys, row: PendingRow, owner: str) -> dict[str, Wire]:
        starts, limit = row.count - 1, self._settings.max_attempts
        about: dict[str, Wire] = {
            "original_id": row.id,
            "stream": keys.stream,
            "group": self._group,
            "owner": owner,
            "attempts": starts,
            "first_ms": row.id.partition("-")[0],
            "last_ms": self._link.call(commands.server_ms().aimed(keys.stream)),
            "error": "Exhausted",
            "reason": f"its owner died or hung during attempt {starts} of {limit}",
        }
        return {self._settings.prefix + name: value for name, value in about.items()}

    def _pages(self, keys: Keys, owner: str) -> Iterator[list[PendingRow]]:
        start = "-"
        while True:
            page = self._link.call(commands.pending_rows(keys, self._group, ACK_PAGE, start=start, owner=owner))
            if not page:
                return
            yield page
            start = "(" + page[-1].id
