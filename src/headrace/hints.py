"""Keyspace notifications as hints: the server says that a key ran out, and somebody looks earlier (DESIGN 3).

One thread with its own connection. Notifications that are off, forbidden or lost change nothing but the time it takes:
what they bring forward is done by scans anyway. Headrace never changes the server's configuration to get them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, MissingRight, Verdict, classify
from headrace.redis import commands
from headrace.redis.calls import Call, as_is
from headrace.redis.connect import Server
from headrace.redis.faults import translate

log = logging.getLogger("headrace")

LOOK_S = 0.2  # how soon the thread notices that it is to stop
AGAIN_S = 0.5  # after a connection was lost


class Hints:
    """Tells ``on_expired(key)``, from its own thread, for every key of this database that runs out."""

    def __init__(self, server: Server, owner: str, on_expired: Callable[[str], None]) -> None:
        self._server = server
        self._owner = owner
        self._on_expired = on_expired
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-hints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Stopping twice, or before starting, is fine."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def reset_topology(self) -> None:
        """One node has no map to read again."""

    def _run(self) -> None:
        while not self._stop.is_set():
            link = self._server.sync_link(f"headrace:{self._owner}:hints")
            try:
                if not self._is_on(link):
                    log.info("hints.off: the server sends no keyspace notifications; recovery goes by its scans")
                    return
                link.call(Call(("PSUBSCRIBE", f"__keyevent@{self._server.endpoint.db}__:expired"), as_is))
                self._listen(link._connection)  # noqa: SLF001
            except MissingRight as error:
                log.info("hints.forbidden: %s; recovery goes by its scans", error)
                return
            except HeadraceError as error:
                if classify(error) is Verdict.FATAL:
                    log.warning("hints.failed: %s; recovery goes by its scans", error)
                    return
                self._stop.wait(AGAIN_S)
            finally:
                link.close()

    def _is_on(self, link: Any) -> bool:
        try:
            flags = link.call(commands.config("notify-keyspace-events")) or ""
        except MissingRight:
            return True  # it may be: listening costs nothing
        return "E" in flags and ("x" in flags or "A" in flags)

    def _listen(self, connection: Any) -> None:
        while not self._stop.is_set():
            try:
                message = connection.read_response(disable_decoding=True) if connection.can_read(LOOK_S) else ()
            except Exception as error:
                raise translate(error) from error  # the client's own errors, which only headrace.redis may name
            if message and message[0] == b"pmessage":
                self._on_expired(message[3].decode("utf-8", "backslashreplace"))
