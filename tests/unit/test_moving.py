"""Where another server may take over, nobody who waits for it waits for long (SPEC 20, 49)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace import hints, requeuer
from headrace.config import HandlerSettings
from headrace.member import Member
from headrace.names import keys_of
from headrace.recorder import NoRecorder
from headrace.recovery import Requeue
from headrace.redis.connect import Server
from headrace.redis.requeue import Rules

NOBODY = "127.0.0.1:1"


def _hints(server: Server) -> Coroutine[Any, Any, None]:
    return hints.Hints(server, "me", lambda key: None)._run()


def _requeuer(server: Server) -> Coroutine[Any, Any, None]:
    keys = keys_of("orders")
    member = Member(keys, "billing", "me", HandlerSettings.of(lease="500ms"))
    parts = (member, server.link(), NoRecorder(), Requeue(), Rules(3, keys.dead_letters))
    made = requeuer.Requeuer(*parts, is_mine=lambda id_: False)
    made.expect(b"1-1", 0)  # there is something to look at
    return made.run()


@pytest.mark.parametrize(("module", "run"), [(hints, _hints), (requeuer, _requeuer)])
@pytest.mark.parametrize(("url", "moves"), [(f"redis+cluster://{NOBODY}", True), (f"redis://{NOBODY}", False)])
async def test_whoever_waits_for_a_server_that_may_move_looks_for_it_every_moment(
    module: Any,
    run: Callable[[Server], Coroutine[Any, Any, None]],
    url: str,
    moves: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failover takes seconds: a wait of 30 s would be longer than that."""
    asked: asyncio.Queue[bool] = asyncio.Queue()

    def delay_ms(tries: int, rand: float, *, may_move: bool = False) -> int:
        asked.put_nowait(may_move)
        return 1

    monkeypatch.setattr(module, "reconnect_delay_ms", delay_ms)
    waiting = asyncio.ensure_future(run(Server(url)))
    try:
        async with asyncio.timeout(5):
            assert [await asked.get(), await asked.get()] == [moves, moves]
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
