"""Row 23: payloads of 0 B to 64 MB, bytes that are no text, 10,000 fields; handled, and buried byte for byte."""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from typing import Any, Final

from chaos.checker import judge
from chaos.stage import Stage
from chaos.verdict import Breach, Verdict
from headrace.names import keys_of
from headrace.redis.letters import open_letter
from tests.support.history import Event, History
from tests.support.wait import wait_until

MB: Final = 1024 * 1024
FIELDS: Final = 10_000
EACH: Final = 40  # of every small size


def bodies(rng: random.Random) -> list[list[bytes]]:
    """Entries, as names and values in turn. One that starts with "!" is buried by its handler."""
    noise = rng.randbytes(3_000)
    small = [b"", b"x", b"\xff\xfe\x00\x80", noise, b"!" + noise, b"!"]
    found = [[b"payload", body] for body in small for _ in range(EACH)]
    found += [[b"payload", start + b"y" * size] for size in (MB, 64 * MB) for start in (b"", b"!")]
    wide = [word for n in range(FIELDS) for word in (f"field-{n}".encode(), b"v")]
    found += [[*wide, b"payload", b"wide"], [*wide, b"payload", b"!wide"], [b"payload", b"a", b"payload", b"b"]]
    return found


async def play(stage: Stage) -> Verdict:
    await stage.staff()
    stage.begun = time.monotonic()
    client: Any = stage.topology.admin
    sent: dict[str, list[bytes]] = {}
    for body in bodies(random.Random(stage.seed)):
        id_ = (await asyncio.to_thread(client.execute_command, "XADD", stage.stream, "*", *body)).decode()
        sent[id_] = body
        number = zlib.crc32(_payload(body))  # as its handler reckons it: the bytes must be the same
        stage.pen.note_all([Event(time.monotonic(), 0, "add", "ok", id_, about={"n": number})])
    doomed = {id_ for id_, body in sent.items() if body[-1][:1] == b"!"}
    await wait_until(lambda: client.xlen(keys_of(stage.stream).dead_letters) == len(doomed), 60.0, what="the burials")
    stage.ended = time.monotonic()
    stage.mortal = {zlib.crc32(_payload(sent[id_])) for id_ in doomed}
    verdict = judge(stage.facts(await stage.finish()))
    for problem in _compare(client, stage.stream, sent, doomed):
        verdict.breaches.setdefault("S6", Breach()).add(problem)
    started = {event.id for event in History(stage.folder).starts()}
    for id_ in sent.keys() - started:
        verdict.breaches.setdefault("S1", Breach()).add(f"{id_} was never started")
    return verdict


def _compare(client: Any, stream: str, sent: dict[str, list[bytes]], doomed: set[str]) -> list[str]:
    """What is wrong with the dead letters."""
    problems, seen = [], set()
    for _, flat in client.execute_command("XRANGE", keys_of(stream).dead_letters, "-", "+", NEVER_DECODE=True):
        words = flat if isinstance(flat, list) else [word for pair in flat.items() for word in pair]
        letter = open_letter(words)
        assert letter is not None
        id_ = letter.about["original_id"].decode()
        seen.add(id_)
        if letter.original != sent[id_]:
            problems.append(f"the dead letter of {id_} ({sum(map(len, sent[id_]))} B) does not hold the original bytes")
    if seen != doomed:
        problems.append(f"{len(doomed)} had to be buried, {len(seen)} were")
    return problems


def _payload(words: list[bytes]) -> bytes:
    """The first field of that name is it."""
    return words[words.index(b"payload") + 1]
