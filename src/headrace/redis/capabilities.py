"""What this server can do: asked once per connection epoch, by asking for it, not by its version.

``probe`` gives the calls, any link sends them, ``judge`` reads the answers. A right that is missing costs the
capability, never the start: INFO only gives names, and what cannot be asked counts as not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace.errors import HeadraceError, MissingRight, NoGroup, ServerTooOld, Unavailable, WrongType
from headrace.names import Keys
from headrace.redis.calls import Call, as_is
from headrace.redis.commands import parse_info

NOBODY: Final = "hr-probe"  # a group and an owner that never exist: what is asked of them changes nothing


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Fields after ``role`` say whether a command or option may be used here."""

    server: Literal["redis", "valkey", "unknown"] = "unknown"
    version: tuple[int, ...] = ()  # () where INFO is forbidden
    run_id: str = ""  # changes with every start of the server
    role: str = ""  # master or slave, in the server's words
    claim: bool = False  # XREADGROUP ... CLAIM: read and rescue in one (Redis 8.4+)
    ackdel: bool = False  # XACKDEL ... ACKED (Redis 8.2+)
    waitaof: bool = False  # WAITAOF (7.2+)
    lag: bool = False  # XINFO GROUPS tells the lag (7.0+)

    @property
    def shown(self) -> str:
        """For people: "redis 8.10.2"."""
        return f"{self.server} {'.'.join(map(str, self.version)) or '?'}"


def probe(keys: Keys) -> list[Call[Any]]:
    """The questions, about a stream that exists or not. They write nothing; most answers are errors."""
    stream = keys.stream
    return [
        Call(("INFO", "server"), parse_info),
        Call(("INFO", "replication"), parse_info),
        Call(("XAUTOCLAIM", stream, NOBODY, NOBODY, 1, "0-0", "COUNT", 1), as_is),
        Call(("XREADGROUP", "GROUP", NOBODY, NOBODY, "COUNT", 1, "CLAIM", 1, "STREAMS", stream, ">"), as_is),
        Call(("XACKDEL", stream, NOBODY, "ACKED", "IDS", 1, "0-1"), as_is),
        Call(("WAITAOF", 0, 0, 1), as_is),
    ]


def judge(answers: Sequence[Any]) -> Capabilities:
    """Read the answers to ``probe``, in its order; a refused question is the error in its place.

    Raises ServerTooOld below 6.2, and whatever says that the server could not be asked at all.
    """
    server, replication, autoclaim, claim, ackdel, waitaof = answers
    for answer in answers:
        if isinstance(answer, Unavailable):
            raise answer
    about: dict[str, str] = server if isinstance(server, dict) else {}
    version = _version(about)
    if not (_understood(autoclaim) or isinstance(autoclaim, MissingRight)):
        found = f"this one is {about['redis_version']}" if about else "this one has no XAUTOCLAIM"
        raise ServerTooOld(f"Headrace needs Redis 6.2, Valkey or newer, and {found}: upgrade the server")
    return Capabilities(
        server=_name(about),
        version=version,
        run_id=about.get("run_id", ""),
        role=replication.get("role", "") if isinstance(replication, dict) else "",
        claim=_understood(claim),
        ackdel=_understood(ackdel),
        waitaof=_understood(waitaof),
        lag=version >= (7,),
    )


def _understood(answer: Any) -> bool:
    """Whether a command and its options were known. The group is looked for after that: NOGROUP is a yes."""
    return not isinstance(answer, HeadraceError) or isinstance(answer, (NoGroup, WrongType))


def _name(about: dict[str, str]) -> Literal["redis", "valkey", "unknown"]:
    if "valkey_version" in about or about.get("server_name") == "valkey":
        return "valkey"
    return "redis" if "redis_version" in about else "unknown"


def _version(about: dict[str, str]) -> tuple[int, ...]:
    """Valkey tells the Redis version it is compatible with, too: its own comes first."""
    told = about.get("valkey_version") or about.get("redis_version", "")
    return tuple(int(part) for part in told.split(".") if part.isdigit())
