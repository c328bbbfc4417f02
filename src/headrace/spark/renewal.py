"""Renews the leases of a batch while it runs, from a thread of the driver's source process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.names import Keys
from headrace.redis import scripts
from headrace.redis.calls import Call
from headrace.spark.source_options import SourceSettings
from headrace.spark.state import in_parts
from headrace.spark.taking import AT_ONCE

T = TypeVar("T")
log = logging.getLogger("headrace.spark")


class Renewal:
    """Renews what one owner holds, three times a lease. Stopping twice, or before the start, is fine."""

    def __init__(self, settings: SourceSettings) -> None:
        assert settings.group is not None
        self._group = settings.group
        self._every_ms = max(50, settings.lease_ms // 3)
        self._link = settings.address.server().sync_link("headrace-spark-renewal")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-spark-renewal", daemon=True)
        self._kept: tuple[str, tuple[Keys, ...]] = ("", ())

    def keep(self, owner: str, streams: Iterable[Keys]) -> None:
        """Renew this owner from now on, in these streams, and no other."""
        self._kept = (owner, tuple(streams))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._link.close()

    def _run(self) -> None:
        while not self._ended.wait(self._every_ms / 1000):
            owner, streams = self._kept
            if owner:
                try:
                    self._renew(streams, owner)
                except HeadraceError as error:  # the next round tries again; a lease has three of them
                    log.warning("spark.renew.failed owner=%s error=%s", owner, error)

    def _renew(self, streams: Sequence[Keys], owner: str) -> None:
        """Its deliveries, and its entry among the owners, by which others learn of its lease."""
        token, starts, held = owner.split("-")[1], dict.fromkeys(streams, "-"), set[Keys]()
        while starts:
            calls = {
                keys: scripts.renew_owner(keys, self._group, owner, self._every_ms // 2, start)
                for keys, start in starts.items()
            }
            kept = dict(self._ask(calls, owner))
            held |= {keys for keys, page in kept.items() if page.renewed}
            starts = {keys: page.start for keys, page in kept.items() if page.start}
        self._ask({keys: scripts.stay(keys, self._group, owner, token) for keys in held}, owner)

    def _ask(self, calls: Mapping[Keys, Call[T]], owner: str) -> list[tuple[Keys, T]]:
        """Many in one write. One that fails holds up no other."""
        answers: list[tuple[Keys, T]] = []
        for some in in_parts(calls, AT_ONCE):
            for keys, answer in zip(some, self._link.pipe([calls[keys] for keys in some]), strict=True):
                if isinstance(answer, HeadraceError):
                    log.warning("spark.renew.failed stream=%s owner=%s error=%s", keys.stream, owner, answer)
                else:
                    answers.append((keys, answer))
        return answers
