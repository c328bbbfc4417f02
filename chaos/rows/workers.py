"""Rows 1 to 7, 22, 24, 25, 27 and 29: what happens to workers, and what their handlers do to them."""

from __future__ import annotations

from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.rows.mixes import ANY, QUICK
from chaos.scenario import Plan, Scenario, Staff
from chaos.topology import KINDS

ROWS: Final = (
    Scenario(
        1,
        "kill",
        "kill -9 worker at random",
        Traffic(QUICK, rate=6_000, slow_s=(0.1, 0.4)),
        (Plan("kill", (0.7, 1.4)),),
        Staff(workers=4),
        promise=Promise(burns=ANY),
        rescues=True,
        played=KINDS,
    ),
    Scenario(
        1,
        "kill-backlog",
        "the same with more to do than all slots take, all the time",
        # 16 slots do some 200 a second: nearly always a read fills each slot that an ack frees.
        Traffic({"slow": 0.99, "again": 0.01}, rate=1_500, slow_s=(0.05, 0.11), backlog=800),
        (Plan("kill", (1.2, 2.0), first_s=1.5),),
        Staff(workers=4, concurrency=4),
        promise=Promise(burns=ANY),
        rescues=True,
    ),
    Scenario(
        1,
        "kill-supervised",
        "kill -9 child of headrace run",
        Traffic({**QUICK, "slow": 0.08}, rate=4_000, slow_s=(0.1, 0.4)),
        (Plan("kill-child", (0.9, 1.6)),),
        Staff(workers=3, supervised=True, lease_s=10.0),
        promise=Promise(burns=1),
        rescues=True,
        servers=("redis8", "valkey9"),
    ),
    Scenario(
        2,
        "crash-points",
        "kill at every crash point",
        Traffic(
            {
                "ok": 0.4,
                "slow": 0.12,
                "sink": 0.12,
                "flaky": 0.08,
                "again": 0.06,
                "handback": 0.08,
                "bury": 0.08,
                "raise": 0.06,
            },
            slow_s=(0.01, 1.8),  # so that a worker renews more than once
        ),
        staff=Staff(lease_s=1.0, concurrency=10),
        promise=Promise(burns=ANY, max_attempts=3),  # the wait before a last attempt is short then
        play="crash_points",
        seconds=0.0,
        played=KINDS,
    ),
    Scenario(
        3,
        "pause",
        "SIGSTOP beyond the lease, then CONT, also twice",
        # So long that a sleeper wakes while another is at work on what it held: only then a missing fence shows.
        Traffic({"ok": 0.3, "slow": 0.2, "again": 0.15, "grave": 0.2, "slow-sink": 0.15}, rate=500, slow_s=(0.6, 1.8)),
        (Plan("pause", (1.3, 2.0)), Plan("pause", (3.0, 5.0), {"times": 2, "between_s": 0.05})),
        Staff(workers=4, lease_s=1.0, concurrency=200),
        promise=Promise(burns=ANY),
        played=KINDS,
    ),
    Scenario(
        3,
        "pause-owner",
        "SIGSTOP of the owner of streams beyond its lease",
        Traffic({"ok": 1.0}),
        staff=Staff(lease_s=1.0),
        play="rooms",
        seconds=0.0,
        played=KINDS,
    ),
    Scenario(
        4,
        "pause-short",
        "SIGSTOP for 0.55 of the lease",
        # What a live owner holds was renewed up to 5/12 of a lease ago (due after a third, looked at twelve times in
        # one): a stop of up to 7/12 must cost nothing, whenever it comes, and 0.55 leaves 100 ms to wake in.
        Traffic({"ok": 0.85, "slow": 0.1, "sink": 0.05}, rate=1_500, slow_s=(0.1, 3.0)),
        (Plan("pause", (0.8, 1.4), {"leases": 0.55}),),
        Staff(workers=4, lease_s=3.0, concurrency=200),
    ),
    Scenario(
        5,
        "slow",
        "slow handler, live renewals",
        Traffic({"ok": 0.8, "slow": 0.2}, rate=800, slow_s=(0.5, 2.5), backlog=5_000),
        staff=Staff(workers=3, lease_s=1.0, concurrency=300),
    ),
    Scenario(
        6,
        "block",
        "event loop blocked",
        Traffic({"ok": 0.95, "slow": 0.045, "block": 0.005}, rate=400, slow_s=(0.1, 1.4)),
        staff=Staff(workers=3, lease_s=0.6, concurrency=100),
    ),
    Scenario(
        6,
        "block-supervised",
        "event loop blocked, GIL held, under headrace run",
        Traffic({"ok": 0.95, "slow": 0.04, "block": 0.005, "gil": 0.005}, rate=300, slow_s=(0.1, 2.0)),
        staff=Staff(workers=3, supervised=True, lease_s=1.0, concurrency=50),
        servers=("redis8", "valkey9"),
        seconds=10.0,
    ),
    Scenario(
        7,
        "roll",
        "SIGTERM, rolling restart",
        Traffic({"ok": 0.9, "slow": 0.06, "sink": 0.04}, rate=4_000, slow_s=(0.05, 0.5)),
        (Plan("roll", (0.8, 1.5)),),
        Staff(workers=3, lease_s=5.0, concurrency=200),
        played=KINDS,
    ),
    Scenario(
        7,
        "roll-short-grace",
        "SIGTERM with handlers longer than their grace",
        Traffic({"ok": 0.8, "slow": 0.2}, rate=500, slow_s=(0.3, 1.2)),
        (Plan("roll", (0.8, 1.5)),),
        Staff(workers=3, lease_s=5.0, concurrency=400, settings={"app": {"grace": "100ms"}}),
        servers=("valkey9", "redis8"),
    ),
    Scenario(
        22,
        "poison",
        "poison: fails, kills, hangs",
        Traffic({"ok": 0.96, "raise": 0.015, "bury": 0.01, "hang": 0.01, "kill": 0.002, "flaky": 0.003}, rate=250),
        staff=Staff(workers=3, supervised=True, lease_s=2.0, concurrency=50, options={"timeout": "300ms"}),
        promise=Promise(burns=1, max_attempts=3, drain_s=90.0),
        play="poison",
        seconds=6.0,
    ),
    Scenario(
        24,
        "twins",
        "one owner name twice",
        Traffic({"slow": 0.5, "ok": 0.5}, rate=500, slow_s=(0.1, 0.6)),
        staff=Staff(workers=1, lease_s=1.0, concurrency=100, settings={"app": {"owner": "twin", "grace": "2s"}}),
        promise=Promise(burns=ANY, ends=("OwnerTaken",)),
        play="twins",
        seconds=6.0,
    ),
    Scenario(
        25,
        "herd",
        "200 workers at once on 1,000 orphans, found by scans",
        # 1,000 slots for 1,600 messages, and nobody is done before all orphans are taken: so that all are needed.
        Traffic({"slow": 1.0}, slow_s=(6.0, 7.0)),
        staff=Staff(workers=200, lease_s=10.0, concurrency=5),
        promise=Promise(burns=ANY),
        play="herd",
        seconds=0.0,
        servers=("redis6", "valkey9", "redis7"),
    ),
    Scenario(
        25,
        "herd-native",
        "the same, handed out by the server (XREADGROUP CLAIM)",
        Traffic({"slow": 1.0}, slow_s=(6.0, 7.0)),
        staff=Staff(workers=200, lease_s=10.0, concurrency=5),
        promise=Promise(burns=ANY),
        play="herd",
        seconds=0.0,
        servers=("redis8",),
    ),
    Scenario(
        25,
        "herd-behind",
        "the same with 4 workers, half of the orphans behind fresh messages",
        Traffic({"ok": 1.0}),
        staff=Staff(workers=4, lease_s=1.5, concurrency=100),
        promise=Promise(burns=ANY),
        play="herd",
        seconds=0.0,
    ),
    Scenario(
        27,
        "worker-clock",
        "worker clock jump",
        Traffic({**QUICK, "bury": 0.01}, rate=3_000),
        (
            Plan("move-clock", (1.0, 1.0), {"seconds": 3600}, most=1),
            Plan("move-clock", (1.0, 1.0), {"seconds": -3600}, first_s=3.5, most=1),
        ),
        Staff(lease_s=2.0, preload="faketime"),  # reading a faked clock is slow, and on a busy machine slow is late
    ),
    Scenario(
        29,
        "two-versions",
        "two versions of Headrace at once",
        Traffic(QUICK, rate=4_000),
        (Plan("kill", (1.5, 2.5)),),
        Staff(workers=4, older=2),
        promise=Promise(burns=ANY),
    ),
)
