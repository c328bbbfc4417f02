"""How a handler's group gets back what dead owners held: a value, chosen for each handler with ``recovery=``.

    InPlace()    the default: a message stays where it is and changes hands (ADR 1, 3)
    Requeue()    the founding RFC's way: lock keys, and a copy at the end of the stream (ADR 13)

The values say what is wanted; headrace.engines makes the parts of a lane that do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import ConfigError
from headrace.names import Keys, check_stream, same_slot
from headrace.options import DURATION_LIMIT_MS, Duration, duration_ms, shown, truth, whole_number

INTERVAL = "60s"
MIN_IDLE = "30s"
BATCH = 50
BATCH_LIMIT = 200  # ids a script looks at: keeps it short
MAX_RETRIES = 3
MAX_RETRIES_LIMIT = 1_000_000
PREFIX = "_"


@dataclass(frozen=True, slots=True)
class InPlace:
    """A message whose lease ran out changes hands where it is. Needs no settings: the handler's lease says it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """A message whose lock ran out is appended again and acknowledged, in one step.

    ``max_retries`` counts copies: 3 means that a handler is started at most four times, once for the message and once
    for each copy. The lock lives as long as the handler's ``lease``.

    >>> Requeue(interval="5s").interval_ms, Requeue().max_attempts
    (5000, 4)
    """

    interval: Duration = INTERVAL  # between two scans of the pending list; spread by a tenth, and once at start
    min_idle: Duration = MIN_IDLE  # what was delivered more recently is left alone by a scan
    batch: int = BATCH  # messages looked at in one step of a scan
    max_retries: int = MAX_RETRIES  # copies before a message is buried; 0 buries at once
    dead_letter_stream: str | None = None  # None: the stream's own dead letters; else one in the same slot
    prefix: str = PREFIX  # of the fields retry_count and original_id
    hints: bool = True  # listen to keyspace notifications, where the server sends them

    def __post_init__(self) -> None:
        for name in ("interval", "min_idle"):
            whole_number(duration_ms(getattr(self, name), name=name), name=name, least=1, most=DURATION_LIMIT_MS)
        whole_number(self.batch, name="batch", least=1, most=BATCH_LIMIT)
        whole_number(self.max_retries, name="max_retries", least=0, most=MAX_RETRIES_LIMIT)
        truth(self.hints, name="hints")
        if self.dead_letter_stream is not None:
            check_stream(self.dead_letter_stream)

    @property
    def interval_ms(self) -> int:
        return duration_ms(self.interval, name="interval")

    @property
    def min_idle_ms(self) -> int:
        return duration_ms(self.min_idle, name="min_idle")

    @property
    def max_attempts(self) -> int:
        """Handler starts (DESIGN 6): the message itself, then one for each copy."""
        return self.max_retries + 1

    def dead_letters(self, keys: Keys) -> str:
        """The stream that takes the dead letters. Raises ConfigError if a script could not write both."""
        chosen = self.dead_letter_stream or keys.dead_letters
        if not same_slot(chosen, keys.stream):
            raise ConfigError(
                f"dead_letter_stream {shown(chosen)} is in another slot than {keys.stream!r}: "
                f"appending and acknowledging would be two steps; call it {keys.prefix + ':dead'!r}, for example"
            )
        return chosen


Recovery: TypeAlias = InPlace | Requeue
