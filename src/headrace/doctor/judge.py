"""Judgement over facts: pure, one function for each thing looked at (SPEC 58)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.doctor.cves import CVES
from headrace.doctor.facts import Facts, Finding, Kept, Level, keeps
from headrace.doctor.shape import Shape
from headrace.redis.topology import SLOTS

ENOUGH_SENTINELS = 3
CLOCK_NOTE_MS = 1_000  # from which difference on two clocks are worth a word


def examine(facts: Facts) -> list[Finding]:
    """Everything there is to say, in reading order."""
    return [finding for judge in _JUDGES for finding in judge(facts)]


def worst(findings: Sequence[Finding]) -> Level:
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


# ── the server itself ────────────────────────────────────────────────────────────────────────────────


def _server(facts: Facts) -> Iterator[Finding]:
    can = facts.capabilities
    if facts.too_old:
        yield Finding(Level.BAD, "server", facts.too_old, "upgrade the server")
        return
    if not can.version:
        yield Finding(Level.NOTE, "server", "its version is not to be had", "grant +info to this user")
    else:
        yield Finding(Level.OK, "server", f"{can.server.capitalize()} {'.'.join(map(str, can.version))}")
    if can.role == "slave":
        yield Finding(Level.BAD, "server", "this is a replica, which refuses every write", "give the URL of its master")
    if facts.info.get("cluster_enabled") == "1" and facts.shape.kind != "cluster":
        yield Finding(
            Level.BAD,
            "server",
            "this is a node of a cluster, and it is asked as if it was alone",
            "write redis+cluster:// in the URL",
        )


def _topology(facts: Facts) -> Iterator[Finding]:
    shape = facts.shape
    if shape.kind == "sentinel":
        yield from _sentinels(shape)
    if shape.kind != "cluster":
        return
    missing = SLOTS - shape.slots
    told = f"{len(shape.masters)} masters, {shape.replicas} replicas, {shape.slots:,} of {SLOTS:,} slots served"
    yield Finding(Level.BAD if missing else Level.OK, "cluster", told, "give every slot to a master" if missing else "")
    if shape.alone:
        yield Finding(
            Level.WARN,
            "cluster",
            f"no replica takes over from {', '.join(shape.alone)}: while it is away its streams stand still",
            "give every master a replica",
        )
    if shape.full_coverage:
        yield Finding(
            Level.NOTE,
            "cluster",
            "one shard that is away stops the others as well (cluster-require-full-coverage yes)",
            "set cluster-require-full-coverage no, and the streams of other shards go on",
        )
    if len(shape.versions) > 1:
        yield Finding(
            Level.NOTE,
            "cluster",
            f"its masters are of several versions: {', '.join(shape.versions)}; each stream is handled as its own can",
        )


def _sentinels(shape: Shape) -> Iterator[Finding]:
    told = f"{shape.sentinels} sentinels, quorum {shape.quorum or 'unknown'}, {shape.replicas} replicas"
    yield Finding(Level.OK, "sentinel", told)
    if shape.sentinels < ENOUGH_SENTINELS:
        yield Finding(
            Level.WARN,
            "sentinel",
            f"{shape.sentinels} of them cannot outvote a failure among themselves",
            "run three sentinels on three machines",
        )
    if not shape.replicas:
        yield Finding(Level.WARN, "sentinel", "there is no replica that could take over", "attach one to the primary")
    if "down" in shape.flags:
        yield Finding(Level.WARN, "sentinel", f"they hold the primary for {shape.flags}", "see the sentinels' logs")


def _commands(facts: Facts) -> Iterator[Finding]:
    can = facts.capabilities
    if facts.too_old or can.role == "slave":
        return
    if can.claim:
        yield Finding(Level.OK, "rescue", "native: XREADGROUP ... CLAIM takes over, ten times a second")
    else:
        yield Finding(Level.OK, "rescue", "the fallback pair: a rescue script every quarter of a lease, and XREADGROUP")
    if not can.ackdel:
        yield Finding(
            Level.NOTE,
            "commands",
            "delete_on_ack deletes only where the group is alone: XACKDEL is not known here",
            "Redis 8.2 has it; else trim by retention",
        )
    if not can.waitaof:
        yield Finding(
            Level.NOTE,
            "commands",
            "an add with durability='disk' is confirmed only with appendfsync always: WAITAOF is not known here",
            "Redis and Valkey from 7.2 have it",
        )


def _cves(facts: Facts) -> Iterator[Finding]:
    can = facts.capabilities
    for cve in CVES:
        if cve.needs_tls and not facts.tls:
            continue
        fixed = cve.fixed_in(can.server, can.version)
        if fixed is not None:
            upgrade = f"upgrade to {fixed} or later" if fixed else "upgrade to a later line"
            yield Finding(
                Level.WARN,
                "security",
                f"{cve.id}: {cve.what}",
                f"{upgrade}; a distribution may have mended it under the same version",
            )


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────


def _persistence(facts: Facts) -> Iterator[Finding]:
    if facts.info.get("aof_last_write_status", "ok") != "ok" or facts.info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding(
            Level.BAD, "persistence", "the server could not write its last file to disk", "free space, see its log"
        )
    kept = keeps(facts)
    if kept is Kept.UNKNOWN:
        yield Finding(
            Level.NOTE, "persistence", "whether anything is kept is not to be had", "grant +info or +config|get"
        )
    elif kept is Kept.ALWAYS:
        yield Finding(Level.OK, "persistence", "append-only file, written to disk before every answer")
    elif kept is Kept.SOON:
        yield Finding(
            Level.OK,
            "persistence",
            f"append-only file, appendfsync {facts.said('appendfsync') or 'unknown'}: a power cut, or a crash "
            "while the disk is slow, may cost the last one or two seconds",
            "where that is too much: durability='disk' on the add, or appendfsync always",
        )
    elif kept is Kept.SNAPSHOT:
        yield Finding(
            Level.WARN,
            "persistence",
            "snapshots only: a crash of the server loses all since the last one",
            "set appendonly yes",
        )
    else:
        yield Finding(
            Level.WARN, "persistence", "nothing is kept: a restart of the server loses everything", "set appendonly yes"
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    policy, limit = facts.said("maxmemory-policy"), facts.said("maxmemory")
    if policy is None:
        yield Finding(
            Level.NOTE, "memory", "the eviction policy is not to be had", "grant +info; it must be noeviction"
        )
        return
    if policy == "noeviction":
        yield Finding(Level.OK, "memory", f"noeviction, maxmemory {limit if limit not in (None, '0') else 'not set'}")
    elif policy.startswith("volatile"):
        yield Finding(
            Level.WARN,
            "memory",
            f"{policy}: when memory is short, keys of adds and completion markers are forgotten, and duplicates pass",
            "set maxmemory-policy noeviction",
        )
    else:
        yield Finding(
            Level.WARN if limit == "0" else Level.BAD,
            "memory",
            f"{policy}: when memory is short, the server throws streams away, messages and all",
            "set maxmemory-policy noeviction",
        )


def _replicas(facts: Facts) -> Iterator[Finding]:
    number = facts.info.get("connected_slaves")
    if facts.capabilities.role == "slave" or number is None:
        return
    if number == "0":
        yield Finding(Level.NOTE, "replicas", "none: durability='replicated' cannot be met here")
    else:
        yield Finding(
            Level.OK,
            "replicas",
            f"{number}: after a failover, adds without durability='replicated' may be lost and acked messages return",
        )


# ── around it ────────────────────────────────────────────────────────────────────────────────────────


def _events(facts: Facts) -> Iterator[Finding]:
    events = facts.config.get("notify-keyspace-events")
    if events is not None:
        state = f"on ({events})" if events else "off"
        yield Finding(Level.OK, "events", f"keyspace notifications are {state}; nothing here needs them")


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.clock_ms is None:
        return
    ahead = "ahead of" if facts.clock_ms > 0 else "behind"
    if abs(facts.clock_ms) < CLOCK_NOTE_MS:
        yield Finding(Level.OK, "clock", f"within {max(1, abs(facts.clock_ms))} ms of ours")
    else:
        yield Finding(
            Level.NOTE,
            "clock",
            f"{abs(facts.clock_ms) / 1000:.1f} s {ahead} ours; leases go by the server's alone; times shown may be off",
            "let both machines keep time by NTP, and never set the server's clock by hand",
        )


def _way(facts: Facts) -> Iterator[Finding]:
    if facts.tls and not facts.verified:
        yield Finding(
            Level.WARN, "way", "TLS without looking at the certificate: anybody may be in between", "remove verify=none"
        )
    if not facts.loopback and not facts.tls:
        yield Finding(
            Level.NOTE, "way", "messages travel in the clear", "use rediss:// where the network is not yours alone"
        )
    if not facts.loopback and not facts.password:
        yield Finding(Level.WARN, "way", "no password is asked for", "give the server one, or an ACL user")


def _rights(facts: Facts) -> Iterator[Finding]:
    lacking = {missing.role: missing for missing in facts.missing}
    able = [role for role in facts.roles if role not in lacking]
    if able:
        keys = f" on {facts.stream}" if facts.stream else ""
        yield Finding(Level.OK, "rights", f"enough{keys} for {', '.join(able)}")
    for missing in facts.missing:
        grants = " ".join(
            [*(f"+{command.lower()}" for command in missing.commands), *(f"~{key}" for key in missing.keys)]
        )
        yield Finding(
            Level.NOTE if able else Level.BAD,
            "rights",
            f"not enough for {missing.role}: {_listed(missing.commands, missing.keys)}",
            f"ACL SETUSER ... {grants}",
        )
    if facts.unasked:
        yield Finding(
            Level.NOTE,
            "rights",
            f"{' and '.join(facts.unasked)} may not be asked, so parts of this page are guesses or missing",
            "run the doctor as an administrator once",
        )


def _listed(commands: tuple[str, ...], keys: tuple[str, ...]) -> str:
    lacks = [f"{', '.join(commands)} {'is' if len(commands) == 1 else 'are'} forbidden"] if commands else []
    return "; ".join(lacks + ([f"no access to {', '.join(keys)}"] if keys else []))


_JUDGES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _server,
    _topology,
    _commands,
    _persistence,
    _memory,
    _replicas,
    _events,
    _clock,
    _rights,
    _way,
    _cves,
)
