"""A delivery: one message in the hands of one owner, and the four ways it can end.

A :class:`Delivery` is what a handler receives. It ends exactly once, by one :class:`Outcome`; an outcome that was
chosen may be sent again (the answer was lost on the way), but is never replaced by another one. That, together with
the server's check of (owner, attempt), is what makes the fence sound.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from headrace.errors import After, DeliveryLost, HeadraceError
from headrace.fields import find_field, headers_of, key_of
from headrace.options import duration_ms, said

if TYPE_CHECKING:
    from headrace.effects import Effect
    from headrace.member import Member

T = TypeVar("T")


class Way(Enum):
    """The four ways a delivery ends."""

    ACK = "ack"
    RETRY = "retry"
    RELEASE = "release"
    BURY = "bury"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a delivery ends, and what goes with it.

    ``after_ms`` is the wait before the next attempt (None: the policy decides). ``result`` goes into the completion
    marker of a handler with ``once``. ``error`` is the type of the exception behind a retry or a burial.
    """

    way: Way
    reason: str = ""
    error: str = ""
    after_ms: int | None = None
    starts: int | None = None  # handler starts to be told in a dead letter, where the attempt says something else
    effects: tuple[Effect, ...] = ()
    result: bytes = b""

    def __post_init__(self) -> None:
        given: object = self.reason  # a handler may give anything as its reason
        if not isinstance(given, str):
            object.__setattr__(self, "reason", said(given))


ACK: Final = Outcome(Way.ACK)


class State(IntEnum):
    """Where a delivery stands inside its process. It only ever grows."""

    READ = 0  # held, not started
    STARTED = 1  # its handler runs
    ENDING = 2  # an outcome was chosen and is on its way to the server
    ENDED = 3  # the server has answered, or the delivery was lost


class Ways(Protocol):
    """What a delivery needs from its lane to end itself."""

    @property
    def member(self) -> Member: ...

    async def end(self, delivery: Delivery[Any], outcome: Outcome) -> None: ...


class Lost:
    """Set once a delivery was taken over. Usable from the event loop (``await lost.wait()``) and from threads."""

    __slots__ = ("_event", "_flag", "_lock")

    def __init__(self) -> None:
        self._flag = False
        self._event: asyncio.Event | None = None
        self._lock: threading.Event | None = None

    def is_set(self) -> bool:
        return self._flag

    async def wait(self) -> None:
        """Return once the delivery is lost. For handlers on the event loop."""
        if self._event is None:
            self._event = asyncio.Event()
            if self._flag:
                self._event.set()
        await self._event.wait()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """The same for a plain ``def`` handler: True once the delivery is lost, False when the time is over."""
        if self._lock is None:
            self._lock = threading.Event()
        if self._flag:
            self._lock.set()
        return self._lock.wait(timeout)

    def set(self) -> None:
        """Called by the lane, on the event loop."""
        self._flag = True
        if self._event is not None:
            self._event.set()
        if self._lock is not None:
            self._lock.set()


class Delivery(Generic[T]):
    """A message in the hands of this worker.

    ``return`` from the handler acknowledges it; raising retries it after a backoff. The methods below end it earlier
    or otherwise; each raises :class:`~headrace.errors.DeliveryLost` when another owner has taken the message over.
    """

    __slots__ = (
        "_fields",
        "_original_id",
        "_waiter",
        "_ways",
        "alone",
        "count",
        "earlier",
        "fate",
        "idle_ms",
        "level",
        "mark_slot",
        "payload",
        "raw_id",
        "read_at",
        "renewed_at",
        "resent",
        "spare",
        "state",
        "trimmed",
    )

    payload: T

    def __init__(self, ways: Ways, raw_id: bytes, fields: list[bytes], count: int, idle_ms: int, now: float) -> None:
        self._ways = ways
        self.raw_id = raw_id
        self._fields = fields
        self.count = count  # the server's delivery count: with the owner it is the fence
        self.earlier = 0  # attempts under other ids, before this copy was made (recovery by requeue)
        self.spare = 0  # counts that started no handler: this process was handed what it had in hand
        self._original_id = ""
        self.idle_ms = idle_ms
        self.read_at = now
        self.renewed_at = now
        self.state = State.READ
        self.fate: Lost | None = None  # made when somebody asks, or when it is lost
        self._waiter: asyncio.Future[None] | None = None
        self.alone = False
        self.level = 0
        self.mark_slot = -1
        self.resent = False
        self.trimmed = False  # a renewal found its entry deleted while an outcome was on its way, which came too late

    # ── what it is ──

    @property
    def id(self) -> str:
        return self.raw_id.decode()

    @property
    def stream(self) -> str:
        return self._ways.member.stream

    @property
    def group(self) -> str:
        return self._ways.member.group

    @property
    def owner(self) -> str:
        return self._ways.member.owner

    @property
    def attempt(self) -> int:
        """How often a handler was started for this message, this time included."""
        return self.starts + self.earlier

    @property
    def starts(self) -> int:
        """The same, under this id alone: the server's count of it when nobody has it."""
        return self.count - self.spare

    @property
    def original_id(self) -> str:
        """The id under which the message was added first. Differs from ``id`` in a copy (recovery by requeue)."""
        return self._original_id or self.id

    @property
    def raw_fields(self) -> list[bytes]:
        """Field names and values in turn, byte for byte, repeated names included."""
        return self._fields

    @property
    def fields(self) -> dict[str, bytes]:
        """The fields by name. Of a repeated name the first one counts, as everywhere in Headrace."""
        flat = self._fields
        names = (name.decode("utf-8", "backslashreplace") for name in flat[-2::-2])
        return dict(zip(names, flat[-1::-2], strict=True))

    @property
    def key(self) -> str | None:
        """The key the message was added with."""
        return key_of(self._fields, self._ways.member.prefix)

    @property
    def once_key(self) -> str:
        """What a completion marker is named after: the key the message was added with, else its id."""
        return self.key or self.original_id

    @property
    def headers(self) -> dict[str, str]:
        return headers_of(self._fields, self._ways.member.prefix)

    @property
    def traceparent(self) -> str | None:
        found = find_field(self._fields, f"{self._ways.member.prefix}traceparent".encode())
        return None if found is None else found.decode("ascii", "backslashreplace")

    @property
    def lost(self) -> Lost:
        """Set within one renewal after another owner took this message over."""
        if self.fate is None:
            self.fate = Lost()
        return self.fate

    @property
    def is_lost(self) -> bool:
        return self.fate is not None and self.fate.is_set()

    def __repr__(self) -> str:
        where = f"{self.stream!r}/{self.group!r}"
        return f"<Delivery {self.id} of {where}, attempt {self.attempt}, {self.state.name.lower()}>"

    # ── how it ends ──

    async def ack(self, *, effects: Sequence[Effect] = (), result: bytes | str = b"") -> None:
        """Done. ``effects`` are written together with the acknowledgement, or not at all."""
        data = result.encode() if isinstance(result, str) else result
        await self._ways.end(self, Outcome(Way.ACK, effects=tuple(effects), result=data))

    async def retry(self, after: float | str | None = None, *, reason: str = "") -> None:
        """Again later: after ``after`` (seconds or "30s"), else after the handler's backoff."""
        await self._ways.end(self, Outcome(Way.RETRY, reason=reason, after_ms=optional_ms(after)))

    async def release(self, after: float | str | None = None) -> None:
        """Hand it back untouched: this attempt does not count."""
        await self._ways.end(self, Outcome(Way.RELEASE, after_ms=optional_ms(after)))

    async def bury(self, reason: str) -> None:
        """Never again: to the dead letters, where it can be looked at and replayed."""
        await self._ways.end(self, Outcome(Way.BURY, reason=reason))

    # ── for the lane ──

    def restore(self, fields: list[bytes]) -> None:
        """A replayed copy: from here on it shows the fields of the original."""
        self._fields = fields

    def restore_requeued(self, fields: list[bytes], retries: int, original_id: str) -> None:
        """A requeued copy: the same, and it counts as one more attempt at the message it was made of."""
        self._fields = fields
        self.earlier = retries
        self._original_id = original_id

    def retake(self, count: int, now: float) -> None:
        """The server handed me my own running entry again: the fence moves on to the new count (DESIGN 4b).

        That is one more delivery and no start of a handler, so the attempt stays. A count that rose by more tells of
        others that had it meanwhile, and theirs are attempts.
        """
        self.spare = self.spare + 1 if count > self.count else 0
        self.count = count
        self.renewed_at = now

    def lose(self) -> None:
        """Another owner has it now. Told once; whoever waits for an answer hears that it was refused."""
        self.lost.set()

    def waiter(self) -> asyncio.Future[None]:
        """A future for the server's answer to the outcome. Shared by everyone who asks."""
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def forget_waiter(self) -> None:
        """The handler may choose another outcome: the next one gets an answer of its own."""
        self._waiter = None

    def check_open(self) -> None:
        """Raise if an outcome was chosen already: a delivery ends once."""
        if self.state >= State.ENDING:
            raise DeliveryLost(
                f"{self!r} has already ended: a delivery ends once, and its outcome is not replaced",
                stream=self.stream,
                group=self.group,
                id=self.id,
            )

    def answered(self, error: HeadraceError | None = None) -> None:
        """The server has answered (or the delivery was lost): the delivery has ended."""
        self.state = State.ENDED
        if error is not None:
            self.tell(error)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def tell(self, error: HeadraceError) -> None:
        """Raise this where the handler waits for an answer. One that was cancelled meanwhile needs none, and asyncio
        would complain that nobody had asked for it."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            self._waiter.exception()

    def refusal(self, holder: str = "") -> DeliveryLost:
        return DeliveryLost(stream=self.stream, group=self.group, id=self.id, holder=holder)


class SyncDelivery(Generic[T]):
    """A delivery as a plain ``def`` handler sees it: the same, with calls that block its thread."""

    def __init__(self, delivery: Delivery[T], loop: asyncio.AbstractEventLoop) -> None:
        self._delivery = delivery
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    def _wait(self, ending: Any) -> None:
        asyncio.run_coroutine_threadsafe(ending, self._loop).result()

    def ack(self, *, effects: Sequence[Effect] = (), result: bytes | str = b"") -> None:
        self._wait(self._delivery.ack(effects=effects, result=result))

    def retry(self, after: float | str | None = None, *, reason: str = "") -> None:
        self._wait(self._delivery.retry(after, reason=reason))

    def release(self, after: float | str | None = None) -> None:
        self._wait(self._delivery.release(after))

    def bury(self, reason: str) -> None:
        self._wait(self._delivery.bury(reason))


def optional_ms(after: After | None) -> int | None:
    """The wait that a handler asked for, in ms; None leaves it to the policy."""
    return None if after is None else duration_ms(after, name="after")
