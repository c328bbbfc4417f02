"""Assignments as their users see them: streams are announced, owned in order, taken over, finished (SPEC 42 to 45)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.announcements import Announcements, Listed
from headrace.assignment import write_info
from headrace.codec import Codec, codec_for
from headrace.deadletters import DeadLetters
from headrace.errors import ConfigError, NotOwned
from headrace.events import Expired
from headrace.holding import place_of
from headrace.listening import QUEUE, Events
from headrace.names import check_group, check_stream, keys_of
from headrace.options import whole_number
from headrace.ownerjob import OwnerJob, OwnerSettings, make_owner_job, merged
from headrace.redis import ownership
from headrace.redis.ownership import Announced, Place
from headrace.room import Room

if TYPE_CHECKING:
    from headrace.app import App

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Assignments(Generic[T]):
    """Made by :meth:`headrace.App.assignments`."""

    def __init__(
        self,
        app: App,
        name: str,
        model: Any = None,
        *,
        group: str = "owners",
        max_bytes: int | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._app = app
        self.keys = keys_of(name)
        self.name = name
        self.group = check_group(group)
        limits = {} if max_bytes is None else {"max_bytes": max_bytes}
        self.codec: Codec[T] = codec_for(model, **limits)
        self._options = dict(options or {})
        self._listening: Events | None = None
        self.settings: OwnerSettings = merged(self._options, {})  # a bad option is known here, not at the first owner

    def __repr__(self) -> str:
        return f"<Assignments {self.name!r}, group {self.group!r}, messages of {self.codec.name}>"

    def place(self, name: str) -> Place:
        return place_of(self.name, self.group, name)

    # ── announcing and looking ──

    async def announce(self, name: str, info: object = None) -> Announced:
        """Give the stream of that name to exactly one owner. Until it is finished, a second call changes nothing.

        ``info`` is JSON that every owner gets, also after a takeover. Answers (id, new).
        """
        return await self._announcements.announce(name, info)

    def announce_sync(self, name: str, info: object = None) -> Announced:
        """The same for code without an event loop: plain ``def`` handlers, scripts."""
        return self._app.sync_call(ownership.announce(self.keys, check_stream(name), write_info(info)))

    async def listed(self) -> list[Listed]:
        """All assignments that are not finished: who owns them, how far they are."""
        return await self._announcements.listed()

    @property
    def _announcements(self) -> Announcements:
        return Announcements(self.keys, self.group, self._app.link, self.place)

    @property
    def dead_letters(self) -> DeadLetters:
        """Assignments whose handlers failed at every attempt. Replayed, one is owned again and goes on where it was."""
        return DeadLetters(self.keys, self._app.link, self._app.recorder)

    # ── owning ──

    def owner(self, **options: Any) -> Callable[[F], F]:
        """Hang the function that owns streams on the assignments: it is called once for each stream, with its room.

        ``async for message in room`` gives the messages in order, ``await room.ack(message)`` says that everything up
        to there is done, ``await room.finish()`` ends the stream for good. Returning hands the stream back.
        """
        settings = merged(self._options, options)

        def register(function: F) -> F:
            provided = self._app.provided_types
            self._app.register_owner(make_owner_job(self.name, self.group, function, settings, self.codec, provided))
            return function

        return register

    # ── deciding oneself (SPEC 44) ──

    def events(self, *, limit: int = QUEUE) -> Events:
        """What happens to assignments, for those who decide themselves: see :mod:`headrace.events`.

        Listening makes this process an owner: it is given its fair share of what is free (Added), keeps its lease from
        a thread, and is told whose lease has ended (Expired), to claim it or not. At most ``limit`` events wait for a
        slow listener; beyond that nothing more is taken, and Expired is told later, so nothing is lost.
        """
        if self._listening is not None and not self._listening.closed:
            raise ConfigError(f"{self.name}: events() is being listened to already: await done() first")
        whole_number(limit, name="limit", least=1, most=1_000_000)
        job = OwnerJob(self.name, self.group, _nobody, self.settings, self.codec, {})
        self._listening = Events(self._app.listener_worker, job, limit)
        return self._listening

    async def claim(self, expired: Expired | str) -> Room[T]:
        """Take an assignment whose owner's lease has ended. Of two that claim it one wins, the other gets
        AlreadyClaimed.

        For half a lease after a connect or an outage an ended lease says nothing (SPEC 20), and it waits.
        """
        return await self._listener().claim(expired)

    async def done_stream(self, name: str, *, delete: bool = True) -> None:
        """A stream is finished: its data deleted (unless told to keep it), its announcement acked and deleted.

        As with :meth:`headrace.Room.finish` nobody looks whether messages are left in it.
        """
        await self._listener().done_stream(name, delete=delete)

    async def done(self) -> None:
        """Hand back everything unfinished and stop listening. Doing it twice, or before listening, is fine."""
        if self._listening is not None:
            await self._listening.aclose("done")

    def _listener(self) -> Events:
        if self._listening is None or self._listening.closed:
            raise NotOwned(f"{self.name}: this process owns nothing: listen to events() first")
        return self._listening


async def _nobody(room: object) -> None:
    """The function of a job whose rooms are a listener's."""
