"""Who is measured, and in which versions. The settings stand in the docstring of each adapter."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ADAPTERS: Final = Path(__file__).parent / "adapters"
_UVLOOP: Final = "uvloop==0.23.0"
_REDIS: Final = ("redis==8.1.0", "hiredis==3.5.0")
# the last is imported by saq, but not asked for by it
_SAQ: Final = ("saq[redis,hiredis]==0.26.4", "redis==7.4.1", "hiredis==3.5.0", "typing-extensions==4.15.0")


@dataclass(frozen=True, slots=True)
class Peer:
    """``idle_s``: after so long without a sign of life its fastest settings have a message started again (saq waits
    five of its seven seconds for an answer to its abort).

    ``kinds`` are the kinds of slow handlers that it can run, ``slots`` how many at once.
    """

    name: str
    module: str
    pins: tuple[str, ...]
    on: str
    idle_s: float
    kinds: tuple[str, ...] = ("slow", "plain", "block")
    slots: int = 32

    @property
    def streams(self) -> bool:
        return self.on == "streams"

    @property
    def version(self) -> str:
        return self.pins[0].partition("==")[2] if self.pins else ""

    @property
    def about(self) -> str:
        """How it is set up, in words: its adapter's docstring."""
        text = (ADAPTERS / f"{self.module}.py").read_text()
        return ast.get_docstring(ast.parse(text)) or ""


OURS: Final = Peer("Headrace", "headrace", (), "streams", 0.5)
PEERS: Final = (
    Peer("taskiq-redis", "taskiq_redis", ("taskiq-redis==1.2.4", "taskiq==0.13.0", *_REDIS, _UVLOOP), "streams", 1),
    Peer("FastStream", "faststream", ("faststream[redis]==0.7.8", *_REDIS, _UVLOOP), "streams", 1),
    Peer("streaQ", "streaq", ("streaq==7.2.0", "coredis==6.9.0", _UVLOOP), "streams", 1),
    Peer("docket", "docket", ("pydocket==0.27.0", *_REDIS, _UVLOOP), "streams", 1, ("slow", "block")),
    Peer("dramatiq", "dramatiq", ("dramatiq[redis]==2.2.1", *_REDIS), "lists", 3),
    Peer("arq", "arq", ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", _UVLOOP), "sorted set", 11),
    Peer("saq", "saq", (*_SAQ, _UVLOOP), "lists", 7),
    Peer("Celery", "celery", ("celery[redis]==5.7.0", "kombu==5.7.0", *_REDIS), "lists", 1, ("plain",)),
    Peer("rq", "rq", ("rq==2.12.0", *_REDIS), "lists", 61, ("plain",), slots=1),
)
EVERYBODY: Final = (OURS, *PEERS)


def named(names: list[str]) -> list[Peer]:
    """Those of these names, in our order; all of them without names. Raises KeyError for an unknown one."""
    known = {peer.module: peer for peer in EVERYBODY} | {peer.name.lower(): peer for peer in EVERYBODY}
    wanted = {known[name.lower()].module for name in names} or {peer.module for peer in EVERYBODY}
    return [peer for peer in EVERYBODY if peer.module in wanted]
