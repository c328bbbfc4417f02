"""Renews the leases of a batch while it runs, from a thread of the driver's source process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from headrace.errors import HeadraceError
from headrace.names import Keys
from headrace.redis import scripts
from headrace.spark.source_options import SourceSettings

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
            for keys in streams if owner else ():
                try:
                    self._renew(keys, owner)
                except HeadraceError as error:  # the next round tries again; a lease has three of them
                    log.warning("spark.renew.failed stream=%s owner=%s error=%s", keys.stream, owner, error)

    def _renew(self, keys: Keys, owner: str) -> None:
        """Its deliveries, and its entry among the owners, by which others learn of its lease."""
        token = owner.split("-")[1]
        start, held = "-", 0
        while start:
            kept = self._link.call(scripts.renew_owner(keys, self._group, owner, self._every_ms // 2, start))
            start, held = kept.start, held + kept.renewed
        if held:
            self._link.call(scripts.stay(keys, self._group, owner, token))
