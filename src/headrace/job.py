"""A job: a user's function, what it handles, and how it wants to be called.

The signature is looked at once, at registration. A handler takes the payload first, then, in any order and only if it
wants them, the delivery and whatever the app provides by type. The call that remains for every message is the user's
own function, without a wrapper where it takes payload and delivery alone.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.codec import Codec
from headrace.config import HandlerSettings
from headrace.errors import HandlerRefused
from headrace.message import Delivery, SyncDelivery
from headrace.partitions import Partitions


@dataclass(frozen=True, slots=True)
class Job:
    """One handler of one group of one stream. ``wants`` names the types to be injected, by parameter."""

    stream: str
    group: str
    function: Callable[..., Any]
    settings: HandlerSettings
    codec: Codec[Any]
    is_async: bool
    payload: str  # name of the parameter that takes the payload, or the list of deliveries of a batch handler
    delivery: str | None  # name of the parameter that takes the delivery
    wants: Mapping[str, type]
    partitions: Partitions | None = None  # the stream is one of these, and their handlers share the concurrency

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', repr(self.function))}"

    @property
    def batch(self) -> int | None:
        return self.settings.batch

    @property
    def concurrency(self) -> int:
        """How many calls run at once: what the user said, else by the kind of handler."""
        if self.batch is not None and self.settings.concurrency is None:
            return 1
        wanted = self.settings.slots(is_async=self.is_async)
        return wanted if self.partitions is None else -(-wanted // self.partitions.count)

    @property
    def slots(self) -> int:
        """How many deliveries one worker may hold."""
        return self.concurrency * (self.batch or 1)

    def with_concurrency(self, concurrency: int) -> Job:
        return replace(self, settings=replace(self.settings, concurrency=concurrency))

    def bind(self, provided: Mapping[type, Any]) -> Callable[[Any, Any], Any]:
        """The call for one message: (payload, delivery) -> result or awaitable."""
        injected = {name: provided[kind] for name, kind in self.wants.items()}
        function = functools.partial(self.function, **injected) if injected else self.function
        delivery = self.delivery
        if delivery is None:
            return lambda payload, _: function(payload)
        return lambda payload, held: function(payload, **{delivery: held})


def make_job(
    stream: str,
    group: str,
    function: Callable[..., Any],
    settings: HandlerSettings,
    codec: Codec[Any],
    provided: frozenset[type] = frozenset(),
) -> Job:
    """Look at a handler's signature and say at once what is wrong with it."""
    if not callable(function):
        raise HandlerRefused(f"{function!r} is not a function: decorate a function that takes the payload")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise HandlerRefused(f"{name} is a generator: a handler returns (ack) or raises (retry), it does not yield")
    if settings.timeout_ms is not None and not is_async:
        raise HandlerRefused(f"{name} is a plain def and has a timeout: a thread cannot be stopped, make it async")
    payload, delivery, wants = _parameters(function, name, provided)
    return Job(stream, group, function, settings, codec, is_async, payload, delivery, wants)


def _parameters(
    function: Callable[..., Any], name: str, provided: frozenset[type]
) -> tuple[str, str | None, dict[str, type]]:
    """Which parameter takes what. The first that is neither delivery nor provided takes the payload."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise HandlerRefused(f"{name}: its signature cannot be read ({error}): wrap it in a def") from error
    hints = _hints(function)
    payload: str | None = None
    delivery: str | None = None
    wants: dict[str, type] = {}
    for parameter in parameters:
        hint = hints.get(parameter.name, parameter.annotation)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if _is_delivery(hint) or (hint is parameter.empty and parameter.name == "delivery"):
            delivery = parameter.name
        elif isinstance(hint, type) and hint in provided:
            wants[parameter.name] = hint
        elif payload is None and parameter.kind is not parameter.KEYWORD_ONLY:
            payload = parameter.name
        elif parameter.default is parameter.empty:
            raise HandlerRefused(
                f"{name}: nothing is known to go into parameter {parameter.name!r}: annotate it as Delivery, "
                f"or as a type given to app.provide(), or give it a default"
            )
    if payload is None:
        raise HandlerRefused(f"{name} takes no payload: write def {name}(payload) or def {name}(payload, delivery)")
    if delivery is not None and parameters[0].name == delivery:
        raise HandlerRefused(f"{name}: the payload comes first: write def {name}(payload, {delivery})")
    return payload, delivery, wants


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}  # a name that is only there for type checkers: what is left is enough to go on


def _is_delivery(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return origin in (Delivery, SyncDelivery) or hint in ("Delivery", "SyncDelivery")
