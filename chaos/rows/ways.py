"""Rows 13, 14, 15, 17 and 18: what happens between workers and servers, rights included."""

from __future__ import annotations

from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.rows.mixes import ANY, QUICK
from chaos.scenario import Plan, Scenario, Staff
from chaos.topology import KINDS

ROWS: Final = (
    Scenario(
        13,
        "cut",
        "connection cut mid-frame, RST storm, producer's too",
        Traffic(QUICK, rate=4_000, slow_s=(0.05, 0.6), keyed=True),
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
        Staff(workers=4, lease_s=1.0, proxied=True),
        promise=Promise(burns=ANY),
    ),
    Scenario(
        15,
        "latency",
        "200 ms latency, 10 kB/s",
        Traffic({"ok": 0.95, "slow": 0.05}, rate=800, slow_s=(0.1, 1.0)),
        (Plan("slow", (2.0, 3.0), {"delay_s": 0.2}), Plan("slow", (3.0, 4.0), {"bytes_per_s": 10_000})),
        Staff(workers=3, lease_s=4.0, concurrency=50, proxied=True),
        promise=Promise(burns=ANY),
    ),
    Scenario(
        17,
        "refusals",
        "READONLY, MASTERDOWN of the server; LOADING, CLUSTERDOWN, TRYAGAIN of a proxy",
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
        17,
        "refusals-long",
        "CLUSTERDOWN of a proxy for longer than the lease",
        Traffic({"ok": 0.9, "slow": 0.1}, rate=1_500, slow_s=(0.05, 1.5)),
        (Plan("refuse", (3.0, 4.0), {"word": "CLUSTERDOWN", "s": 1.6}),),
        Staff(workers=4, proxied=True),
        topologies=("single",),
        seconds=8.0,
    ),
    Scenario(
        18,
        "rights",
        "ACL right removed, password rotated",
        Traffic(QUICK, rate=2_500),
        (Plan("remove-right", (2.0, 3.0)), Plan("rotate-password", (2.5, 3.5))),
        promise=Promise(burns=ANY, ends=("MissingRight", "AuthFailed")),
    ),
)
