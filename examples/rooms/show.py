"""Rooms are announced, two processes own them, one is killed with SIGKILL, the other goes on. Then the ledger.

python examples/rooms/show.py [ROOMS [MESSAGES]]      on HEADRACE_URL, or on an embedded server of this directory
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from headrace import App

HERE = Path(__file__).parent


async def main(count: int, messages: int) -> int:
    app = App()
    rooms = app.assignments("rooms")
    names = [f"room:{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.jsonl")
        ledger.touch()
        env = {**os.environ, "ROOMS_LEDGER": str(ledger)}
        for name in names:
            await rooms.announce(name, {"topic": f"what happens in {name}"})
        owners = [subprocess.Popen([sys.executable, str(HERE / "chat.py")], env=env) for _ in range(2)]
        try:
            await talk(app, names, range(messages // 2), messages - 1)
            await until(lambda: len(read(ledger)) > count * messages // 4)
            victim = await busiest(rooms, owners)
            victim.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            print(f"killed owner {victim.pid} with {len(read(ledger)):,} messages done", flush=True)
            await talk(app, names, range(messages // 2, messages), messages - 1)
            await until(lambda: len({(line["room"], line["n"]) for line in read(ledger)}) >= count * messages)
            print(f"all done {time.monotonic() - killed_at:.1f} s after the kill", flush=True)
            left = await settled(rooms)
        finally:
            for owner in owners:
                owner.kill()
                owner.wait()
            await app.close()
        return told(read(ledger), names, messages, left)


async def talk(app: App, names: list[str], numbers: range, last: int) -> None:
    for number in numbers:
        for name in names:
            text = "goodbye" if number == last else f"message {number}"
            await app.stream(name).add({"n": number, "text": text})


async def busiest(rooms: Any, owners: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """The process that owns most rooms: an owner's name ends in its pid and something random."""
    counts = Counter(int(row.owner.rsplit("-", 2)[1]) for row in await rooms.listed() if row.owner)
    return max(owners, key=lambda owner: counts[owner.pid])


async def settled(rooms: Any) -> int:
    """How many assignments are left: the last rooms are finished a moment after their last message."""
    for _ in range(100):
        left = len(await rooms.listed())
        if not left:
            break
        await asyncio.sleep(0.05)
    return left


async def until(done: Any) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.02)


def read(ledger: Path) -> list[dict[str, Any]]:
    told = ledger.read_bytes()
    return [json.loads(line) for line in told[: told.rfind(b"\n") + 1].splitlines()]  # the last may be half written


def told(lines: list[dict[str, Any]], names: list[str], messages: int, left: int) -> int:
    """The ledger: in every room every message, in order, whoever owned it.

    What its owner had handled and not acknowledged when it was killed is handled once more by the next: a repeat.
    """
    by_room: dict[str, list[int]] = defaultdict(list)
    epochs: dict[str, int] = {}
    moved: set[str] = set()
    repeats = 0
    for line in lines:
        name, done = line["room"], by_room[line["room"]]
        if epochs.setdefault(name, line["epoch"]) != line["epoch"]:
            epochs[name] = line["epoch"]
            moved.add(name)
            if done and line["n"] == done[-1]:
                repeats += 1
                continue
        done.append(line["n"])
    violations = sum(by_room[name] != list(range(messages)) for name in names)
    print(f"rooms {len(names)}, messages {sum(map(len, by_room.values())):,}, repeats {repeats}")
    print(f"rooms taken over {len(moved)}, rooms left {left}")
    print(f"order violations {violations}")
    return 1 if violations or left else 0


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:3]]
    sys.exit(asyncio.run(main(*(words + [10, 40][len(words) :]))))
