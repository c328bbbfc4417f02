"""Rows 20, 21 and 23: what happens to keys, and what stands in them."""

from __future__ import annotations

from typing import Final

from chaos.facts import Promise
from chaos.feeder import Traffic
from chaos.rows.mixes import ANY, QUICK
from chaos.scenario import Plan, Scenario, Staff

ROWS: Final = (
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
        20,
        "keyspace-requeue",
        "the same with recovery by requeue, which listens to them",
        Traffic({"ok": 0.93, "slow": 0.05, "flaky": 0.02}, rate=1_500, slow_s=(0.1, 0.4)),
        (Plan("keyspace", (0.3, 0.6)), Plan("kill", (2.0, 3.0))),
        Staff(workers=4, options={"requeue": {"interval": "500ms", "min_idle": "200ms", "max_retries": 19}}),
        promise=Promise(burns=ANY, rescue_s=1.75),  # a lock of a second, an interval, and their spread
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
        # Seldom enough that more than half is neither done shortly before nor after: that must be done once.
        (Plan("destroy-group", (1.0, 9.0), first_s=5.0), Plan("delete-stream", (1.0, 9.0), first_s=12.0, most=1)),
        promise=Promise(keeps=False),
        seconds=15.0,
    ),
    Scenario(
        21,
        "wrong-type",
        "WRONGTYPE in the dead letters' place",
        Traffic({"ok": 0.85, "sink": 0.05, "bury": 0.06, "raise": 0.04}, rate=1_500),
        (Plan("wrong-type", (1.5, 2.5)),),
        promise=Promise(burns=ANY, max_attempts=5, ends=("WrongType",)),
    ),
    Scenario(
        21,
        "wrong-type-stream",
        "WRONGTYPE in the stream's place",
        Traffic(QUICK, rate=1_500),
        (Plan("wrong-type", (2.0, 3.0), {"of": "stream"}),),
        promise=Promise(burns=ANY, ends=("WrongType",)),
        topologies=("single",),
    ),
    Scenario(
        21,
        "set-back",
        "XGROUP SETID back",
        Traffic(QUICK, rate=3_000),
        (Plan("set-id-back", (6.0, 7.0)),),
        promise=Promise(keeps=False),
    ),
    Scenario(
        21,
        "stream-set-back",
        "XSETID back, below what was read",
        Traffic(QUICK, rate=2_000),
        # So early that traffic goes on below the ids that were cut, and long before they come again.
        (Plan("set-stream-back", (1.5, 1.5), most=1),),
        promise=Promise(keeps=False, trims=True),
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
)
