"""What a user may rely on, on this server."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.doctor.facts import Facts, Kept, keeps


@dataclass(frozen=True, slots=True)
class Promises:
    """What holds on this server, and what does not."""

    kept: tuple[str, ...]
    not_kept: tuple[str, ...]


def promises(facts: Facts) -> Promises:
    """What a user may rely on here. Empty where nothing works at all."""
    if facts.too_old or facts.capabilities.role == "slave":
        return Promises((), ("anything: messages cannot be handled here",))
    late = "a lease and 250 ms" if facts.capabilities.claim else "a lease and a quarter and 250 ms"
    kept = [
        "a message is handled until it is acked or buried, whoever dies",
        f"a dead worker's messages run elsewhere within {late}; under headrace run within 250 ms of its death",
        "a living worker is never robbed, and a former owner's word is refused",
    ]
    not_kept = ["a handler runs exactly once: it runs at least once; put effects into the ack, or use once="]
    _promise_disk(facts, kept, not_kept)
    if facts.info.get("connected_slaves", "0") != "0":
        kept.append("an add with durability='replicated' outlives the loss of this server")
        not_kept.append("an add without it outlives a failover")
    policy = facts.said("maxmemory-policy")
    if policy is not None and policy != "noeviction":
        not_kept.append("messages and keys of adds outlive a shortage of memory")
    return Promises(tuple(kept), tuple(not_kept))


def _promise_disk(facts: Facts, kept: list[str], not_kept: list[str]) -> None:
    how = keeps(facts)
    if how is Kept.ALWAYS:
        kept.append("an answered add outlives a crash of the server and a power cut")
    elif how is Kept.SOON:
        if facts.capabilities.waitaof:
            kept.append("an add with durability='disk' outlives a crash of the server and a power cut")
        not_kept.append("the last one or two seconds of other adds outlive a power cut")
    elif how is Kept.SNAPSHOT:
        not_kept.append("what came after the last snapshot outlives a restart of the server")
    elif how is Kept.NOTHING:
        not_kept.append("anything outlives a restart of the server")
    else:
        not_kept.append("anything is known about what outlives a restart of the server")
