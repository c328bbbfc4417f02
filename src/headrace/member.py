"""A member: one owner in one group of one stream. Who speaks when a lane talks to the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex

from headrace.config import HandlerSettings
from headrace.names import Keys


@dataclass(frozen=True, slots=True)
class Member:
    keys: Keys
    group: str
    owner: str
    settings: HandlerSettings
    fixed: bool = False  # the user chose the owner name, so it may be in use elsewhere (SPEC 2)
    token: str = field(default_factory=lambda: token_hex(8))  # tells this process start from another of the same name

    def is_me(self, holder: str) -> bool:
        """Whether an entry held under this name is held by this process. A fixed name may be another process's by
        now: then its word decides, and what this one says too late is refused (SPEC 2)."""
        return holder == self.owner and not self.fixed

    @property
    def stream(self) -> str:
        return self.keys.stream

    @property
    def prefix(self) -> str:
        return self.settings.prefix

    @property
    def labels(self) -> dict[str, str]:
        """The labels every metric of this member carries. Never an id (SPEC 55)."""
        return {"stream": self.stream, "group": self.group}
