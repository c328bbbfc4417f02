"""Every error Headrace raises, as one tree, and the one question asked of an error: what now?

    HeadraceError                 FATAL    anything this library raises
    ├── ConfigError               FATAL    a setting, name, URL or handler that cannot work (a ValueError)
    │   ├── NameRefused                    stream, group, owner or key name
    │   ├── UrlRefused                     server URL
    │   └── HandlerRefused                 bad signature, or registered twice
    ├── CodecError                FATAL
    │   ├── EncodeError                    a payload that cannot be written
    │   │   └── PayloadTooLarge
    │   └── DecodeError                    bytes that are not what the model says
    ├── ServerError               FATAL    what the server, or the way to it, said
    │   ├── Unavailable           RETRY    no connection, time-out, LOADING, CLUSTERDOWN, READONLY, ...
    │   │   ├── NoPrimary                  the sentinels name none: unreachable, or not of one mind
    │   │   └── SlotMissing                no master of the cluster serves the stream's slot; .slot .stream
    │   ├── ServerRefused         RETRY    OOM, MISCONF, BUSY, NOREPLICAS: there, but not now
    │   ├── NoGroup               RETRY    the group, or the stream, is not there (the reader decides)
    │   ├── NoScript              RETRY    the script is not loaded (the link loads it)
    │   ├── BusyGroup             FATAL    the group is there already
    │   ├── AuthFailed            FATAL    wrong or missing password
    │   ├── MissingRight          FATAL    an ACL forbids a command, key or channel; .command .key
    │   ├── WrongTopology         FATAL    a cluster where none was expected, or the other way round
    │   ├── ServiceUnknown        FATAL    no sentinel knows the service
    │   ├── WrongType             FATAL    the key holds something else than a stream
    │   ├── ServerTooOld          FATAL
    │   ├── GroupLost             FATAL    the group vanished and nothing says where to resume; .stream .group
    │   └── CommandRefused        FATAL    any other error reply
    ├── OwnerTaken                FATAL    a fixed owner name is in use elsewhere; .owner .holder
    ├── DeliveryLost              FENCED   outcome of a former owner; .stream .group .id .holder
    ├── AssignmentTaken           FENCED   a word of a former owner of a stream; .stream .holder
    ├── AssignmentRefused         FATAL    an assignment that cannot be had now; .stream
    │   ├── AlreadyClaimed                 somebody else has it; .holder
    │   └── NotOwned                       not mine, or finished
    ├── EffectRefused             FATAL    an effect that could fail half-way
    ├── AddUnknown                RETRY    some adds have no answer; .results
    ├── DurabilityUnmet           RETRY    added, but how safely is unknown; .id .wanted
    └── Ending                             what a handler raises to choose the outcome
        ├── Retry                          again later; .reason .after
        ├── Release                        handed back, attempt not burnt; .after
        └── Bury                           to the dead letters; .reason

Attributes survive pickling and copying, because errors cross process borders under the supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

After = int | float | str | timedelta
"""A duration as users write it: seconds, a timedelta or a text such as "30s"."""


class Verdict(Enum):
    """What a caller does about an error."""

    RETRY = "retry"  # back off and go on
    FENCED = "fenced"  # somebody else owns it now: drop the work, count it
    FATAL = "fatal"  # nothing will help but a person


class HeadraceError(Exception):
    """Root of the tree. Catch this to catch whatever Headrace raises on purpose."""

    verdict: ClassVar[Verdict] = Verdict.FATAL

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls cls(*args), which fails for keyword-only constructors.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadraceError:
    """Make an error again without running its constructor: the message was composed the first time."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


# ── what the user wrote ──────────────────────────────────────────────────────────────────────────────


class ConfigError(HeadraceError, ValueError):
    """A setting that cannot work. Raised at construction, before anything is sent."""


class NameRefused(ConfigError):
    """A stream, group, owner or key name that cannot be used (SPEC 52b)."""


class UrlRefused(ConfigError):
    """A server URL that cannot be understood. Its text never holds the password."""


class HandlerRefused(ConfigError):
    """A handler with a signature nobody can call, or one registered twice."""


class CodecError(HeadraceError):
    """Payload and bytes do not fit each other."""


class EncodeError(CodecError):
    """The payload cannot be written by this codec."""


class PayloadTooLarge(EncodeError):
    """The payload is larger than the limit of its stream."""


class DecodeError(CodecError):
    """The bytes are not what the model says. A delivery that raises it is buried, not retried (SPEC 17)."""


# ── what the server said ─────────────────────────────────────────────────────────────────────────────


class ServerError(HeadraceError):
    """What the server, or the way to it, said."""


class Unavailable(ServerError):
    """The server cannot be reached or does not serve just now."""

    verdict = Verdict.RETRY


class NoPrimary(Unavailable):
    """No sentinel answers, or they do not agree on a primary: nobody can say where to write just now."""


class SlotMissing(Unavailable):
    """No master of the cluster serves the slot that a stream is in."""

    def __init__(self, message: str = "", *, slot: int = -1, stream: str = "") -> None:
        super().__init__(message)
        self.slot = slot
        self.stream = stream


class ServerRefused(ServerError):
    """The server is there and refuses to write just now: memory, disk, replicas, a long script."""

    verdict = Verdict.RETRY


class NoGroup(ServerError):
    """The server said NOGROUP. The reader decides whether the group may be made again (SPEC 3)."""

    verdict = Verdict.RETRY


class NoScript(ServerError):
    """The server said NOSCRIPT. The link loads the script and sends the call again."""

    verdict = Verdict.RETRY


class BusyGroup(ServerError):
    """The group exists already."""


class AuthFailed(ServerError):
    """Wrong or missing user name or password."""


class MissingRight(ServerError):
    """An ACL forbids what was asked. `command` and `key` name it as far as the server told."""

    def __init__(self, message: str = "", *, command: str = "", key: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.key = key


class WrongTopology(ServerError):
    """The server is part of a cluster and the URL says otherwise, or the other way round."""


class ServiceUnknown(ServerError):
    """The sentinels do not watch a service of that name."""


class WrongType(ServerError):
    """The key holds something else than what is needed there."""


class ServerTooOld(ServerError):
    """The server lacks a command that nothing can replace."""


class GroupLost(ServerError):
    """The group vanished while workers ran, and nothing says where to resume (SPEC 3)."""

    def __init__(self, message: str = "", *, stream: str = "", group: str = "") -> None:
        super().__init__(message)
        self.stream = stream
        self.group = group


class CommandRefused(ServerError):
    """Any other error reply: most likely a bug, or a server that is not what it says."""


# ── what became of the work ──────────────────────────────────────────────────────────────────────────


class OwnerTaken(HeadraceError):
    """A fixed owner name is used by another live process (SPEC 2)."""

    def __init__(self, message: str = "", *, owner: str = "", holder: str = "") -> None:
        super().__init__(
            message
            or f"owner name {owner!r} is in use by {holder or 'another process'}: "
            "stop that one, or leave the owner name out to get a unique one"
        )
        self.owner = owner
        self.holder = holder


class DeliveryLost(HeadraceError):
    """The outcome came from a former owner and was refused (SPEC 11). Nothing was changed."""

    verdict = Verdict.FENCED

    def __init__(
        self,
        message: str = "",
        *,
        stream: str = "",
        group: str = "",
        id: str = "",  # noqa: A002 - the word of the glossary
        holder: str = "",
    ) -> None:
        taken = f"taken over by {holder}" if holder else "finished or taken over by somebody else"
        super().__init__(
            message
            or f"{stream}/{group} {id}: {taken}; the outcome was refused and nothing was changed. "
            "Raise the lease if this owner was only slow"
        )
        self.stream = stream
        self.group = group
        self.id = id
        self.holder = holder


class AssignmentTaken(HeadraceError):
    """The word came from a former owner of a stream and was refused (SPEC 43). Nothing was changed."""

    verdict = Verdict.FENCED

    def __init__(self, message: str = "", *, stream: str = "", holder: str = "") -> None:
        taken = f"taken over by {holder}" if holder else "given back, finished or taken over"
        super().__init__(
            message
            or f"{stream}: {taken}; what its former owner said was refused and nothing was changed. "
            "The new owner goes on after the last acknowledged message"
        )
        self.stream = stream
        self.holder = holder


class AssignmentRefused(HeadraceError):
    """An assignment that cannot be had, or ended, by this owner."""

    def __init__(self, message: str = "", *, stream: str = "") -> None:
        super().__init__(message)
        self.stream = stream


class AlreadyClaimed(AssignmentRefused):
    """Another owner has it: of two that claim an expired assignment one wins (SPEC 44)."""

    def __init__(self, message: str = "", *, stream: str = "", holder: str = "") -> None:
        super().__init__(
            message or f"{stream} is owned by {holder or 'somebody else'}: nothing to do, its owner goes on with it",
            stream=stream,
        )
        self.holder = holder


class NotOwned(AssignmentRefused):
    """This owner does not have it, or it is finished."""


class EffectRefused(HeadraceError):
    """An effect that could fail half-way: refused before anything was written (SPEC 33)."""


class AddUnknown(HeadraceError):
    """Some adds have no answer: they may or may not be in the stream (SPEC 36).

    `results` has one item per message in the order given: what was answered, or None where unknown.
    """

    verdict = Verdict.RETRY

    def __init__(self, message: str = "", *, results: Sequence[Any] = ()) -> None:
        unknown = sum(1 for result in results if result is None)
        super().__init__(
            message
            or f"{unknown} of {len(results)} adds have no answer and are unknown, not failed: "
            "add them again with the same keys, which adds once"
        )
        self.results: list[Any] = list(results)


class DurabilityUnmet(HeadraceError):
    """The message was added, but the wanted durability was not confirmed in time (SPEC 37)."""

    verdict = Verdict.RETRY

    def __init__(self, message: str = "", *, id: str = "", wanted: str = "") -> None:  # noqa: A002
        super().__init__(
            message
            or f"message {id} was added, but whether it is {wanted or 'durable'} is unknown, not failed: "
            "add it again with the same key, which adds once"
        )
        self.id = id
        self.wanted = wanted


# ── what a handler says ──────────────────────────────────────────────────────────────────────────────


class Ending(HeadraceError):
    """Raised by a handler to choose how its delivery ends. Not a failure of Headrace."""


class Retry(Ending):
    """Again later: after the handler's backoff, or `after` if given."""

    def __init__(self, reason: str = "", after: After | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Release(Ending):
    """Handed back untouched: somebody else may have it, and the attempt is not burnt."""

    def __init__(self, after: After | None = None) -> None:
        super().__init__("")
        self.after = after


class Bury(Ending):
    """To the dead letters at once, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def classify(error: BaseException) -> Verdict:
    """Say what to do about an error: the one place where that is decided.

    Errors of this tree carry their verdict. Errors of the operating system and of streams that ended are the
    way to the server failing, so they are retried. Whatever is left is a bug or a person's decision.
    """
    if isinstance(error, HeadraceError):
        return error.verdict
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return Verdict.RETRY
    return Verdict.FATAL
