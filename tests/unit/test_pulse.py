"""What the loop's pulse says about answers that lay in the socket."""

from __future__ import annotations

import asyncio
import time

from headrace.pulse import Pulse
from tests.support.wait import wait_until

EVERY_S = 0.1


async def test_what_is_read_after_a_standstill_may_have_lain_there_since_it_began() -> None:
    pulse = Pulse(EVERY_S)
    pulse.start()
    try:
        await asyncio.sleep(0)
        begun = time.monotonic()
        time.sleep(5 * EVERY_S)
        assert pulse.arrived_after(time.monotonic()) <= begun  # before the loop has turned
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert pulse.at > begun + 4 * EVERY_S  # it has beaten again, and what arrived meanwhile is read only now
        assert pulse.arrived_after(time.monotonic()) <= begun
    finally:
        pulse.stop()


async def test_while_the_loop_turns_an_answer_has_just_arrived() -> None:
    pulse = Pulse(EVERY_S)
    pulse.start()
    try:
        for _ in range(10):
            await asyncio.sleep(EVERY_S / 4)
            now = time.monotonic()
            if now - pulse.at < 1.5 * EVERY_S:  # the machine may have stood still
                assert pulse.arrived_after(now) == now
    finally:
        pulse.stop()


async def test_a_pulse_goes_on_when_what_it_tells_fails() -> None:
    """Else every lease would run out because one look at the threads failed."""
    told: list[float] = []

    def tell(now: float) -> None:
        told.append(now)
        if len(told) == 2:
            raise OSError("no thread to be had")

    asyncio.get_running_loop().set_exception_handler(lambda loop, about: None)
    pulse = Pulse(EVERY_S / 10, tell)
    pulse.start()
    try:
        await wait_until(lambda: len(told) > 3)
    finally:
        pulse.stop()
