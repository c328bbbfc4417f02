"""Renews the leases of a batch while it runs, from a thread of the driver's source process."""

from __future__ import annotations

import logging
import threading

from headrace.errors import HeadraceError
from headrace.names import keys_of
from headrace.redis import scripts
from headrace.spark.source_options import SourceSettings

log = logging.getLogger("headrace.spark")


class Renewal:
    """Renews what ``owner`` holds, three times a lease. Stopping twice, or before the start, is fine."""

    def __init__(self, settings: SourceSettings) -> None:
        assert settings.group is not None
        self._group = settings.group
        self._keys = [keys_of(stream) for stream in settings.streams]
        self._every_ms = max(50, settings.lease_ms // 3)
        self._link = settings.address.server().sync_link("headrace-spark-renewal")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-spark-renewal", daemon=True)
        self.owner = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._link.close()

    def _run(self) -> None:
        while not self._ended.wait(self._every_ms / 1000):
            try:
                self._renew(self.owner)
            except HeadraceError as error:  # the next round tries again; a lease has three of them
                log.warning("spark.renew.failed owner=%s error=%s", self.owner, error)

    def _renew(self, owner: str) -> None:
        for keys in self._keys if owner else ():
            start = "-"
            while start:
                start = self._link.call(scripts.renew_owner(keys, self._group, owner, self._every_ms // 2, start)).start
