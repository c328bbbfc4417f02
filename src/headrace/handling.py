"""Handlers of rooms: a task for each room, and what becomes of the room when it ends.

A handler of a room ends as others do:

    returns     finished, or handed back: at once if this owner stops or has too many, else after a growing moment
    raises      logged, and tried again after its backoff; to the dead letters after the last attempt. Retry, Release
                and Bury say what they say elsewhere
    room lost   nothing: another owner has it. The handler is told (room.lost, AssignmentTaken), not cancelled
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from headrace.errors import AssignmentTaken, HeadraceError, Release
from headrace.holding import LAST_WORDS_S, Holding
from headrace.message import optional_ms
from headrace.room import Room
from headrace.tenure import Tenure

log = logging.getLogger("headrace")


class Handlers:
    def __init__(self, holding: Holding, call: Callable[[Room[Any]], Any], name: str) -> None:
        self._holding = holding
        self._call = call
        self._name = name
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by room: one handler at a time, also after a loss
        self._leaving = False

    @property
    def room(self) -> int:
        return self._holding.settings.concurrency  # a task each: there is always room

    def enter(self, tenure: Tenure) -> None:
        name = tenure.room.name
        before = self._tasks.get(name)
        task = asyncio.get_running_loop().create_task(self._run(tenure, before), name=f"headrace owner of {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._ended(name, ended))

    def lost(self, tenure: Tenure) -> None:
        """Its handler finds out at its next word."""

    async def leave(self, grace_s: float, hurry: asyncio.Event) -> None:
        self._leaving = True
        if not self._tasks:
            return
        everything = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        hurried = asyncio.ensure_future(hurry.wait())
        both: set[asyncio.Future[Any]] = {everything, hurried}
        await asyncio.wait(both, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for task in self._tasks.values():
            task.cancel()
        # What they say at their end needs the server; where it is away, heirs take the rooms after a lease.
        await asyncio.wait({everything}, timeout=LAST_WORDS_S)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _run(self, tenure: Tenure, before: asyncio.Task[None] | None) -> None:
        room = tenure.room
        if before is not None and not before.done():
            # This process had the room before and lost it: its old handler has to come to its end first.
            await asyncio.wait((before,))
        try:
            await self._call(room)
        except AssignmentTaken as taken:
            if taken.stream == room.name:
                self._holding.lose(room, taken.holder)
            else:  # of another room, which this handler has touched: a mistake like any other
                await self._failed(tenure, taken)
        except asyncio.CancelledError:
            await self._hand_back(tenure)
            if not self._leaving:
                raise
        except Release as asked:
            await self._hand_back(tenure, optional_ms(asked.after))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            await self._failed(tenure, error)
        else:
            await self._hand_back(tenure)

    async def _hand_back(self, tenure: Tenure, after_ms: int | None = None) -> None:
        at_once = tenure.moving or tenure.room.stopping
        with contextlib.suppress(HeadraceError):  # the worker ends while the server is away: heirs take it
            await self._holding.hand_back(tenure, after_ms=0 if at_once else after_ms)

    async def _failed(self, tenure: Tenure, error: Exception) -> None:
        room = tenure.room
        if room.is_lost:
            log.warning("owner.failed handler=%s name=%s after it was taken over: %r", self._name, room.name, error)
            return
        log.error(
            "owner.failed handler=%s name=%s after=%s attempt=%d: %r",
            *(self._name, room.name, room.position, room.attempt, error),
            exc_info=error,
        )
        with contextlib.suppress(HeadraceError):
            await self._holding.hand_failed(tenure, error)
