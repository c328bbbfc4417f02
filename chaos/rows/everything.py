"""Rows 30 and 31: Spark, and everything at once."""

from __future__ import annotations

from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.rows.mixes import ANY, OFTEN_SLOW, QUICK
from chaos.scenario import Plan, Scenario, Staff
from chaos.topology import Kind, ServerPlan

ONE_NODE: Final = (
    Plan("kill", (1.5, 4.0)),
    Plan("pause", (4.0, 9.0)),
    Plan("cut-mid-frame", (0.5, 2.0)),
    Plan("cut", (5.0, 9.0), {"storm": 2}),
    Plan("partition", (6.0, 12.0)),
    Plan("partition", (9.0, 15.0), {"one_way": True}),
    Plan("slow", (8.0, 14.0), {"delay_s": 0.05, "s": 1.0}),
    Plan("flush-scripts", (1.0, 3.0)),
    Plan("fill-memory", (6.0, 10.0)),
    Plan("kill-server", (9.0, 16.0)),
    Plan("pause-server", (9.0, 16.0), {"leases": 1.5}),
    Plan("turn-replica", (8.0, 14.0)),
    Plan("turn-replica", (9.0, 16.0), {"stale": False}),
    Plan("keyspace", (3.0, 6.0)),
    Plan("roll", (4.0, 8.0)),
    Plan("refuse", (6.0, 12.0), {"word": "LOADING"}),
    Plan("refuse", (9.0, 15.0), {"word": "CLUSTERDOWN"}),
    Plan("delete-entries", (4.0, 8.0)),
    Plan("wrong-type", (9.0, 15.0)),
    Plan("remove-right", (9.0, 15.0)),
    Plan("rotate-password", (10.0, 16.0)),
)
FAILED_OVER: Final = (
    Plan("kill", (2.0, 4.0)),
    Plan("pause", (4.0, 8.0)),
    Plan("cut", (4.0, 8.0), {"storm": 2}),
    Plan("cut-mid-frame", (0.5, 2.0)),
    Plan("partition", (6.0, 12.0)),
    Plan("partition", (7.0, 13.0), {"one_way": True}),
    Plan("slow", (6.0, 12.0), {"delay_s": 0.05, "s": 1.0}),
    Plan("refuse", (6.0, 12.0), {"word": "LOADING"}),
    Plan("flush-scripts", (1.0, 3.0)),
    Plan("keyspace", (3.0, 6.0)),
    Plan("roll", (3.0, 6.0)),
    Plan("failover-partitioned", (6.0, 6.0), first_s=3.0, most=1),
)
IN_CLUSTER: Final = (*FAILED_OVER, Plan("move-slot", (3.0, 6.0)))
SHIFTING: Final = "in shifting mixes, a quarter of the time quiet"
# Beside the plans some handlers block their loop, some fail, and some hang until their timeout ends them. None kills:
# who dies with it again and again comes to a last attempt, and then a kill that nobody meant for it buries it.
HANDLERS: Final = {**QUICK, "bury": 0.003, "raise": 0.002, "block": 0.001, "hang": 0.0005}


def _failed_over(name: str, where: Kind, what: str, plans: tuple[Plan, ...]) -> Scenario:
    """Some of what the one node suffers, and what only servers with replicas can."""
    return Scenario(
        31,
        name,
        f"{len(plans)} kinds of fault {what}, {SHIFTING}",
        Traffic(OFTEN_SLOW, rate=800, batch=20, slow_s=(0.1, 1.0), level="replicated"),
        plans,
        Staff(workers=4, lease_s=1.0, proxied=True),
        server=ServerPlan(patience_s=1.5),
        promise=Promise(level="replicated", keeps=False, burns=ANY),
        seconds=24.0,
        quiet_share=0.25,
        mixed_share=0.6,
        topologies=(where,),
        played=(where,),
    )


ROWS: Final = (
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
        f"{len(ONE_NODE)} kinds of fault at once on one node, {SHIFTING}",
        Traffic(HANDLERS, rate=2_500, slow_s=(0.05, 0.8)),
        ONE_NODE,
        Staff(workers=4, lease_s=1.0, proxied=True, options={"timeout": "3s"}),
        server=ServerPlan(aof=True, fsync="always"),
        promise=Promise(burns=ANY, max_attempts=10, ends=("WrongType", "MissingRight", "AuthFailed")),
        seconds=32.0,
        quiet_share=0.25,
        mixed_share=0.6,
        topologies=("single",),
    ),
    _failed_over("mix-replicated", "sentinel", "behind sentinels, with a failover", FAILED_OVER),
    _failed_over("mix-cluster", "cluster", "in a cluster, with a failover and slots that move", IN_CLUSTER),
)
