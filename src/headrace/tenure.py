"""A tenure: one assignment in an owner's hands, and who lives in its room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.assignment import Assignment
from headrace.room import Room


@dataclass(eq=False, slots=True)
class Tenure:
    assignment: Assignment
    room: Room[Any]
    moving: bool = False  # to be handed on, because this owner has too many
    leaving: bool = False  # its end is on its way to the server


class Tenants(Protocol):
    """Who lives in the rooms: handlers (handling.Handlers) or whoever listens to events (listening.Listener)."""

    @property
    def room(self) -> int:
        """How many more rooms they can take in just now."""

    def enter(self, tenure: Tenure) -> None: ...
    def lost(self, tenure: Tenure) -> None: ...
    async def leave(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Stop using the rooms: those still there afterwards are handed back by the holding."""
