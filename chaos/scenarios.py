"""The rows of the fault programme, as data. A row may have several scenarios; `python -m chaos ROW` plays them all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.scenario import EVERY, Plan, Scenario, Staff
from chaos.topology import KINDS, Kind, ServerPlan

QUICK: Final = {"ok": 0.9, "sink": 0.06, "slow": 0.02, "flaky": 0.01, "handback": 0.01}
"""Mostly quick handlers, a little of everything else."""
OFTEN_SLOW: Final = {"ok": 0.6, "slow": 0.3, "sink": 0.1}
"""Many are acked when their add has long been confirmed: a failover forgets such acks."""
ANY: Final = math.inf
DISK: Final = ("redis8", "valkey9")
"""Servers that can be asked whether a write is on disk (WAITAOF)."""
REPLICATED: Final[tuple[Kind, ...]] = ("sentinel", "cluster")

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
        "kill-supervised",
        "kill -9 child of headrace run",
        Traffic(QUICK, rate=4_000, slow_s=(0.1, 0.4)),
        (Plan("kill-child", (0.9, 1.6)),),
        Staff(workers=3, supervised=True, lease_s=10.0),
        promise=Promise(burns=1),
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
            slow_s=(0.01, 0.45),
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
        Traffic({"ok": 0.3, "slow": 0.2, "again": 0.15, "grave": 0.2, "sink": 0.15}, rate=500, slow_s=(0.6, 1.8)),
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
        topologies=("single",),
        seconds=0.0,
    ),
    Scenario(
        4,
        "pause-short",
        "SIGSTOP just under the lease",
        Traffic({"ok": 0.85, "slow": 0.1, "sink": 0.05}, rate=2_500, slow_s=(0.1, 0.8)),
        (Plan("pause", (0.8, 1.4), {"leases": 0.5}),),
        Staff(workers=4, lease_s=1.0, concurrency=200),
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
        8,
        "server-kill",
        "server kill -9 + restart, appendfsync everysec",
        Traffic(QUICK, rate=1_500, batch=500, level="disk"),
        (Plan("kill-server", (2.5, 4.0)),),
        server=ServerPlan(aof=True),
        promise=Promise(level="disk", keeps=False),
        servers=DISK,
        topologies=("single",),
    ),
    Scenario(
        8,
        "server-kill-always",
        "server kill -9 + restart, appendfsync always",
        Traffic(QUICK, rate=3_000),
        (Plan("kill-server", (2.5, 4.0)),),
        server=ServerPlan(aof=True, fsync="always"),
        topologies=("single",),
    ),
    Scenario(
        9,
        "power",
        "power loss (AOF cut at the last fsync), everysec",
        Traffic(QUICK, rate=1_500, batch=500, level="disk"),
        (Plan("power-loss", (2.5, 4.0)),),
        server=ServerPlan(aof=True, preload="fsync"),
        promise=Promise(level="disk", keeps=False),
        servers=DISK,
        topologies=("single",),
    ),
    Scenario(
        9,
        "power-always",
        "power loss (AOF cut at the last fsync), always",
        Traffic(QUICK, rate=3_000),
        (Plan("power-loss", (2.5, 4.0)),),
        server=ServerPlan(aof=True, fsync="always", preload="fsync"),
        topologies=("single",),
    ),
    Scenario(
        10,
        "failover-partitioned",
        "failover with a partitioned replica",
        Traffic(OFTEN_SLOW, rate=600, batch=20, slow_s=(0.1, 1.0), level="replicated"),
        (Plan("failover-partitioned", (1.5, 1.5), most=1),),
        server=ServerPlan(patience_s=1.5),
        promise=Promise(level="replicated", keeps=False, burns=ANY),
        topologies=REPLICATED,
        played=REPLICATED,
    ),
    Scenario(
        11,
        "zombie-primary",
        "zombie primary",
        Traffic(OFTEN_SLOW, rate=600, batch=20, slow_s=(0.1, 1.0), level="replicated"),
        (Plan("zombie-primary", (1.5, 1.5), most=1),),
        Staff(settings={"connect": {"command_timeout": "1s", "connect_timeout": "1s"}}),
        server=ServerPlan(patience_s=1.5),
        promise=Promise(level="replicated", keeps=False, burns=ANY),
        topologies=REPLICATED,
        played=REPLICATED,
    ),
    Scenario(
        12,
        "slot-migration",
        "slot migration under load",
        Traffic(QUICK, rate=2_000, slow_s=(0.05, 0.8)),
        (Plan("move-slot", (1.0, 2.0)), Plan("move-slot", (1.5, 2.5), {"atomic": True})),
        topologies=("cluster",),
        played=("cluster",),
    ),
    Scenario(
        13,
        "cut",
        "connection cut mid-frame, RST storm",
        Traffic(QUICK, rate=4_000, slow_s=(0.05, 0.6)),
        # Not so often that one worker hears no whole answer for a lease: what it holds unknowingly is rescued then.
        (Plan("cut-mid-frame", (0.15, 0.4)), Plan("cut", (2.0, 3.0), {"storm": 4})),
        Staff(workers=3, lease_s=3.0, proxied=True),
        played=KINDS,
    ),
    Scenario(
        14,
        "partition",
        "one-way and full partition of a worker",
        Traffic({"ok": 0.9, "slow": 0.06, "sink": 0.04}, rate=2_500, slow_s=(0.1, 0.6)),
        (Plan("partition", (2.0, 3.0)), Plan("partition", (2.5, 3.5), {"one_way": True})),
        Staff(workers=4, lease_s=0.6, proxied=True),
        promise=Promise(burns=ANY),
    ),
    Scenario(
        15,
        "latency",
        "200 ms latency, 10 kB/s",
        Traffic({"ok": 0.95, "slow": 0.05}, rate=800, slow_s=(0.1, 1.0)),
        (Plan("slow", (2.0, 3.0), {"delay_s": 0.2}), Plan("slow", (3.0, 4.0), {"bytes_per_s": 10_000})),
        Staff(workers=3, lease_s=4.0, concurrency=50, proxied=True),
        promise=Promise(burns=ANY, robs=True),
    ),
    Scenario(
        16,
        "memory",
        "maxmemory reached",
        Traffic({**QUICK, "bury": 0.01}, rate=4_000),
        (Plan("fill-memory", (1.5, 2.5)),),
    ),
    Scenario(
        17,
        "refusals",
        "READONLY, LOADING, MASTERDOWN, CLUSTERDOWN",
        Traffic(QUICK, rate=3_000, slow_s=(0.1, 0.8)),
        (
            Plan("turn-replica", (3.0, 4.0)),
            Plan("turn-replica", (4.0, 5.0), {"stale": False}),
            Plan("refuse", (2.5, 3.5), {"word": "LOADING"}),
            Plan("refuse", (3.0, 4.5), {"word": "CLUSTERDOWN"}),
            Plan("refuse", (3.5, 4.5), {"word": "TRYAGAIN"}),
        ),
        Staff(workers=3, lease_s=2.0, proxied=True),
        topologies=("single",),
    ),
    Scenario(
        18,
        "rights",
        "ACL right removed, password rotated",
        Traffic(QUICK, rate=2_500),
        (Plan("remove-right", (2.0, 3.0)), Plan("rotate-password", (2.5, 3.5))),
        promise=Promise(burns=ANY),
    ),
    Scenario(
        19,
        "scripts",
        "SCRIPT FLUSH",
        Traffic(QUICK, rate=6_000),
        (Plan("flush-scripts", (0.05, 0.2)),),
        played=KINDS,
    ),
    Scenario(
        20,
        "keyspace",
        "keyspace events off, lossy, flooded",
        Traffic(QUICK, rate=5_000),
        (Plan("keyspace", (0.3, 0.6)), Plan("kill", (2.0, 3.0))),
        Staff(workers=4),
        promise=Promise(burns=ANY),
        rescues=True,
    ),
    Scenario(
        21,
        "trimmed",
        "XTRIM, XDEL",
        Traffic({"ok": 0.9, "slow": 0.05, "flaky": 0.05}, rate=3_000, slow_s=(0.1, 0.8)),
        (Plan("delete-entries", (0.2, 0.5)), Plan("trim", (2.0, 3.0))),
        Staff(workers=3, lease_s=1.0),
        promise=Promise(trims=True),
    ),
    Scenario(
        21,
        "vanished",
        "DEL, XGROUP DESTROY",
        Traffic(QUICK, rate=3_000),
        (Plan("destroy-group", (1.5, 2.5)), Plan("delete-stream", (4.0, 5.0))),
        promise=Promise(keeps=False),
    ),
    Scenario(
        21,
        "wrong-type",
        "WRONGTYPE in the dead letters' place",
        Traffic({"ok": 0.85, "sink": 0.05, "bury": 0.06, "raise": 0.04}, rate=1_500),
        (Plan("wrong-type", (1.5, 2.5)),),
        promise=Promise(burns=ANY, max_attempts=5),
    ),
    Scenario(
        21,
        "set-back",
        "XGROUP SETID back",
        Traffic(QUICK, rate=3_000),
        (Plan("set-id-back", (0.8, 1.5)),),
        promise=Promise(keeps=False),
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
        23,
        "sizes",
        "1 B, 1 MB, 64 MB, not UTF-8, 10 k fields, empty",
        Traffic({"ok": 1.0}),
        staff=Staff(workers=2, lease_s=5.0, concurrency=10, settings={"sized": True, "max_bytes": 100_000_000}),
        play="sizes",
        seconds=0.0,
    ),
    Scenario(
        24,
        "twins",
        "one owner name twice",
        Traffic({"slow": 0.5, "ok": 0.5}, rate=500, slow_s=(0.1, 0.6)),
        staff=Staff(workers=1, lease_s=1.0, concurrency=100, settings={"app": {"owner": "twin", "grace": "2s"}}),
        promise=Promise(burns=ANY),
        play="twins",
        seconds=6.0,
    ),
    Scenario(
        25,
        "herd",
        "200 workers at once on 1,000 orphans",
        Traffic({"ok": 1.0}),
        staff=Staff(workers=200, lease_s=10.0, concurrency=20),
        promise=Promise(burns=ANY),
        play="herd",
        seconds=0.0,
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
        26,
        "server-clock",
        "server clock +1 h, -1 h",
        Traffic(QUICK, rate=2_000),
        (
            Plan("move-clock", (5.0, 6.0), {"seconds": 3600}, first_s=0.5),
            Plan("move-clock", (5.0, 6.0), {"seconds": -3600}, first_s=4.0),
        ),
        server=ServerPlan(preload="faketime"),
        promise=Promise(robs=True, burns=ANY),
        play="clock",
        servers=("redis8", "valkey9", "redis6"),  # the program of redis7 is a script, which would be preloaded too
        topologies=("single",),
    ),
    Scenario(
        27,
        "worker-clock",
        "worker clock jump",
        Traffic({**QUICK, "bury": 0.01}, rate=3_000),
        (
            Plan("move-clock", (4.0, 5.0), {"seconds": 3600}),
            Plan("move-clock", (4.0, 5.0), {"seconds": -3600}, first_s=3.0),
        ),
        Staff(lease_s=2.0, preload="faketime"),  # reading a faked clock is slow, and on a busy machine slow is late
    ),
    Scenario(
        28,
        "disk-full",
        "disk full",
        Traffic({"ok": 0.95, "slow": 0.05}, rate=1_000, slow_s=(0.1, 0.6)),
        (Plan("fill-disk", (2.5, 3.5)),),
        Staff(lease_s=2.0),
        server=ServerPlan(aof=True, disk_mb=48, config={"auto-aof-rewrite-percentage": 0}),
        topologies=("single",),
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
    Scenario(
        30,
        "spark",
        "Spark: driver or executor killed between write and commit, trimmed offsets",
        Traffic({"ok": 1.0}),
        play="spark",
        seconds=0.0,
        servers=("redis8",),
        topologies=("single",),
    ),
    Scenario(
        31,
        "mix",
        "everything, in shifting mixes, a quarter of the time quiet",
        Traffic({**QUICK, "bury": 0.003, "raise": 0.002}, rate=2_500, slow_s=(0.05, 0.8)),
        (
            Plan("kill", (1.5, 4.0)),
            Plan("pause", (4.0, 9.0)),
            Plan("cut-mid-frame", (0.5, 2.0)),
            Plan("cut", (5.0, 9.0), {"storm": 2}),
            Plan("partition", (6.0, 12.0)),
            Plan("partition", (9.0, 15.0), {"one_way": True}),
            Plan("flush-scripts", (1.0, 3.0)),
            Plan("fill-memory", (6.0, 10.0)),
            Plan("kill-server", (9.0, 16.0)),
            Plan("keyspace", (3.0, 6.0)),
            Plan("roll", (4.0, 8.0)),
            Plan("refuse", (6.0, 12.0), {"word": "LOADING"}),
        ),
        Staff(workers=4, lease_s=1.0, proxied=True),
        server=ServerPlan(aof=True, fsync="always"),
        promise=Promise(burns=ANY, max_attempts=10),
        seconds=20.0,
        quiet_share=0.25,
        topologies=("single",),
    ),
)


def named(word: str) -> list[Scenario]:
    """Scenarios by row number or by name."""
    found = [scenario for scenario in ROWS if word in (str(scenario.row), scenario.name)]
    if not found:
        names = ", ".join(f"{scenario.row} {scenario.name}" for scenario in ROWS)
        raise LookupError(f"no row is called {word!r}: there are {names}")
    return found


def rows() -> Iterable[int]:
    return sorted({scenario.row for scenario in ROWS})


assert set(rows()) == set(range(1, 32))
assert all(set(scenario.servers) <= set(EVERY) for scenario in ROWS)
