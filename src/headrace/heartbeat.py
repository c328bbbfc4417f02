"""The heartbeat: the thread that keeps an owner's one lease on all its assignments, whatever the loop does (SPEC 45).

It has its own connection and beats three times a lease, in one short script however many streams are owned. While the
server is away it tries a dozen times a lease, so that beats come before anybody may inherit. It stops when the loop has
stood still for ``stall_after``: a process that hangs for good must not keep its streams.

:attr:`Post.sure_until` is the other half of the lease: how long this process may hand out messages without having heard
that it still owns them. A process that was paused or cut off for longer asks before it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from headrace import points
from headrace.errors import HeadraceError, Verdict, classify
from headrace.member import Member
from headrace.pulse import Pulse, Vigil
from headrace.recorder import Recorder
from headrace.redis import ownership, replies, scripts
from headrace.redis.calls import Call
from headrace.redis.connect import Server
from headrace.redis.synclink import SyncLink

log = logging.getLogger("headrace")

LOOKS = 12  # a lease


class Post:
    """One owner of one group of assignments, as its heartbeat sees it. The callbacks run on the event loop."""

    def __init__(
        self,
        member: Member,
        *,
        told: Callable[[ownership.Beat], None],
        failed: Callable[[BaseException], None],
        join: Call[replies.Joined],
    ) -> None:
        self.member = member
        self.told = told
        self.failed = failed
        self.join = join
        self.sure_until = 0.0  # monotonic seconds
        self.beat_at = 0.0  # when the last answered beat was sent
        self.leaving = False
        self.in_doubt = True  # the lease had ended: not sure of anything until the holding has asked what is left
        self.doubts = 0  # how often that was
        self._confirmed = asyncio.Event()

    @property
    def lease_s(self) -> float:
        return self.member.settings.lease_ms / 1000

    def call(self) -> Call[ownership.Beat]:
        member = self.member
        lease_ms = member.settings.lease_ms
        return ownership.beat(member.keys, member.group, member.owner, lease_ms, leaving=self.leaving)

    def heard(self, beat: ownership.Beat, sent_at: float) -> None:
        """From the thread: a beat was answered."""
        if not beat.alive:
            self.doubts += 1
            self.in_doubt = True
        self.beat_at = sent_at
        if not self.in_doubt:
            self.sure_until = sent_at + self.lease_s

    # ── on the event loop ──

    def trust(self, beat_at: float, doubts: int) -> None:
        """What is left was asked for after this beat and so many doubts: if there was none since, the lease holds."""
        if doubts == self.doubts:
            self.in_doubt = False
            self.sure_until = max(self.sure_until, beat_at + self.lease_s)
        self.wake()

    def wake(self) -> None:
        self._confirmed.set()

    async def confirmed(self) -> None:
        """Wait until something was heard of the lease; whoever waits looks again then."""
        self._confirmed.clear()
        if time.monotonic() > self.sure_until:
            await self._confirmed.wait()


class Heartbeat:
    def __init__(
        self,
        server: Server,
        owner: str,
        posts: Sequence[Post],
        pulse: Pulse,
        recorder: Recorder,
        *,
        names: Mapping[CodeType, str],
        tell: Callable[[float], None] | None = None,
    ) -> None:
        self._posts = list(posts)
        self.streams = tuple(post.member.stream for post in posts)
        self._tell = tell
        self._recorder = recorder
        lease_ms = min(post.member.settings.lease_ms for post in posts)
        self._look_s = lease_ms / 1000 / LOOKS
        self._vigil = Vigil(
            pulse,
            lease_s=lease_ms / 1000,
            stall_s=min(post.member.settings.stall_after_ms for post in posts) / 1000,
            names=names,
            stalled=lambda: recorder.count("stalled_total", 1, **posts[0].member.labels),
        )
        limit_ms = max(50, lease_ms // 4)
        self._links: list[SyncLink] = [
            server.sync_link(f"headrace:{owner}:beat", at=post.member.stream, timeout_ms=limit_ms) for post in posts
        ]
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-heartbeat", daemon=True)
        self._failing = False

    @property
    def client_ids(self) -> list[int]:
        return [link.client_id for link in self._links if link.client_id]

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End the thread. Stopping twice, or before starting, is fine."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 5.0)
        for link in self._links:
            link.close()

    def cut(self) -> None:
        """Stop beating at once and without a word, as a crash would."""
        self._stop.set()

    # ── the thread ──

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:  # noqa: BLE001 - no lease would be kept any more, and nobody would know
            self._on_loop(self._posts[0].failed, error)

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._look(time.monotonic())  # before the first wait: it may have to go on for another one
            self._stop.wait(self._look_s)

    def _look(self, now: float) -> None:
        if self._tell is not None:
            self._tell(now)
        if self._vigil.is_stalled(now):
            return
        for post, link in zip(self._posts, self._links, strict=True):
            if self._stop.is_set():
                return
            if now >= post.beat_at + post.lease_s / 3 or post.in_doubt:
                self._beat(post, link)

    def _beat(self, post: Post, link: SyncLink) -> None:
        member, sent_at = post.member, time.monotonic()
        stay = scripts.stay(member.keys, member.group, member.owner, member.token)
        try:
            beat, stayed = link.pipe([post.call(), stay])
        except HeadraceError as error:
            self._report(post, error)
            return
        points.reached("heartbeat.renewed")
        for answer in (beat, stayed):
            if isinstance(answer, HeadraceError):
                self._report(post, answer)
                return
        self._failing = False
        self._recorder.count("renewed_total", 1, **member.labels)
        post.heard(beat, sent_at)
        if stayed.missing:
            self._rejoin(post, link)
        elif not stayed.mine:
            self._on_loop(post.failed, stayed.taken(member.owner))
        self._on_loop(post.told, beat)

    def _rejoin(self, post: Post, link: SyncLink) -> None:
        try:
            link.call(post.join)
        except HeadraceError as error:
            self._report(post, error)

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stop.set()  # the loop is closed: nobody is left to be told

    def _report(self, post: Post, error: HeadraceError) -> None:
        self._recorder.count("renew_failed_total", 1, **post.member.labels)
        if classify(error) is Verdict.FATAL:
            self._stop.set()
            self._on_loop(post.failed, error)
        elif not self._failing:
            self._failing = True
            log.warning("heartbeat.waits stream=%s: %s", post.member.stream, error)
