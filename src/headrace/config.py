"""Settings: small, frozen, checked when they are made. Users write "10s", the code reads milliseconds.

HandlerSettings.of(lease="10s", ...) reads what a user wrote; an unknown word is refused with the nearest one.
Cross-checks stand in __post_init__, so that no settings object exists that cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.endpoint import Endpoint, parse_url
from headrace.errors import ConfigError
from headrace.fields import FIELD
from headrace.options import (
    DURATION_LIMIT_MS,
    duration_ms,
    refuse_unknown,
    shown,
    size_bytes,
    truth,
    whole_number,
)
from headrace.policy import Backoff
from headrace.recovery import InPlace, Recovery, Requeue

__all__ = ["ConnectSettings", "Endpoint", "HandlerSettings", "duration_ms", "parse_url", "size_bytes"]

ASYNC_CONCURRENCY = 100
SYNC_CONCURRENCY = 8
CONCURRENCY_LIMIT = 100_000
LEASE_MS = 10_000
LEASE_LEAST_MS = 300  # documented as 500; tests go lower
LEASE_LIMIT_MS = 86_400_000  # after a crash nobody should wait longer than a day
MAX_ATTEMPTS = 5
MAX_ATTEMPTS_LIMIT = 1_000_000
BACKOFF = Backoff()
IN_PLACE = InPlace()
BATCH_LIMIT = 10_000
BATCH_WAIT_MS = 50
STALL_AFTER_MS = 60_000
PREFIX = "_"
PREFIX_LIMIT = 16  # characters
ERROR_BYTES = 2_000
ERROR_BYTES_LIMIT = 65_536
OWNER_RETENTION_MS = 3_600_000
BLOCK_LIMIT_MS = 5_000
CONNECT_TIMEOUT_MS = 5_000
COMMAND_TIMEOUT_MS = 5_000
TIMEOUT_LEAST_MS = 10

_ID = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", re.ASCII)
_ID_PART_LIMIT = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """How one handler's group is read, run and retried.

    >>> HandlerSettings.of(lease="30s", max_attempts=3).lease_ms
    30000
    """

    concurrency: int | None = None  # deliveries in hand at once; None: 100 for async handlers, 8 for others
    lease_ms: int = LEASE_MS  # after this long without a renewal a sibling takes over; at least 500
    max_attempts: int = MAX_ATTEMPTS  # handler starts before a message is buried; 1 never retries
    backoff: Backoff = BACKOFF  # waits between failed attempts
    timeout_ms: int | None = None  # a handler running longer is cancelled and retried; None: never
    dead_letters: bool = True  # False: an exhausted message is parked in place until replayed
    dead_letters_maxlen: int = 0  # about how many dead letters are kept; 0: all
    delete_on_ack: bool = False  # remove an entry when every group is done with it
    start: str = "0"  # where a new group begins: "0" everything, "$" what comes next, or after an id
    batch: int | None = None  # a list handler gets at most so many; None: one message a call
    batch_wait_ms: int = BATCH_WAIT_MS  # how long a list handler waits for its list to fill
    once_ms: int | None = None  # how long a done key is remembered and not handled again; None: not
    stall_after_ms: int = STALL_AFTER_MS  # a loop that stands still for longer loses its leases
    prefix: str = PREFIX  # of the field names Headrace adds to entries and dead letters
    error_bytes: int = ERROR_BYTES  # how much of an error's text a dead letter keeps
    owner_retention_ms: int = OWNER_RETENTION_MS  # an owner gone for so long with nothing pending is removed
    recovery: Recovery = IN_PLACE  # how what dead owners held comes back: InPlace() or Requeue(...)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_words()
        self._check_together()

    @property
    def renew_ms(self) -> int:
        """How often a lease is renewed: two renewals may fail before it runs out."""
        return self.lease_ms // 3

    @property
    def block_ms(self) -> int:
        """How long a read may block: short enough to notice an orphan in time (SPEC 5, 20)."""
        return min(BLOCK_LIMIT_MS, self.lease_ms // 4)

    def slots(self, *, is_async: bool) -> int:
        """Return the concurrency, with the default for the kind of handler."""
        return self.concurrency or (ASYNC_CONCURRENCY if is_async else SYNC_CONCURRENCY)

    @classmethod
    def of(cls, **options: Any) -> HandlerSettings:
        """Make settings from the words of @stream.handler(...). None stands for the default.

        Raises ConfigError: unknown word (with the nearest one), bad value, or values that contradict.
        """
        refuse_unknown(options, _WORDS, what="a handler")
        given = {word: value for word, value in options.items() if value is not None}
        _refuse_half_set(given)
        fields = {_WORDS[word][0]: _WORDS[word][1](value, word) for word, value in given.items()}
        # a lease above the default of stall_after, with none given, moves it up
        fields.setdefault("stall_after_ms", max(STALL_AFTER_MS, fields.get("lease_ms", LEASE_MS)))
        if isinstance(recovery := fields.get("recovery"), Requeue):
            fields |= {"max_attempts": recovery.max_attempts, "prefix": recovery.prefix}
        return cls(**fields)

    def _check_numbers(self) -> None:
        for name, least, most in (
            ("lease_ms", LEASE_LEAST_MS, LEASE_LIMIT_MS),
            ("max_attempts", 1, MAX_ATTEMPTS_LIMIT),
            ("dead_letters_maxlen", 0, 2**53),
            ("batch_wait_ms", 0, LEASE_LIMIT_MS),
            ("stall_after_ms", 1, DURATION_LIMIT_MS),
            ("error_bytes", 100, ERROR_BYTES_LIMIT),
            ("owner_retention_ms", 1, DURATION_LIMIT_MS),
        ):
            whole_number(getattr(self, name), name=name, least=least, most=most)
        for name, most in (
            ("concurrency", CONCURRENCY_LIMIT),
            ("timeout_ms", DURATION_LIMIT_MS),
            ("batch", BATCH_LIMIT),
            ("once_ms", DURATION_LIMIT_MS),
        ):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name=name, least=1, most=most)

    def _check_words(self) -> None:
        truth(self.dead_letters, name="dead_letters")
        truth(self.delete_on_ack, name="delete_on_ack")
        if not isinstance(self.backoff, Backoff):
            raise ConfigError("backoff is no Backoff: use HandlerSettings.of(), which reads '5s' and dicts")
        if not isinstance(self.recovery, (InPlace, Requeue)):
            raise ConfigError(f"recovery is {shown(self.recovery)}: give InPlace() or Requeue(max_retries=3)")
        _check_start(self.start)
        _check_prefix(self.prefix)

    def _check_together(self) -> None:
        if self.stall_after_ms < self.lease_ms:
            raise ConfigError(
                f"stall_after ({self.stall_after_ms} ms) is shorter than the lease ({self.lease_ms} ms): "
                "a loop that ticks within its lease would lose it; raise stall_after"
            )
        if self.once_ms is not None and self.once_ms < self.lease_ms:
            raise ConfigError(
                f"once ({self.once_ms} ms) is shorter than the lease ({self.lease_ms} ms): "
                "a rescued message would find its key forgotten; raise once"
            )
        if self.batch is not None and self.batch_wait_ms > self.lease_ms // 2:
            raise ConfigError(
                f"batch_wait ({self.batch_wait_ms} ms) is more than half the lease ({self.lease_ms} ms): "
                "lower batch_wait or raise lease"
            )


def _as_duration(value: Any, word: str) -> int:
    return duration_ms(value, name=word)


def _as_given(value: Any, word: str) -> Any:
    return value


def _as_backoff(value: Any, word: str) -> Backoff:
    return Backoff.of(value)


# what a user writes -> the field it sets, and how it is read
_WORDS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "concurrency": ("concurrency", _as_given),
    "lease": ("lease_ms", _as_duration),
    "max_attempts": ("max_attempts", _as_given),
    "backoff": ("backoff", _as_backoff),
    "timeout": ("timeout_ms", _as_duration),
    "dead_letters": ("dead_letters", _as_given),
    "dead_letters_maxlen": ("dead_letters_maxlen", _as_given),
    "delete_on_ack": ("delete_on_ack", _as_given),
    "start": ("start", _as_given),
    "batch": ("batch", _as_given),
    "batch_wait": ("batch_wait_ms", _as_duration),
    "once": ("once_ms", _as_duration),
    "stall_after": ("stall_after_ms", _as_duration),
    "prefix": ("prefix", _as_given),
    "owner_retention": ("owner_retention_ms", _as_duration),
    "recovery": ("recovery", _as_given),
}


def _refuse_half_set(given: dict[str, Any]) -> None:
    if "batch_wait" in given and "batch" not in given:
        raise ConfigError("batch_wait is given without batch: add batch=100, or remove batch_wait")
    if given.get("dead_letters") is False and "dead_letters_maxlen" in given:
        raise ConfigError("dead_letters_maxlen is given with dead_letters=False: remove one of them")
    if isinstance(given.get("recovery"), Requeue):
        for word, instead in (("max_attempts", "max_retries"), ("prefix", "prefix")):
            if word in given:
                raise ConfigError(f"{word} is given with recovery=Requeue(...): say Requeue({instead}=...) alone")


def _check_start(start: object) -> None:
    found = _ID.fullmatch(start) if isinstance(start, str) else None
    if start != "$" and (found is None or any(int(part or 0) > _ID_PART_LIMIT for part in found.groups())):
        raise ConfigError(f"start is {shown(start)}: give '0' (everything), '$' (what comes next) or an id")


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or not 1 <= len(prefix) <= PREFIX_LIMIT or not prefix.isprintable():
        raise ConfigError(f"prefix is {shown(prefix)}: give 1 to {PREFIX_LIMIT} characters, such as '_'")
    if FIELD.startswith(prefix):
        raise ConfigError(f"prefix {prefix!r} would hide the field {FIELD!r}: give another one, such as '_'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectSettings:
    """How patient a connection is, beyond what its URL says."""

    connect_timeout_ms: int = CONNECT_TIMEOUT_MS  # to reach the server and log in
    command_timeout_ms: int = COMMAND_TIMEOUT_MS  # for an answer, on top of the time a command may block
    tls_insecure: bool = False  # accept any certificate; logged at every start

    def __post_init__(self) -> None:
        for name in ("connect_timeout_ms", "command_timeout_ms"):
            whole_number(getattr(self, name), name=name, least=TIMEOUT_LEAST_MS, most=DURATION_LIMIT_MS)
        truth(self.tls_insecure, name="tls_insecure")

    @classmethod
    def of(cls, **options: Any) -> ConnectSettings:
        """Make settings from the words connect_timeout, command_timeout and tls_insecure."""
        refuse_unknown(options, ("connect_timeout", "command_timeout", "tls_insecure"), what="a connection")
        given = {word: value for word, value in options.items() if value is not None}
        insecure = given.pop("tls_insecure", False)
        times = {word + "_ms": duration_ms(value, name=word) for word, value in given.items()}
        return cls(tls_insecure=insecure, **times)
