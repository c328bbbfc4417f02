"""The group: made at start, and made again when it vanishes while workers run (SPEC 3).

Making it again at 0 would hand out every finished message a second time; at the end it would lose the unfinished ones.
So the janitor keeps the floor, the lowest unfinished id, and the group comes back just below it. Messages finished
since the floor was last kept are handed out once more; nothing is lost.
"""

from __future__ import annotations

import logging

from headrace.errors import GroupLost
from headrace.member import Member
from headrace.recorder import Recorder
from headrace.redis import scripts
from headrace.redis.link import Link

log = logging.getLogger("headrace")


class Groups:
    def __init__(self, member: Member, link: Link, recorder: Recorder) -> None:
        self._member = member
        self._link = link
        self._recorder = recorder

    async def ensure(self) -> None:
        """Make stream and group if they are not there. What was added before the first worker is delivered."""
        member = self._member
        made = await self._link.call(scripts.ensure_group(member.keys, member.group, member.settings.start))
        if not made:
            return
        log.info("group.created stream=%s group=%s at %s", member.stream, member.group, member.settings.start)

    async def again(self) -> None:
        """The server said NOGROUP to a running worker."""
        member = self._member
        made = await self._link.call(scripts.regroup(member.keys, member.group))
        if made.kind == "unknown":
            raise GroupLost(
                f"group {member.group!r} of stream {member.stream!r} vanished, the stream has messages, and nothing "
                f"says where to resume: create it yourself after the last message that is done, "
                f"XGROUP CREATE {member.stream} {member.group} <id>",
                stream=member.stream,
                group=member.group,
            )
        if made.kind == "made":
            self._recorder.count("group_recreated_total", 1, **member.labels)
            log.error(
                "group.recreated stream=%s group=%s at %s: messages after it are handed out again",
                *(member.stream, member.group, made.start),
            )
