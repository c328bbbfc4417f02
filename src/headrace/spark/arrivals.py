"""Waits for new entries in many streams, without taking any.

One server is asked once, and waits itself (XREAD BLOCK). In a cluster such a call may name streams of one slot only, so
streams of several slots are asked for again and again, each server in one write, until one of them has something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.redis.calls import Call, as_is, text
from headrace.redis.link import SyncLink
from headrace.redis.topology import slot_of

POLL_S: Final = 0.02  # what a look every so often adds to the time a message waits


def arrivals(link: SyncLink, last_ids: Mapping[str, str], wait_ms: int) -> set[str]:
    """The streams that have entries behind these ids, as soon as there are some, at the latest after ``wait_ms``."""
    slots: dict[int, list[str]] = {}
    for key in last_ids:
        slots.setdefault(slot_of(key) if link.spreads else 0, []).append(key)
    if len(slots) <= 1:
        return _found(link.call(_read(last_ids, wait_ms))) if last_ids else set()
    calls = [_read({key: last_ids[key] for key in keys}, 0) for keys in slots.values()]
    until = time.monotonic() + wait_ms / 1000
    while True:
        found: set[str] = set()
        for answer in link.pipe(calls):
            if isinstance(answer, HeadraceError):
                raise answer
            found |= _found(answer)
        if found or time.monotonic() + POLL_S > until:
            return found
        time.sleep(POLL_S)


def _read(last_ids: Mapping[str, str], wait_ms: int) -> Call[Any]:
    block = ("BLOCK", wait_ms) if wait_ms else ()
    return Call(("XREAD", "COUNT", 1, *block, "STREAMS", *last_ids, *last_ids.values()), as_is)


def _found(reply: Any) -> set[str]:
    return {text(key) for key, _ in reply or ()}
