"""The gate of one process: closed while a message that may kill the process runs alone (DESIGN 11b).

A message whose earlier attempts died with their process gets its last one with nobody beside it, so that it can bury
nobody but itself. Every reader passes the gate before it takes anything; whoever wants the process for itself closes
the gate, waits until no reader is inside and nothing is held, and opens it again afterwards. Handlers of ordered
partitions, which no reader takes anything for, are inside while they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.slots import Slots


class Gate:
    def __init__(self) -> None:
        self.closed = False
        self._inside = 0
        self._slots: list[Slots] = []
        self._turn = asyncio.Lock()
        self._opened = asyncio.Event()
        self._changed = asyncio.Event()

    def watch(self, slots: Slots) -> None:
        """Count what these slots hold among what must be empty before anything runs alone."""
        self._slots.append(slots)

    def forget(self) -> None:
        self._slots.clear()

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """A reader takes deliveries inside, an ordered handler runs; both wait here while something runs alone."""
        while self.closed:
            await self._opened.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self.nudge()

    def nudge(self) -> None:
        """Something was given back or finished: whoever waits for an empty process looks again."""
        if self.closed:
            self._changed.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside, this process holds nothing and nobody takes anything but the caller."""
        async with self._turn:
            self.closed = True
            self._opened.clear()
            try:
                while self._inside or not all(slots.is_empty for slots in self._slots):
                    self._changed.clear()
                    await self._changed.wait()
                yield
            finally:
                self.closed = False
                self._opened.set()
