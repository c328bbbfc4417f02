"""What one owner holds of one stream, and how much more it may take (SPEC 4).

A worker holds as many deliveries as its handler has slots. Only while the handlers are quick, done within a few round
trips, it reads a little ahead, so that a slot that falls free does not wait for the server (ADR 7); what is read ahead
and not started soon after all is handed back.

The table is the single truth inside the process: a delivery is in ``held`` from the moment it was read until the
server has answered its outcome or another owner took it. A lost delivery whose handler still runs keeps its slot (the
thread or task is busy) and its id in ``zombies``, so that the same id is not started beside it (DESIGN 4).

Everything here runs on the event loop, except :meth:`renewable`, which the lifeline's thread calls: it copies the
table in one step and decides on the copy.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from headrace.message import Delivery, State


class Slots:
    def __init__(self, limit: int) -> None:
        assert limit > 0
        self.limit = limit
        self.ahead = 0  # how many more than the slots may be held just now
        self.held: dict[bytes, Delivery[Any]] = {}
        self.zombies: dict[bytes, Delivery[Any]] = {}
        self.queue: deque[Delivery[Any]] = deque()  # held, not started

    @property
    def free(self) -> int:
        return self.limit + self.ahead - len(self.held) - len(self.zombies)

    @property
    def is_empty(self) -> bool:
        return not self.held and not self.zombies

    def take(self, delivery: Delivery[Any]) -> None:
        """A delivery was read: hold it and let it wait for a runner."""
        self.held[delivery.raw_id] = delivery
        self.queue.append(delivery)

    def hold(self, delivery: Delivery[Any]) -> None:
        """Hold one that no runner will see: its outcome is chosen already."""
        self.held[delivery.raw_id] = delivery

    def drop(self, delivery: Delivery[Any]) -> None:
        """The server has answered the outcome: the slot is free."""
        if self.held.get(delivery.raw_id) is delivery:
            del self.held[delivery.raw_id]

    def lose(self, delivery: Delivery[Any]) -> bool:
        """Another owner has it. Answers whether that is news (an outcome on its way gets its own answer)."""
        if self.held.get(delivery.raw_id) is not delivery or delivery.state >= State.ENDING:
            return False
        del self.held[delivery.raw_id]
        if delivery.state is State.STARTED:
            self.zombies[delivery.raw_id] = delivery
        else:
            with contextlib.suppress(ValueError):  # it may be waiting for its completion marker instead
                self.queue.remove(delivery)
            delivery.state = State.ENDED
        delivery.lose()
        return True

    def finished(self, delivery: Delivery[Any]) -> None:
        """The handler of a lost delivery came to its end."""
        if self.zombies.get(delivery.raw_id) is delivery:
            del self.zombies[delivery.raw_id]

    def renewable(self, before: float) -> list[Delivery[Any]]:
        """What was last renewed before a moment: what the lifeline has to renew now."""
        return [held for held in list(self.held.values()) if held.renewed_at < before]
