"""Timers of our own loops (ADR 10)."""

import asyncio
import os
import signal
import time

from headrace.loop import new_loop, run


async def _shortest(pause_s: float) -> float:
    """The quickest of several sleeps: noise only ever makes them longer."""
    found = []
    for _ in range(40):
        begun = time.perf_counter()
        await asyncio.sleep(pause_s)
        found.append(time.perf_counter() - begun)
    return min(found)


def test_a_short_sleep_is_not_rounded_up_to_the_next_millisecond() -> None:
    assert 0.0011 <= run(_shortest(0.0011)) < 0.00195


def test_a_callback_from_a_thread_and_a_signal_wake_the_loop() -> None:
    async def work() -> list[str]:
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[str]()
        loop.add_signal_handler(signal.SIGUSR1, heard.put_nowait, "signal")
        await asyncio.to_thread(loop.call_soon_threadsafe, heard.put_nowait, "thread")
        os.kill(os.getpid(), signal.SIGUSR1)
        both = [await asyncio.wait_for(heard.get(), 0.09), await asyncio.wait_for(heard.get(), 0.09)]
        loop.remove_signal_handler(signal.SIGUSR1)
        return sorted(both)

    assert run(work()) == ["signal", "thread"]


def test_a_loop_without_timers_waits_for_its_sockets() -> None:
    loop = new_loop()
    loop.call_later(0.2, loop.stop)
    begun = time.perf_counter()
    loop.run_forever()
    loop.close()
    assert time.perf_counter() - begun >= 0.2
