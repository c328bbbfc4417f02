"""Announcements: naming data streams, and looking at what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace import points
from headrace.assignment import Assignment, write_info
from headrace.errors import AddUnknown, CommandRefused, DecodeError, HeadraceError, Unavailable
from headrace.names import Keys, check_stream, keys_of
from headrace.policy import reconnect_delay_ms
from headrace.redis import commands, ownership
from headrace.redis.link import Link
from headrace.redis.ownership import Announced, Place

PAGE = 500
PATIENCE_S = 10.0  # an announcement may be repeated, so a lost answer is asked for again


@dataclass(frozen=True, slots=True)
class Listed:
    """One assignment, as it is now."""

    name: str
    id: str
    owner: str  # "": nobody at the moment
    epoch: int
    position: str  # last acknowledged id
    lag: int | None  # messages after it; None: the server cannot tell
    tries: int
    info: Any


class Announcements:
    def __init__(self, keys: Keys, group: str, link: Link, place: Callable[[str], Place]) -> None:
        self._keys = keys
        self._group = group
        self._link = link
        self._place = place

    async def announce(self, name: str, info: object = None) -> Announced:
        """Name a data stream. Says whether that is new; a name that is not finished is announced once."""
        call = ownership.announce(self._keys, check_stream(name), write_info(info))
        until, tries = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                announced = await self._link.call(call)
            except Unavailable as error:
                if time.monotonic() > until:
                    raise AddUnknown(
                        f"announcement of {name}: no answer, so whether it was added is unknown: announce it again",
                        results=[None],
                    ) from error
                await asyncio.sleep(reconnect_delay_ms(tries, random.random(), may_move=self._link.may_move) / 1000)
                tries += 1
            else:
                points.reached("announcements.announced")
                return announced

    async def listed(self) -> list[Listed]:
        """All that are announced and not finished, by name."""
        names = await self._link.call(ownership.announced_names(self._keys))
        found: list[Listed] = []
        ordered = sorted(names)
        for at in range(0, len(ordered), PAGE):
            found += await self._page(ordered[at : at + PAGE], names)
        return found

    async def _page(self, page: list[str], ids: dict[str, str]) -> list[Listed]:
        calls: list[Any] = []
        for name in page:
            place = self._place(name)
            calls.append(ownership.standing(place))
            calls.append(commands.groups(keys_of(name)))
            calls.append(commands.entries(self._keys.stream, ids[name], ids[name], 1))
        answers = await self._link.pipe(calls)
        rows = []
        for at, name in enumerate(page):
            standing, groups, entries = answers[3 * at : 3 * at + 3]
            for answer in (standing, entries):
                if isinstance(answer, HeadraceError):
                    raise answer
            rows.append(self._row(name, ids[name], standing, groups, entries))
        return await self._with_lag_where_all_is_read(rows)

    async def _with_lag_where_all_is_read(self, rows: list[Listed]) -> list[Listed]:
        """Redis 6.2 tells no lag, and later servers not always; that nothing is left can be seen all the same."""
        untold = [row for row in rows if row.lag is None and row.position]
        calls = [commands.entries(keys_of(row.name).stream, f"({row.position}", "+", 1) for row in untold]
        answers = await self._link.pipe(calls) if calls else []
        even = {row.name for row, rest in zip(untold, answers, strict=True) if rest == []}
        return [replace(row, lag=0) if row.name in even else row for row in rows]

    def _row(self, name: str, id_: str, standing: ownership.Standing, groups: Any, entries: Any) -> Listed:
        mirror = self._place(name).mirror
        if isinstance(groups, HeadraceError) and not isinstance(groups, CommandRefused):
            raise groups
        lags = [] if isinstance(groups, HeadraceError) else [each.lag for each in groups if each.name == mirror]
        return Listed(
            name=name,
            id=id_,
            owner=standing.owner,
            epoch=standing.epoch,
            position=standing.position,
            lag=lags[0] if lags else None,
            tries=standing.tries,
            info=_info(entries),
        )


def _info(entries: list[tuple[bytes, list[bytes]]]) -> Any:
    """What announce() was given; what is no JSON is shown as the text it is."""
    if not entries:
        return {}
    try:
        return Assignment(*entries[0], count=0).info
    except DecodeError as error:
        return str(error)
