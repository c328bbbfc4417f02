"""Faults by name. Each is a coroutine that does its harm to a stage, waits as long as it lasts, and heals it.

What it did it has noted before it happened: the checker must know whom to excuse. Where another fault may hold a
server, it is asked in a thread: the workers' proxies live in this event loop, and must not stand still.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from chaos.faults import acl, clock, cut, disk, failover, keys, kill, memory, pause, scripts, server, slots

Fault = Callable[..., Awaitable[None]]
"""(stage, rng, **words of the scenario's plan)."""

FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        kill.kill,
        kill.kill_child,
        kill.roll,
        pause.pause,
        cut.cut,
        cut.cut_mid_frame,
        cut.partition,
        cut.slow,
        cut.refuse,
        server.kill_server,
        server.power_loss,
        server.pause_server,
        server.turn_replica,
        memory.fill_memory,
        acl.remove_right,
        acl.rotate_password,
        scripts.flush_scripts,
        scripts.keyspace,
        keys.delete_entries,
        keys.trim,
        keys.delete_stream,
        keys.destroy_group,
        keys.wrong_type,
        keys.set_id_back,
        keys.set_stream_back,
        clock.move_clock,
        disk.fill_disk,
        failover.failover_partitioned,
        failover.zombie_primary,
        slots.move_slot,
    )
}
