"""Broken versions of the core, each with one mistake that this field makes. The checker must catch every one.

A mutant is a change of one Lua text or one function, made in the worker's process before its app starts: the product
has no switch for it. A text that no longer holds what a mutant replaces is an error, so none can go stale unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.lifeline import Lifeline
from headrace.redis import endings, ownership, scripts
from headrace.redis.calls import Script


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake, and the scenario whose schedule shows it in so many seconds."""

    name: str
    mistake: str
    scenario: str
    break_it: Callable[[], None]
    breaks: frozenset[str]  # the invariants, of which at least one must be found broken
    servers: tuple[str, ...] = ("redis8", "valkey9")
    seconds: float = 2.5

    def caught_by(self, breaches: Iterable[str]) -> list[str]:
        """Which of what was found broken is its own doing. That a mutant does not drain proves nothing."""
        return sorted(self.breaks.intersection(breaches))


def _swap(name: str, *changes: tuple[str, str]) -> None:
    """Replace parts of one script, everywhere it is used."""
    holder = f"_{name.upper()}"
    module = scripts if hasattr(scripts, holder) else ownership
    text: str = getattr(module, holder).text
    for old, new in changes:
        if old not in text:
            raise LookupError(f"mutant of {name}.lua: it does not hold {old!r} any more")
        text = text.replace(old, new)
    setattr(module, holder, Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()))


_TAKEN: Final = "row[2] ~= owner or row[4] ~= count"


def _plain_xack() -> None:
    _swap("ack", (_TAKEN, "false"))


def _ack_before_append() -> None:
    append, ack = "local dead = redis.call(unpack(append))", "redis.call('XACK', stream, group, id)"
    _swap("bury", (f"{append}\n{ack}", f"{ack}\n{append}"))


def _no_renewal() -> None:
    def renew(self: Lifeline, strand: Any, chunk: Any) -> None:
        """Renew nothing."""

    Lifeline._renew = renew  # type: ignore[method-assign]  # noqa: SLF001
    Lifeline._renew_unseen = lambda self, strand: None  # type: ignore[method-assign]  # noqa: SLF001


def _retry_unfenced() -> None:
    _swap("park", (_TAKEN, "false"))


def _bury_unfenced() -> None:
    _swap("bury", (_TAKEN, "false"))


def _effects_unfenced() -> None:
    _swap("effects", (_TAKEN, "false"))


def _renewal_unfenced() -> None:
    """Who wakes takes back what another has by now: then neither can end it."""
    _swap("renew", (_TAKEN, "false"))


def _lease_ignored() -> None:
    """By scan, and in what is handed out by the server."""
    _swap("rescue", ("'IDLE', lease_ms", "'IDLE', 1"))
    _swap("take_over", ("'CLAIM', lease_ms", "'CLAIM', 1"))


def _adoption_unfenced() -> None:
    """The parent hands back what anybody holds, not the dead child alone."""
    _swap("adopt", ("'-', '+', chunk, owner)", "'-', '+', chunk)"))


def _position_unfenced() -> None:
    _swap("pos_ack", ("now[1] ~= owner or now[2] ~= epoch", "false"))


def _rescue_without_cursor() -> None:
    """Looks at the oldest entries only, as XAUTOCLAIM from 0-0 does: what lies behind fresh ones is never seen."""
    looked = "local rows = redis.call('XPENDING', stream, group, 'IDLE', lease_ms, ARGV[4], '+', count)"
    oldest = """local rows = {}
for _, row in ipairs(redis.call('XPENDING', stream, group, '-', '+', count)) do
  if row[3] >= tonumber(lease_ms) then rows[#rows + 1] = row end
end"""
    _swap("rescue", (looked, oldest))


def _claims_counted() -> None:
    """Every claim counts as a try: what a stopping worker hands back has lost an attempt."""

    def release(self: endings.Endings, delivery: Any, outcome: Any) -> Any:
        return self._park(delivery, outcome.after_ms or 0, "waiting", delivery.attempt)

    endings.Endings._release = release  # type: ignore[method-assign]  # noqa: SLF001


def _never_pulled_back() -> None:
    _swap("pull_back", ("if not is_lower(last, at) then", "if true then"))


_FENCE: Final = frozenset({"S3", "S4", "S6"})

MUTANTS: Final[Mapping[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        Mutant("plain-xack", "an ack that does not ask who owns the message", "pause", _plain_xack, _FENCE),
        Mutant(
            "ack-before-append",
            "a burial that acks first and appends then",
            "wrong-type",
            _ack_before_append,
            frozenset({"S1", "S6"}),
        ),
        Mutant("no-renewal", "leases that nobody renews", "slow", _no_renewal, frozenset({"S5"})),
        Mutant("retry-unfenced", "a retry that does not ask who owns the message", "pause", _retry_unfenced, _FENCE),
        Mutant("bury-unfenced", "a burial that does not ask who owns the message", "pause", _bury_unfenced, _FENCE),
        Mutant(
            "effects-unfenced",
            "effects with an ack that does not ask who owns the message",
            "pause",
            _effects_unfenced,
            _FENCE,
        ),
        Mutant(
            "renewal-unfenced",
            "a renewal that does not ask who owns the message",
            "pause",
            _renewal_unfenced,
            frozenset({"S3", "S5"}),
            ("redis8",),
        ),
        Mutant(
            "lease-ignored",
            "a rescue that does not wait for the end of a lease",
            "slow",
            _lease_ignored,
            frozenset({"S5"}),
            ("valkey9", "redis8"),
        ),
        Mutant(
            "adoption-unfenced",
            "a parent that hands back what other children hold",
            "kill-supervised",
            _adoption_unfenced,
            frozenset({"S5"}),
            ("valkey9", "redis8"),
            seconds=3.5,
        ),
        Mutant(
            "rescue-without-cursor",
            "a rescue that starts at the oldest entry every time",
            "herd-behind",
            _rescue_without_cursor,
            frozenset({"L1"}),
            ("valkey9", "redis6"),
        ),
        Mutant(
            "position-unfenced",
            "an ack of a position that does not ask who owns it",
            "pause-owner",
            _position_unfenced,
            _FENCE,
        ),
        Mutant(
            "claims-counted",
            "a claim that counts as an attempt",
            "roll-short-grace",
            _claims_counted,
            frozenset({"S5"}),
        ),
        Mutant(
            "never-pulled-back",
            "a group that stays ahead of a stream that was set back",
            "stream-set-back",
            _never_pulled_back,
            frozenset({"S1"}),
            ("redis6", "redis8"),  # 7.0 and later have a lag that does not end: late, and not lost
            seconds=3.5,
        ),
    )
}


def apply(name: str) -> None:
    """Break this process, or nothing for ""."""
    if name:
        MUTANTS[name].break_it()
