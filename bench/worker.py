"""100,000 messages of about 200 B and an empty async handler, beside a bare XREADGROUP+XACK loop.

The loop acknowledges without a fence, renews nothing and calls no handler: it is what the server and the client library
give at best. Both run one after the other, in processes of their own, some rounds; the figures are medians. Memory is
measured in a further run with a million messages waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from bench.arena import Arena
from bench.drain import drain
from bench.report import Criterion, Report, Run, lowest

MESSAGES: Final = 100_000
WAITING: Final = 1_000_000
ROUNDS: Final = 5
CONCURRENCIES: Final = (32, 100, 1_000)

CRITERIA: Final = (
    Criterion("ratio", "≥", 0.5, {"concurrency": 100}),
    Criterion("ratio", "≥", 0.4, {"concurrency": 1_000}),
    *(Criterion("commands_per_message", "≤", 0.1, {"concurrency": number}) for number in CONCURRENCIES),
    *(Criterion("rss_mb", "<", 120, {"concurrency": number}, " MB") for number in CONCURRENCIES),
)

SHOWN: Final = (
    *("version", "concurrency", "msgs_per_s", "raw_msgs_per_s", "ratio"),
    *("commands_per_message", "cpu_us_per_message", "rss_mb"),
)


def report(runs: list[Run]) -> Report:
    return Report(
        "worker",
        "100,000 messages of 200 B, empty async handler, fenced acks; beside a bare XREADGROUP+XACK loop",
        "ratio ≥ 0.5 at 100 slots, ≥ 0.4 at 1,000; ≤ 0.1 commands a message; RSS < 120 MB with 1,000,000 waiting",
        runs,
        CRITERIA,
        SHOWN,
        lowest("ratio", concurrency=100),
        _summary,
    )


def _summary(runs: Sequence[Run]) -> str:
    rates = "; ".join(f"{run['ratio']:.2f} ({run['msgs_per_s']:,}/s) at {run['concurrency']:,}" for run in runs)
    commands = max(run["commands_per_message"] for run in runs)
    return f"{rates}; ≤ {commands:.3f} commands; {max(run['rss_mb'] for run in runs):.0f} MB"


def measure(arena: Arena, say: Callable[[str], None], scale: float = 1.0) -> list[Run]:
    messages, waiting = max(1_000, int(MESSAGES * scale)), max(1_000, int(WAITING * scale))
    rounds = ROUNDS if scale >= 1 else 1
    arena.fill("orders", messages)
    arena.fill("many", waiting)
    runs = []
    for concurrency in CONCURRENCIES:
        run = _beside_raw(arena, messages, concurrency, rounds)
        held = drain(
            "headrace",
            url=arena.url,
            stream="many",
            group=f"rss-{concurrency}",
            concurrency=concurrency,
            count=min(messages, waiting),
            settle=0,
        )
        runs.append({**arena.words, **run, "rss_mb": round(held["rss_mb"], 1), "waiting": waiting})
        say(f"concurrency {concurrency}: ratio {run['ratio']:.2f}")
    return runs


def _beside_raw(arena: Arena, messages: int, concurrency: int, rounds: int) -> Run:
    options = {"url": arena.url, "concurrency": concurrency, "count": messages}
    raw, ours = [], []
    sent = calls = 0
    for number in range(rounds):
        raw.append(drain("raw", group=f"raw-{concurrency}-{number}", **options))
        before = arena.calls()
        ours.append(drain("headrace", group=f"headrace-{concurrency}-{number}", **options))
        after = arena.calls()
        sent, calls = sent + after.since(before, sent=True), calls + after.since(before)
    ratios = [our["msgs_per_s"] / bare["msgs_per_s"] for our, bare in zip(ours, raw, strict=True)]
    handled = messages * rounds
    return {
        "concurrency": concurrency,
        "messages": messages,
        "rounds": rounds,
        "msgs_per_s": round(median(our["msgs_per_s"] for our in ours)),
        "raw_msgs_per_s": round(median(bare["msgs_per_s"] for bare in raw)),
        "ratio": round(median(ratios), 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
        "commands_per_message": round(sent / handled, 4),
        "server_calls_per_message": round(calls / handled, 4),  # those inside scripts included
        "cpu_us_per_message": round(median(our["cpu_s"] for our in ours) / messages * 1e6, 2),
        "raw_cpu_us_per_message": round(median(bare["cpu_s"] for bare in raw) / messages * 1e6, 2),
    }
