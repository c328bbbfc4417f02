"""What the driver does in a consumer group for one batch: end the last one, claim for the next, list what is held."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.errors import HeadraceError, NoGroup
from headrace.names import DEAD_LETTERS_SUFFIX, Keys
from headrace.policy import spread
from headrace.redis import commands, scripts
from headrace.redis.calls import Call, Wire
from headrace.redis.replies import PendingRow
from headrace.spark.arrivals import Arrivals
from headrace.spark.keyspace import find_streams, known_keys
from headrace.spark.loss import Loss
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import in_parts
from headrace.spark.taking import AT_ONCE, Overdue, Taking
from headrace.spark.tally import collect
from headrace.spark.told import starting_ids

ACK_PAGE: Final = 500
NOTHING: Final = Overdue(0, {})
DUE_MS: Final = 200  # how often what waits is looked at, as every worker does
T = TypeVar("T")

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
        self._ended = ""  # the owner that was ended last
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
        self._ask(found, lambda keys: scripts.ensure_group(keys, self._group, (told or {}).get(keys.stream, start)))

    def bound(self) -> None:
        """Remember how many messages are new now: no more belong to this run."""
        new: dict[Keys, int] = {}
        for keys, groups in self._ask(self._now(), commands.groups):
            lag = next((group.lag for group in groups if group.name == self._group), None)
            if lag is not None:
                new[keys] = lag
        unknown = [keys for keys in self._keys if keys not in new]
        new |= dict(self._ask(unknown, lambda keys: commands.length(keys.stream)))
        self._budget = {keys.stream: count for keys, count in new.items()}

    def _now(self) -> list[Keys]:
        """The streams. A pattern is looked up at intervals; in a stream that it finds later the group is made."""
        pattern = self._settings.pattern is not None
        if self._keys and not (pattern and time.monotonic() - self._looked_at >= self._settings.pattern_ms / 1000):
            return self._keys
        known = {keys.stream for keys in self._keys}
        later = [keys for keys in self._look_up() if pattern and keys.stream not in known]
        self._ask(later, lambda keys: scripts.ensure_group(keys, self._group))
        return self._keys

    def _look_up(self) -> list[Keys]:
        found = find_streams(self._link, self._settings)
        if self._settings.pattern is not None:  # dead letters are nobody's work, unless they are named
            found = tuple(stream for stream in found if not stream.endswith(DEAD_LETTERS_SUFFIX))
        self._keys, self._looked_at = known_keys(found, self._settings, self._skipped), time.monotonic()
        return self._keys

    # ── a batch that is committed ──

    def end(self, owner: str) -> None:
        """End the deliveries of a committed batch. Those that others took over meanwhile are theirs, and said so.

        It takes nothing more afterwards: at rest, when Spark asks for what follows it again and again, it is not looked
        for again.
        """
        if owner == self._ended:
            return
        for pages in self._pages(self._now(), owner):
            self._end_these(pages, owner)
        removals = self._ask(self._now(), lambda keys: scripts.remove_owner(keys, self._group, owner))
        if all(removal.kind != "pending" for _, removal in removals):
            self._ended = owner

    def _end_these(self, pages: Mapping[Keys, Sequence[PendingRow]], owner: str) -> None:
        pairs: dict[Keys, list[tuple[bytes, int]]] = {}
        for keys, rows in pages.items():
            self._bury_exhausted(keys, owner, rows)
            pairs[keys] = [(row.id.encode(), row.count) for row in rows if row.count <= self._settings.max_attempts]
        some = [keys for keys in pages if pairs[keys]]
        for keys, words in self._ask(some, lambda keys: scripts.ack(keys, self._group, owner, pairs[keys])):
            taken = sum(word.kind != "ok" for word in words)
            if taken:
                log.warning("spark.taken stream=%s group=%s owner=%s count=%d", keys.stream, self._group, owner, taken)

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
            for pages in self._pages(taking.found, taking.owner):
                for keys, rows in pages.items():
                    self._bury_exhausted(keys, taking.owner, rows)
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
        stays = self._ask(self._now(), lambda keys: scripts.stay(keys, self._group, "spark", "none"))
        told = {keys.stream: stay for keys, stay in stays}
        longest_ms = max([self._settings.lease_ms, *(one.lease_ms for one in told.values())])
        return longest_ms, {stream: one.server_ms for stream, one in told.items()}

    def _wait_for_the_dead(self) -> bool:
        """Whether it is time to look for dead owners once more: a run to an end does not leave out what they held, so
        it waits until it may."""
        if self._budget is None:
            return False
        lease_ms, _ = self._leases()
        idle = self._ask(self._now(), lambda keys: commands.pending_rows(keys, self._group, 1, min_idle_ms=lease_ms))
        if not any(rows for _, rows in idle):
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
        most, found = self._settings.max_attempts, defaultdict[str, list[str]](list)
        for pages in self._pages(self._now(), owner):
            for keys, rows in pages.items():
                found[keys.stream] += [row.id for row in rows if row.count <= most]
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

    def _pages(self, streams: Sequence[Keys], owner: str) -> Iterator[dict[Keys, list[PendingRow]]]:
        """What an owner holds: a page of each stream, then the next one of those that had a full page."""
        starts = dict.fromkeys(streams, "-")
        while starts:
            asked = self._ask(list(starts), partial(self._page, owner, starts))
            pages = {keys: page for keys, page in asked if page}
            yield pages
            starts = {keys: "(" + page[-1].id for keys, page in pages.items() if len(page) == ACK_PAGE}

    def _page(self, owner: str, starts: Mapping[Keys, str], keys: Keys) -> Call[list[PendingRow]]:
        return commands.pending_rows(keys, self._group, ACK_PAGE, start=starts[keys], owner=owner)

    def _ask(self, streams: Sequence[Keys], call_of: Callable[[Keys], Call[T]]) -> list[tuple[Keys, T]]:
        """Ask all streams, many in one write. One that a pattern found and that has gone gives no answer."""
        answers: list[tuple[Keys, T]] = []
        for some in in_parts(streams, AT_ONCE):
            for keys, answer in zip(some, self._link.pipe([call_of(keys) for keys in some]), strict=True):
                if isinstance(answer, NoGroup):
                    self._look_again(answer)
                elif isinstance(answer, HeadraceError):
                    raise answer
                else:
                    answers.append((keys, answer))
        return answers
