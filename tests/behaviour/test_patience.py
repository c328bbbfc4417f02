"""A link that waits for an answer while handlers stop the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.config import ConnectSettings
from headrace.errors import Unavailable
from headrace.redis import commands
from headrace.redis.calls import Call, as_is
from headrace.redis.connect import Server as Address
from tests.support.servers import Server


async def test_an_answer_that_came_while_the_loop_stood_still_is_not_missing(server: Server) -> None:
    """SPEC 23: else the connection is dropped, and an outcome that was taken is sent again and refused."""
    link = Address(server.url, ConnectSettings.of(command_timeout="200ms")).link("patient")
    try:
        await link.open()
        epoch = link.epoch
        for _ in range(5):
            asking = asyncio.create_task(link.call(commands.server_ms()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(0.5)
            assert await asking > 0
        assert link.epoch == epoch
    finally:
        await link.close()


async def test_a_server_that_does_not_answer_is_still_waited_for_so_long_and_no_longer(server: Server) -> None:
    link = Address(server.url, ConnectSettings.of(command_timeout="200ms")).link("patient")
    try:
        await link.open()
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            await link.call(Call(("BLPOP", "nothing-here", "5"), as_is))
        assert 0.19 < time.monotonic() - begun < 2.0
    finally:
        await link.close()


async def test_only_the_last_answer_may_take_as_long_as_the_server_may_block(server: Server) -> None:
    """WAIT may block, and a blocking read: what is sent before them may not."""
    link = Address(server.url, ConnectSettings.of(command_timeout="200ms")).link("patient")
    ping, block = Call(("PING",), as_is), Call(("BLPOP", "nothing-here", "0.5"), as_is)
    try:
        await link.open()
        assert await link.pipe([ping, block], wait_ms=1_000) == [b"PONG", None]
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            await link.pipe([block, ping], wait_ms=1_000)
        assert 0.19 < time.monotonic() - begun < 0.45
    finally:
        await link.close()
