"""What could be learnt about a server, and what a finding is. A fact that could not be asked is None or missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.doctor.shape import Shape
from headrace.redis.capabilities import Capabilities


class Level(StrEnum):
    """How a finding is meant, from fine to fatal."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and the way out if it needs one."""

    level: Level
    about: str  # one word: what was looked at
    said: str
    way_out: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """What a user of the server may not do."""

    role: str  # producer, worker or operator
    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # key patterns that are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What could be learnt about a server."""

    capabilities: Capabilities = field(default_factory=Capabilities)
    too_old: str = ""  # why it cannot be used at all
    info: Mapping[str, str] = field(default_factory=dict)  # of INFO; empty where it is forbidden
    config: Mapping[str, str] = field(default_factory=dict)  # of CONFIG GET, where it was answered
    unasked: tuple[str, ...] = ()  # commands that are forbidden to us
    clock_ms: int | None = None  # the server's clock minus ours
    missing: tuple[Missing, ...] = ()  # one for each role that lacks a right
    roles: tuple[str, ...] = ()  # roles that were tried
    stream: str = ""  # the stream whose keys were tried, "" if none was named
    loopback: bool = True  # reached without a network
    tls: bool = False
    verified: bool = True  # the certificate is looked at
    password: bool = False
    shape: Shape = field(default_factory=Shape)

    def said(self, setting: str, told: str = "") -> str | None:
        """A setting, from CONFIG or from the line of INFO that tells it too; None if neither was to be had."""
        return self.config.get(setting) or self.info.get(told or setting.replace("-", "_"))


class Kept(StrEnum):
    """What outlives the server's crash."""

    ALWAYS = "always"
    SOON = "soon"
    SNAPSHOT = "snapshot"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def keeps(facts: Facts) -> Kept:
    appendonly = facts.config.get("appendonly") or {"1": "yes", "0": "no"}.get(facts.info.get("aof_enabled", ""))
    if appendonly is None:
        return Kept.UNKNOWN
    if appendonly == "yes":
        return Kept.ALWAYS if facts.said("appendfsync") == "always" else Kept.SOON
    if "save" not in facts.config:
        return Kept.UNKNOWN
    return Kept.SNAPSHOT if facts.config["save"] else Kept.NOTHING
