"""A stream as its users see it: messages go in with add(), handlers hang on it, its dead letters are looked after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.codec import Codec, codec_for, encode_fields, own_fields
from headrace.config import HandlerSettings, duration_ms
from headrace.deadletters import DeadLetters
from headrace.errors import ConfigError
from headrace.job import Job, make_job
from headrace.names import check_group, keys_of
from headrace.producer import DURABILITIES, Added, Addition, Durability
from headrace.redis import commands, scripts

if TYPE_CHECKING:
    from headrace.app import App

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

WINDOW_MS = 86_400_000  # how long a key is remembered: 24 h


class Stream(Generic[T]):
    """Made by :meth:`headrace.App.stream`."""

    def __init__(self, app: App, name: str, model: Any = None, *, max_bytes: int | str | None = None) -> None:
        self._app = app
        self.keys = keys_of(name)
        self.name = name
        limits = {} if max_bytes is None else {"max_bytes": max_bytes}
        self.codec: Codec[T] = codec_for(model, **limits)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r} of {self.codec.name}>"

    # ── adding ──

    async def add(
        self,
        payload: T,
        *,
        key: str | None = None,
        window: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        traceparent: str | None = None,
        durability: Durability = "received",
    ) -> Added:
        """Add one message. The same ``key`` within ``window`` (24 h) adds once; a second call returns that id."""
        if durability not in DURABILITIES:
            raise ConfigError(f"durability is {durability!r}: choose one of {', '.join(DURABILITIES)}")
        addition = self.addition(payload, key, window, headers, traceparent)
        return await self._app.producer.add(addition, durability)

    async def add_many(
        self, payloads: Iterable[T], *, keys: Sequence[str] | None = None, window: float | str | None = None
    ) -> list[Added]:
        """Add many in pipelines, with one key each if given. Raises AddUnknown with the results known so far."""
        items = list(payloads)
        if keys is not None and len(keys) != len(items):
            raise ConfigError(f"{len(items)} payloads and {len(keys)} keys: give one key for each payload, or none")
        additions = [
            self.addition(payload, None if keys is None else keys[at], window) for at, payload in enumerate(items)
        ]
        return await self._app.producer.add_many(additions)

    def add_sync(self, payload: T, *, key: str | None = None, headers: Mapping[str, str] | None = None) -> Added:
        """The same as add() for code without an event loop: plain ``def`` handlers, scripts."""
        answer = self._app.sync_call(self.addition(payload, key, headers=headers).call())
        return Added(answer.id, answer.first)

    def addition(
        self,
        payload: T,
        key: str | None = None,
        window: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        traceparent: str | None = None,
    ) -> Addition:
        """A message ready to be sent."""
        own = own_fields(key=key, headers=headers, traceparent=traceparent)
        window_ms = WINDOW_MS if window is None else duration_ms(window, name="window")
        return Addition(self.keys, [*encode_fields(self.codec, payload), *own], key, window_ms)

    # ── handling ──

    def handler(self, *, group: str, **options: Any) -> Callable[[F], F]:
        """Hang a handler on the stream. return = ack · raise = retry with backoff · raise Bury("why") = dead letter.

        Options: concurrency, lease, max_attempts, backoff, timeout, dead_letters, dead_letters_maxlen, delete_on_ack,
        start, batch, batch_wait, once, stall_after, prefix, owner_retention, recovery. With ``batch=100`` the handler
        gets a list of deliveries.
        """
        settings = HandlerSettings.of(**options)
        check_group(group)

        def register(function: F) -> F:
            self._app.register(self.job(group, function, settings))
            return function

        return register

    def job(self, group: str, function: Callable[..., Any], settings: HandlerSettings) -> Job:
        """What a worker has to know of a handler of this stream."""
        return make_job(self.name, group, function, settings, self.codec, self._app.provided_types)

    # ── looking after it ──

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.keys, self._app.link, self._app.recorder)

    async def backlog(self, group: str) -> int:
        """Unread + pending + waiting: what is left to do for a group, and the number to scale workers by."""
        levels = await self._app.link.call(scripts.levels(self.keys, check_group(group)))
        return levels.backlog

    async def result(self, group: str, key: str) -> bytes | None:
        """The result a handler with ``once`` left for a key, or None if it is not done (or forgotten by now)."""
        (value,) = await self._app.link.call(commands.values([self.keys.once(group, key)]))
        return value
