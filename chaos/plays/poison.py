"""Row 22: messages that fail, kill or hang end in the dead letters, and nobody else does; then all are replayed."""

from __future__ import annotations

import asyncio

from chaos.checker import judge
from chaos.plays import traffic
from chaos.stage import Stage
from chaos.verdict import Breach, Verdict
from headrace import App


async def play(stage: Stage) -> Verdict:
    await traffic.play(stage)
    drained, seconds = await stage.drain()
    before = len(await _letters(stage))
    stage.healed.touch()
    replayed = await _replay_all(stage)
    left = await stage.finish()
    left.drained, left.drain_s = drained and left.drained, seconds + left.drain_s
    facts = stage.facts(left)
    verdict = judge(facts)
    verdict.figures |= {"buried": before, "replayed": replayed}
    if not len(facts.poison) == before == replayed or left.letters:
        told = f"of {len(facts.poison)} poison {before} were buried, {replayed} replayed, {len(left.letters)} are left"
        verdict.breaches.setdefault("S6", Breach()).add(told)
    return verdict


async def _letters(stage: Stage) -> list[str]:
    async with App(stage.topology.url) as app:
        return [letter.id for letter in await app.stream(stage.stream).dead_letters.listed(limit=100_000)]


async def _replay_all(stage: Stage) -> int:
    """Give every dead letter back; what is noted first splits the message's history into two lives."""
    async with App(stage.topology.url) as app:
        letters = app.stream(stage.stream).dead_letters
        found = await letters.listed(limit=100_000)
        for letter in found:
            stage.pen.note("replay", id=letter.original_id)
        done = 0
        for letter in found:
            done += len(await letters.replay(letter.id))
            await asyncio.sleep(0)
        return done
