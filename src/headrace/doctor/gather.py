"""Gathers the facts: asks the server, takes a forbidden question for an answer, and changes nothing."""

from __future__ import annotations

import ipaddress
import time
from typing import Any

from headrace.doctor.facts import Facts
from headrace.doctor.rights import ROLES, lacking, trials
from headrace.doctor.shape import shape_of
from headrace.endpoint import Endpoint
from headrace.errors import AuthFailed, HeadraceError, MissingRight, ServerTooOld, Unavailable
from headrace.names import Keys, keys_of
from headrace.redis import capabilities, commands
from headrace.redis.connect import Server
from headrace.redis.link import Link

SECTIONS = ("server", "persistence", "memory", "replication", "cluster")
SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "notify-keyspace-events")
UNNAMED = "headrace-doctor"  # a stream nobody has; asked about where none was named


async def gather(server: Server, link: Link, stream: str = "") -> Facts:
    """All that can be learnt over one link. Raises only what keeps us from asking at all: no server, no login.

    In a cluster the master that holds the stream is the one that is looked at.
    """
    keys = keys_of(stream or UNNAMED)
    info = await _ask(link, {name: commands.info(name).aimed(keys.stream) for name in SECTIONS})
    config = await _ask(link, {name: commands.config(name).aimed(keys.stream) for name in SETTINGS})
    replica = isinstance(info["replication"], dict) and info["replication"].get("role") == "slave"
    tried = {} if replica else await _ask(link, trials(keys))
    can, too_old = await _capabilities(link, keys, replica)
    unasked = [name for name, answers in (("INFO", info), ("CONFIG GET", config)) if _all_refused(answers)]
    end = server.endpoint
    return Facts(
        capabilities=can,
        too_old=too_old,
        info={name: value for section in info.values() if isinstance(section, dict) for name, value in section.items()},
        config={name: value for name, value in config.items() if isinstance(value, str)},
        unasked=tuple(unasked),
        clock_ms=await _clock_ms(link, keys),
        missing=lacking(keys, tried, judge_keys=bool(stream)) if tried else (),
        roles=tuple(ROLES) if tried else (),
        stream=stream,
        loopback=_is_near(end),
        tls=end.tls,
        verified=not (end.tls_insecure or server.settings.tls_insecure),
        password=end.password is not None,
        shape=await shape_of(server, link),
    )


async def _capabilities(link: Link, keys: Keys, replica: bool) -> tuple[capabilities.Capabilities, str]:
    """What it can do, and why it is too old if it is. A replica refuses to be asked most of it: READONLY."""
    answers = await link.pipe(capabilities.probe(keys))
    if replica:
        answers = [MissingRight() if isinstance(answer, Unavailable) else answer for answer in answers]
    try:
        return capabilities.judge(answers), ""
    except ServerTooOld as error:
        return capabilities.Capabilities(), str(error)


async def _ask(link: Link, questions: dict[str, Any]) -> dict[str, Any]:
    """Ask them all in one write; a refused one is the error in its place."""
    answers = await link.pipe(list(questions.values()))
    for answer in answers:
        if isinstance(answer, (AuthFailed, Unavailable)):
            raise answer
    return dict(zip(questions, answers, strict=True))


def _all_refused(answers: dict[str, Any]) -> bool:
    return all(isinstance(answer, HeadraceError) for answer in answers.values())


async def _clock_ms(link: Link, keys: Keys) -> int | None:
    """The server's clock minus ours, as if its answer was made in the middle of the way."""
    before = time.time()
    try:
        server_ms = await link.call(commands.server_ms().aimed(keys.stream))
    except HeadraceError:
        return None
    return round(server_ms - (before + time.time()) * 500)


def _is_near(end: Endpoint) -> bool:
    """Whether no network lies between: a unix socket, or this machine's own address."""
    if end.kind == "unix":
        return True
    host = end.hosts[0][0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
