"""Which deliveries were started, told so that it outlives the process (DESIGN 11).

Under the supervisor the marks lie in memory shared with the parent (:class:`headrace.board.Board`). When the process
dies, started deliveries keep their attempt and the others give it back. Without a parent nobody could read them, and
:class:`NoMarks` costs nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.message import Delivery


class Marks(Protocol):
    def started(self, delivery: Delivery[Any]) -> None:
        """A handler is about to start for this delivery."""

    def ended(self, delivery: Delivery[Any]) -> None:
        """The server has answered its outcome, or it was lost."""


class NoMarks:
    def started(self, delivery: Delivery[Any]) -> None:
        pass

    def ended(self, delivery: Delivery[Any]) -> None:
        pass
