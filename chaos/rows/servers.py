"""Rows 8 to 12, 16, 19, 26 and 28: what happens to servers."""

from __future__ import annotations

from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.rows.mixes import ANY, DISK, OFTEN_SLOW, QUICK, REPLICATED
from chaos.scenario import Plan, Scenario, Staff
from chaos.topology import KINDS, ServerPlan

ROWS: Final = (
    Scenario(
        8,
        "server-kill",
        "server kill -9 + restart, appendfsync everysec",
        Traffic(QUICK, rate=1_500, batch=500, level="disk"),
        (Plan("kill-server", (5.0, 6.0)),),  # seldom, so that half of it is neither shortly before one nor after
        server=ServerPlan(aof=True),
        promise=Promise(level="disk", keeps=False),
        servers=DISK,
        topologies=("single",),
        seconds=12.0,
    ),
    Scenario(
        8,
        "server-kill-always",
        "server kill -9 + restart, appendfsync always; adds with a key",
        Traffic(QUICK, rate=3_000, keyed=True),
        (Plan("kill-server", (2.5, 4.0)),),
        server=ServerPlan(aof=True, fsync="always"),
        topologies=("single",),
    ),
    Scenario(
        8,
        "server-pause",
        "server SIGSTOP for two leases",
        Traffic({"ok": 0.9, "slow": 0.1}, rate=2_500, slow_s=(0.05, 0.8)),
        (Plan("pause-server", (3.0, 4.0)),),
        Staff(workers=4),
        servers=("redis6", "redis8"),
        topologies=("single",),
        seconds=8.0,
    ),
    Scenario(
        9,
        "power",
        "power loss (AOF cut at the last fsync), everysec",
        Traffic(QUICK, rate=1_500, batch=500, level="disk"),
        (Plan("power-loss", (5.0, 6.0)),),
        server=ServerPlan(aof=True, preload="fsync"),
        promise=Promise(level="disk", keeps=False),
        servers=DISK,
        topologies=("single",),
        seconds=12.0,
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
        seconds=9.0,
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
        seconds=9.0,
    ),
    Scenario(
        12,
        "slot-migration",
        "slot migration under load, key by key",
        Traffic(QUICK, rate=2_000, slow_s=(0.05, 0.8)),
        (Plan("move-slot", (1.0, 2.0)),),
        topologies=("cluster",),
        played=("cluster",),
    ),
    Scenario(
        12,
        "slot-migration-atomic",
        "the same, all keys at once (CLUSTER MIGRATION)",
        Traffic(QUICK, rate=2_000, slow_s=(0.05, 0.8)),
        (Plan("move-slot", (1.5, 2.5), {"atomic": True}),),
        servers=("redis8",),
        topologies=("cluster",),
        played=("cluster",),
    ),
    Scenario(
        16,
        "memory",
        "maxmemory reached",
        Traffic({**QUICK, "bury": 0.01}, rate=4_000),
        (Plan("fill-memory", (1.5, 2.5)),),
    ),
    Scenario(
        19,
        "scripts",
        "SCRIPT FLUSH (a failover to a server without scripts: 10, 11)",
        Traffic(QUICK, rate=6_000),
        (Plan("flush-scripts", (0.05, 0.2)),),
        played=KINDS,
    ),
    Scenario(
        26,
        "server-clock",
        "server clock +1 h, -1 h",
        Traffic(QUICK, rate=2_000),
        (
            Plan("move-clock", (1.0, 1.0), {"seconds": 3600}, most=1),
            Plan("move-clock", (1.0, 1.0), {"seconds": -3600}, first_s=3.5, most=1),
        ),
        server=ServerPlan(preload="faketime"),
        promise=Promise(robs=True, burns=ANY),
        play="clock",
        servers=("redis8", "valkey9", "redis6"),  # the program of redis7 is a script, which would be preloaded too
        topologies=("single",),
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
)
