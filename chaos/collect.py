"""What was left at the end of a run: on the server, in the logs, in the files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.facts import Left, Letter
from chaos.worker import GROUP, sink_of
from headrace.names import keys_of, waiting_group
from headrace.redis.letters import open_letter

if TYPE_CHECKING:
    from chaos.stage import Stage

_EVENT: Final = re.compile(rb"^(?:DEBUG|INFO|WARNING|ERROR) \d+ ([a-z]+\.[a-z_]+)", re.M)
OF_A_MESSAGE: Final = frozenset(
    "message.rescued message.buried message.trimmed delivery.lost outcome.refused handler.raised "
    "handler.raised_after_outcome".split()
)
"""Log events that speak of one message each: as many as there are messages is no flood."""
PAGE: Final = 10_000


def collect(stage: Stage, left: Left) -> None:
    """Fill in what a look at server, logs and files tells. The workers have ended."""
    client: Any = stage.topology.admin
    keys = keys_of(stage.stream)
    left.ids = {id_.decode() for id_, _ in _entries(client, stage.stream)}
    groups = {row["name"].decode() for row in client.xinfo_groups(stage.stream)} if left.ids else set()
    if GROUP in groups:
        left.pending = dict(_pending(client, stage.stream, GROUP))
    if waiting_group(GROUP) in groups:
        left.waiting = {id_ for id_, _ in _pending(client, stage.stream, waiting_group(GROUP))}
    left.letters = [_letter(fields) for _, fields in _entries(client, keys.dead_letters)]
    left.sink = [
        (fields[b"id"].decode(), int(fields[b"attempt"])) for _, fields in _entries(client, sink_of(stage.stream))
    ]
    left.owners = {row["name"].decode() for row in client.xinfo_consumers(stage.stream, GROUP)} if groups else set()
    left.owners |= {name.decode() for name in client.hkeys(keys.owners(GROUP)) if name}
    ours = {stage.stream, keys.dead_letters, sink_of(stage.stream), keys.owners(GROUP), keys.floor(GROUP)}
    found = {key.decode("utf-8", "backslashreplace") for key in client.scan_iter(count=1000)}
    left.keys = {key for key in found - ours if not key.startswith((keys.added(""), "bystander:"))}
    left.clients += [row["name"] for row in client.client_list() if row["name"].startswith("headrace:")
                     and ":producer" not in row["name"] and row["name"] != "headrace:app"]  # fmt: skip
    seconds = max(1.0, stage.ended - stage.begun)
    left.log_lines_per_s = _log_rates(stage.folder, seconds)
    left.secrets = _places_of(stage.canary, stage.folder, client, keys.dead_letters)


def _entries(client: Any, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: list[tuple[bytes, dict[bytes, bytes]]] = []
    start = "-"
    while page := client.xrange(key, start, "+", PAGE):
        found += [(id_, fields) for id_, fields in page]
        start = "(" + page[-1][0].decode()
    return found


def _pending(client: Any, stream: str, group: str) -> list[tuple[str, str]]:
    rows = client.xpending_range(stream, group, "-", "+", 1_000_000)
    return [(row["message_id"].decode(), row["consumer"].decode()) for row in rows]


def _letter(fields: dict[bytes, bytes]) -> Letter:
    opened = open_letter([word for pair in fields.items() for word in pair])
    if opened is None:
        return Letter("", b"")
    original = dict(zip(opened.original[::2], opened.original[1::2], strict=True))
    return Letter(opened.about["original_id"].decode(), original.get(b"payload", b""))


def _log_rates(folder: Path, seconds: float) -> dict[str, float]:
    """Lines a second by log event, of the process that says it most; those of single messages left out."""
    worst: Counter[str] = Counter()
    for log in folder.glob("*.log"):
        told = Counter(name.decode() for name in _EVENT.findall(log.read_bytes()))
        for name, lines in told.items():
            if name not in OF_A_MESSAGE:
                worst[name] = max(worst[name], lines)
    return {name: lines / seconds for name, lines in worst.items()}


def _places_of(canary: str, folder: Path, client: Any, dead_letters: str) -> list[str]:
    secret = canary.encode()
    logs = [*folder.glob("*.log"), *folder.glob("*.jsonl")]
    places = [file.name for file in logs if secret in file.read_bytes()]
    if any(secret in word for _, fields in _entries(client, dead_letters) for pair in fields.items() for word in pair):
        places.append("a dead letter")
    return places
