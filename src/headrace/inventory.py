"""The inventory: what the server says this owner holds, asked for when there is reason to doubt.

Two reasons: its lease had ended, so heirs may have taken some; or two beats in a row counted other than the owner does
(an answer that never came, a failover that lost a claim).
"""

from __future__ import annotations

from headrace.member import Member
from headrace.redis import commands
from headrace.redis.gather import Gather

PAGE = 1_000  # pending rows asked for at once
ODD_BEATS = 2


class Inventory:
    def __init__(self, member: Member, calls: Gather) -> None:
        self._member = member
        self._calls = calls
        self._odd = 0

    def differs(self, counted: int, held: int) -> bool:
        """Whether a beat counts other than the owner, and the one before it did, too."""
        self._odd = self._odd + 1 if counted != held else 0
        if self._odd < ODD_BEATS:
            return False
        self._odd = 0
        return True

    async def mine(self) -> dict[bytes, int]:
        """Announcements in this owner's hands, with their counts."""
        member, mine, start = self._member, dict[bytes, int](), "-"
        while True:
            page = await self._calls.call(
                commands.pending_rows(member.keys, member.group, PAGE, start=start, owner=member.owner)
            )
            mine.update({row.id.encode(): row.count for row in page})
            if len(page) < PAGE:
                return mine
            start = f"({page[-1].id}"
