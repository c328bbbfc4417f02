"""An owner job: a user's function that owns streams, and how it wants to own them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.codec import Codec
from headrace.config import CONCURRENCY_LIMIT, HandlerSettings
from headrace.errors import HandlerRefused
from headrace.gate import Gate
from headrace.job import make_job
from headrace.options import refuse_unknown, truth, whole_number
from headrace.partitions import Partitions
from headrace.room import Room

OWNED_MOST: Final = 10_000  # assignments in one process
PREFETCH: Final = 50  # messages of one stream read ahead
PREFETCH_LIMIT: Final = 10_000

_OWN_WORDS: Final = ("concurrency", "prefetch", "rebalance")
_HANDLER_WORDS: Final = (
    *("lease", "max_attempts", "backoff", "stall_after", "start"),
    *("dead_letters_maxlen", "prefix", "owner_retention"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSettings:
    """How one group of an announcement stream is owned. ``handler`` has lease, attempts and backoff."""

    handler: HandlerSettings
    concurrency: int = OWNED_MOST  # assignments one process owns at most
    prefetch: int = PREFETCH  # messages of one stream read ahead; all rooms together bound the memory
    rebalance: bool = False  # hand streams on when this owner has more than its fair share
    begin: str = "0"  # where a data stream begins that this group never owned

    def __post_init__(self) -> None:
        whole_number(self.concurrency, name="concurrency", least=1, most=CONCURRENCY_LIMIT)
        whole_number(self.prefetch, name="prefetch", least=1, most=PREFETCH_LIMIT)
        truth(self.rebalance, name="rebalance")

    @classmethod
    def of(cls, **options: Any) -> OwnerSettings:
        """From the words of @rooms.owner(...). None stands for the default."""
        refuse_unknown(options, (*_OWN_WORDS, *_HANDLER_WORDS), what="an owner")
        given = {word: value for word, value in options.items() if value is not None}
        own = {word: given.pop(word) for word in _OWN_WORDS if word in given}
        return cls(handler=HandlerSettings.of(**given), **own)


@dataclass(frozen=True, slots=True)
class OwnerJob:
    """One owner function of one group of one announcement stream."""

    stream: str
    group: str
    function: Callable[..., Any]
    settings: OwnerSettings
    codec: Codec[Any]  # of the data streams' messages
    wants: Mapping[str, type]
    partitions: Partitions | None = None  # announced by the worker itself

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', repr(self.function))}"

    def bind(self, provided: Mapping[type, Any], gate: Gate) -> Callable[[Room[Any]], Any]:
        """The call for one room."""
        injected = {name: provided[kind] for name, kind in self.wants.items()}
        return lambda room: self.function(room, **injected)


def make_owner_job(
    stream: str,
    group: str,
    function: Callable[..., Any],
    settings: OwnerSettings,
    codec: Codec[Any],
    provided: frozenset[type] = frozenset(),
) -> OwnerJob:
    """Look at a signature as for a handler; the first parameter takes the room."""
    job = make_job(stream, group, function, settings.handler, codec, provided)
    if not job.is_async:
        raise HandlerRefused(f"{job.name} owns streams and must be async: write async def, with async for inside")
    if job.delivery is not None:
        raise HandlerRefused(f"{job.name}: an owner takes the room, there is no delivery: remove {job.delivery!r}")
    return OwnerJob(stream, group, function, settings, codec, job.wants)


def merged(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> OwnerSettings:
    """The options of app.assignments(), with those of @rooms.owner() on top."""
    return OwnerSettings.of(**{**defaults, **{word: value for word, value in options.items() if value is not None}})
