"""An async handler of 5 ms and 100 slots: how near to the ideal 20,000 messages a second.

Beside it the same sleeps without any server on asyncio's own loop, as many at once: what it makes of the ideal. The
worker runs on the loop of `headrace run`, whose timers are finer (ADR 10).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

from bench.arena import Arena
from bench.drain import drain
from bench.report import Criterion, Report, Run, lowest

MESSAGES: Final = 100_000
ROUNDS: Final = 3
CONCURRENCY: Final = 100
HANDLER_MS: Final = 5
IDEAL: Final = CONCURRENCY * 1000 // HANDLER_MS

CRITERIA: Final = (Criterion("share_of_ideal", "≥", 0.85),)


def report(runs: list[Run]) -> Report:
    return Report(
        "worker5ms",
        f"{HANDLER_MS} ms async handler, {CONCURRENCY} slots, ideal {IDEAL:,} messages/s; beside the sleeps alone",
        "≥ 0.85 of the ideal",
        runs,
        CRITERIA,
        ("version", "msgs_per_s", "share_of_ideal", "loop_msgs_per_s", "share_of_loop", "cpu_us_per_message"),
        lowest("share_of_ideal"),
        lambda runs: (
            f"{runs[0]['share_of_ideal']:.2f} ({runs[0]['msgs_per_s']:,}/s; alone {runs[0]['loop_msgs_per_s']:,}/s)"
        ),
    )


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    messages = max(2_000, int(MESSAGES * scale))
    rounds = ROUNDS if scale >= 1 else 1
    arena.fill("orders", messages)
    options = {"concurrency": CONCURRENCY, "handler_ms": HANDLER_MS, "count": messages}
    bare = median(drain("sleeps", **options)["msgs_per_s"] for _ in range(rounds))
    before = arena.calls()
    ours = [drain("headrace", url=arena.url, group=f"group-{number}", **options) for number in range(rounds)]
    sent = arena.calls().since(before, sent=True)
    rate = median(our["msgs_per_s"] for our in ours)
    say(f"{rate:,.0f} messages/s of {IDEAL:,}; the loop alone does {bare:,.0f}")
    return [
        {
            **arena.words,
            "concurrency": CONCURRENCY,
            "handler_ms": HANDLER_MS,
            "messages": messages,
            "rounds": rounds,
            "msgs_per_s": round(rate),
            "ideal_msgs_per_s": IDEAL,
            "share_of_ideal": round(rate / IDEAL, 3),
            "loop_msgs_per_s": round(bare),
            "share_of_loop": round(rate / bare, 3),
            "commands_per_message": round(sent / messages / rounds, 4),
            "cpu_us_per_message": round(median(our["cpu_s"] for our in ours) / messages * 1e6, 2),
        }
    ]
