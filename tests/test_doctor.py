"""The doctor: judgement over facts, and the facts of real servers (SPEC 58)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.doctor import Facts, Finding, Level, Missing, examine, gather, keeps, promises, worst
from headrace.doctor.cves import CVES
from headrace.doctor.rights import ROLES, trials
from headrace.names import keys_of
from headrace.redis.capabilities import Capabilities
from headrace.redis.connect import Server as RedisServer
from tests.support.servers import NATIVE, Server

GOOD = Facts(
    capabilities=Capabilities("redis", (8, 10, 2), "run", "master", claim=True, ackdel=True, waitaof=True, lag=True),
    info={"aof_enabled": "1", "connected_slaves": "1", "cluster_enabled": "0"},
    config={
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "maxmemory": "0",
    },
    clock_ms=3,
    roles=("producer", "worker", "operator"),
)


def about(facts: Facts, word: str) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.about == word]


def configured(**settings: str) -> Facts:
    return replace(GOOD, config={**GOOD.config, **{name.replace("_", "-"): value for name, value in settings.items()}})


# ── judgement ────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_as_it_should_be_has_nothing_but_good_findings() -> None:
    findings = examine(GOOD)
    assert worst(findings) is Level.OK
    assert "Redis 8.10.2" in findings[0].said
    assert "an answered add outlives a crash of the server and a power cut" in promises(GOOD).kept


def test_every_finding_that_is_not_fine_has_a_way_out() -> None:
    poor = Facts(
        config={"appendonly": "no", "save": "", "maxmemory-policy": "allkeys-lru"}, unasked=("INFO",), tls=True
    )
    for facts in (Facts(), poor, replace(GOOD, loopback=False), configured(maxmemory_policy="volatile-ttl")):
        for finding in examine(facts):
            assert finding.way_out or finding.level in (Level.OK, Level.NOTE)
            assert "\n" not in finding.said


@pytest.mark.parametrize(
    ("settings", "kept", "level", "promise"),
    [
        ({"appendfsync": "always"}, "always", Level.OK, None),
        (
            {"appendfsync": "everysec"},
            "soon",
            Level.OK,
            "the last one or two seconds of other adds outlive a power cut",
        ),
        ({"appendonly": "no", "save": "900 1"}, "snapshot", Level.WARN, "what came after the last snapshot"),
        ({"appendonly": "no"}, "nothing", Level.WARN, "anything outlives a restart"),
    ],
)
def test_persistence_decides_what_is_promised(
    settings: dict[str, str], kept: str, level: Level, promise: str | None
) -> None:
    facts = configured(**settings)
    assert keeps(facts) == kept
    assert about(facts, "persistence")[0].level is level
    assert (promise is None) or any(line.startswith(promise) for line in promises(facts).not_kept)


def test_a_failed_write_to_disk_is_bad() -> None:
    failed = replace(GOOD, info={**GOOD.info, "aof_last_write_status": "err"})
    assert about(failed, "persistence")[0].level is Level.BAD


@pytest.mark.parametrize(
    ("policy", "limit", "level"),
    [
        ("noeviction", "100", Level.OK),
        ("volatile-lru", "100", Level.WARN),
        ("allkeys-lru", "100", Level.BAD),
        ("allkeys-lru", "0", Level.WARN),
    ],
)
def test_eviction_must_be_off(policy: str, limit: str, level: Level) -> None:
    (finding,) = about(configured(maxmemory_policy=policy, maxmemory=limit), "memory")
    assert finding.level is level
    assert level is Level.OK or "noeviction" in finding.way_out


def test_replicas_clusters_and_old_servers_are_bad() -> None:
    replica = replace(GOOD, capabilities=replace(GOOD.capabilities, role="slave"))
    assert worst(about(replica, "server")) is Level.BAD
    assert promises(replica).kept == ()
    assert worst(about(replace(GOOD, info={"cluster_enabled": "1"}), "server")) is Level.BAD
    old = Facts(too_old="Redis 5.0")
    assert worst(examine(old)) is Level.BAD
    assert promises(old).kept == ()


def test_what_may_not_be_asked_is_a_note_and_nothing_is_claimed() -> None:
    silent = Facts(capabilities=Capabilities(), unasked=("INFO", "CONFIG GET"))
    assert worst(examine(silent)) is Level.NOTE
    assert {finding.about for finding in examine(silent)} >= {"server", "persistence", "memory", "rights"}


@pytest.mark.parametrize(("ms", "level"), [(0, Level.OK), (-900, Level.OK), (5_000, Level.NOTE), (-5_000, Level.NOTE)])
def test_a_clock_far_off_is_worth_a_word(ms: int, level: Level) -> None:
    (finding,) = about(replace(GOOD, clock_ms=ms), "clock")
    assert finding.level is level


def test_missing_rights_are_bad_only_if_no_role_is_left() -> None:
    one = replace(GOOD, missing=(Missing("worker", ("XCLAIM",)),))
    assert [finding.level for finding in about(one, "rights")] == [Level.OK, Level.NOTE]
    assert about(one, "rights")[1].way_out == "ACL SETUSER ... +xclaim"
    every = replace(GOOD, missing=tuple(Missing(role, ("XADD",), ("orders",)) for role in GOOD.roles))
    assert {finding.level for finding in about(every, "rights")} == {Level.BAD}


def test_the_way_to_the_server_is_looked_at() -> None:
    far = replace(GOOD, loopback=False)
    assert [finding.level for finding in about(far, "way")] == [Level.NOTE, Level.WARN]
    assert about(replace(far, tls=True, password=True), "way") == []
    assert about(replace(far, tls=True, verified=False, password=True), "way")[0].level is Level.WARN


@pytest.mark.parametrize(
    ("server", "version", "tls", "found"),
    [
        ("redis", (6, 2, 19), False, {"CVE-2025-49844": "6.2.20"}),
        ("redis", (6, 2, 20), False, {}),
        ("redis", (7, 0, 15), False, {"CVE-2025-49844": ""}),
        ("redis", (8, 10, 0), False, {}),
        ("redis", (8, 10, 0), True, {"CVE-2026-81934": "8.10.1"}),
        ("redis", (8, 2, 1), False, {"CVE-2025-49844": "8.2.2", "CVE-2026-23479": "8.2.6"}),
        ("valkey", (8, 1, 4), False, {"CVE-2026-23479": "8.1.7"}),
        ("valkey", (9, 1, 0), True, {"CVE-2026-56684": "9.1.1"}),
        ("valkey", (9, 1, 2), True, {}),
        ("unknown", (), True, {}),
    ],
)
def test_known_holes_are_told_by_version(
    server: Any, version: tuple[int, ...], tls: bool, found: dict[str, str]
) -> None:
    facts = replace(GOOD, capabilities=Capabilities(server, version), tls=tls)
    told = {finding.said.partition(":")[0]: finding for finding in about(facts, "security")}
    assert told.keys() == found.keys()
    for name, fixed in found.items():
        assert told[name].level is Level.WARN
        assert (f"upgrade to {fixed} or later" if fixed else "upgrade to a later line") in told[name].way_out


def test_the_table_of_holes_is_well_formed() -> None:
    for cve in CVES:
        assert re.fullmatch(r"CVE-20\d\d-\d{4,6}", cve.id)
        assert all(len(version) == 3 for version in (*cve.redis, *cve.valkey))
        assert list(cve.redis) == sorted(cve.redis)


# ── rights ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_a_script_calls_is_tried_for_some_role() -> None:
    """A script that learns a new command must tell the doctor."""
    called = set()
    for file in resources.files("headrace.redis").joinpath("lua").iterdir():
        text = file.read_text()
        called |= set(re.findall(r"(?:redis\.p?call\(|\{)'([A-Z]{3,})'", text))
    needed = {name.partition("|")[0] for names in ROLES.values() for name in names}
    assert called - needed == {"XACKDEL"}  # where it is forbidden, the entry is kept
    assert {name for names in ROLES.values() for name in names} == set(trials(keys_of("orders")))


async def facts_of(url: str, stream: str = "") -> Facts:
    server = RedisServer(url)
    link = server.link()
    try:
        return await gather(server, link, stream)
    finally:
        await link.close()


async def test_the_facts_of_every_server_fit_what_it_is(server: Server, prefix: str, stream: str) -> None:
    """SPEC 6: the doctor says which way of rescue is used. Trying rights leaves nothing behind."""
    server.sync().xadd(stream, {"payload": "1"})
    before = server.sync().xinfo_stream(stream, full=True)
    facts = await facts_of(server.url, stream)
    assert server.sync().xinfo_stream(stream, full=True) == before
    assert server.sync().keys(f"*{prefix}*") == [stream.encode()]
    assert facts.missing == ()
    assert facts.unasked == ()
    assert abs(facts.clock_ms or 0) < 1_000
    findings = examine(facts)
    (rescue,) = [finding for finding in findings if finding.about == "rescue"]
    assert rescue.said.startswith("native" if server.key in NATIVE else "the fallback pair")
    assert worst(findings) is Level.WARN  # nothing is kept by the servers of the tests
    await facts_of(server.url)
    assert server.sync().keys("*headrace-doctor*") == []


async def test_a_restricted_user_learns_which_rights_are_missing(server: Server, prefix: str, stream: str) -> None:
    """INFO and CONFIG forbidden are no failure (SPEC 21)."""
    user = f"{prefix}-user"
    server.sync().execute_command(
        *("ACL", "SETUSER", user, "on", ">pw", f"~{prefix}*", f"~{{{prefix}*", "+@all"),
        *("-info", "-config", "-xclaim", "-evalsha"),
    )
    try:
        url = f"unix://{user}:pw@{server.socket}"
        facts = await facts_of(url, stream)
        assert facts.unasked == ("INFO", "CONFIG GET")
        lacks = {missing.role: missing for missing in facts.missing}
        assert lacks["worker"].commands == ("XCLAIM", "EVALSHA")
        assert lacks["worker"].keys == ()
        assert lacks["producer"].commands == ("EVALSHA",)
        elsewhere = {missing.role: missing for missing in (await facts_of(url, "elsewhere")).missing}
        assert elsewhere["producer"].keys == ("elsewhere", "{elsewhere}:*")
        assert worst(examine(facts)) is Level.BAD
        unnamed = {missing.role: missing for missing in (await facts_of(url)).missing}
        assert unnamed["worker"].keys == ()  # nobody named a stream, so its keys say nothing
    finally:
        server.sync().execute_command("ACL", "DELUSER", user)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code = main(["doctor", *words])
        return code, capsys.readouterr().out

    return run


@pytest.mark.servers("redis8", "valkey9")
def test_the_command_tells_findings_and_promises(doctor: Callable[..., Any], server: Server, stream: str) -> None:
    code, out = doctor(stream, "--url", server.url, "--json")
    said = json.loads(out)
    assert (code, said["level"]) == (0, "warn")
    assert {"level", "about", "said", "way_out"} == set(said["findings"][0])
    assert said["promised"]
    assert said["not_promised"]
    code, out = doctor("--url", server.url)
    assert code == 0
    for words in ("rescue", "persistence", "promised here", "not promised here"):
        assert words in out


@pytest.mark.servers("redis8")
def test_a_server_that_may_throw_streams_away_fails_the_command(
    doctor: Callable[..., Any], own_server: Callable[..., Server], server_key: str
) -> None:
    config = {"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb", "requirepass": "s3cret"}
    server = own_server(server_key, config=config)
    code, out = doctor("--url", f"unix://:s3cret@{server.socket}")
    assert code == 1
    assert "noeviction" in out
    assert "s3cret" not in out


@pytest.mark.servers("redis8")
async def test_a_replica_is_told_from_its_master(own_server: Callable[..., Server], server_key: str) -> None:
    replica = own_server(server_key)
    replica.sync().execute_command("REPLICAOF", "127.0.0.1", "1")
    findings = examine(await facts_of(replica.url))
    assert worst(findings) is Level.BAD
    assert [finding.about for finding in findings if finding.level is Level.BAD] == ["server"]
    assert not [finding for finding in findings if finding.about in ("rescue", "rights")]
