"""Chat rooms, each owned whole and in order by one process at a time: `headrace run chat:app --processes 3`.

Every message is noted in a file before it is acknowledged: the ledger, which `show.py` checks.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass

from headrace import App, Room

LEDGER = os.environ.get("ROOMS_LEDGER", "ledger.jsonl")


@dataclass
class Chat:
    n: int
    text: str


app = App()
rooms = app.assignments("rooms", Chat)
ledger = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@rooms.owner(lease="1s")
async def own(room: Room[Chat]) -> None:
    async for message in room:
        await asyncio.sleep(0.002)  # what there is to do for a message
        line = {"room": room.name, "n": message.payload.n, "owner": room.owner, "epoch": room.epoch}
        os.write(ledger, json.dumps(line).encode() + b"\n")
        await room.ack(message)  # everything up to here is done; refused if another owner has the room by now
        if message.payload.text == "goodbye":
            await room.finish()  # the stream is deleted, its announcement ended


if __name__ == "__main__":
    app.run()
