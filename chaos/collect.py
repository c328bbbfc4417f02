"""What was left at the end of a run: on the server, in the logs, in the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chaos import worklogs
from chaos.facts import Left, Letter
from chaos.worker import GROUP, sink_of
from headrace.names import keys_of, waiting_group
from headrace.redis.letters import open_letter

if TYPE_CHECKING:
    from chaos.stage import Stage

PAGE: Final = 10_000
ORIGINAL_ID: Final = b"_original_id"  # of a requeued copy: the message that it is
FEEDERS: Final = ("headrace:producer", "headrace:app")


def collect(stage: Stage, left: Left) -> None:
    """Fill in what a look at server, logs and files tells. The workers have ended."""
    client: Any = stage.topology.admin
    expected: set[str] = set()
    for stream in stage.streams:
        _collect_stream(client, stream, f"{stream}/" if stage.qualified else "", left)
        keys = keys_of(stream)
        expected |= {stream, keys.dead_letters, sink_of(stream), keys.owners(GROUP)}
        expected |= {keys.floor(GROUP), keys.looked(GROUP)}
    found = {key.decode("utf-8", "backslashreplace") for key in client.scan_iter(count=1000)}
    left.keys = {key for key in found - expected if ":hr:added:" not in key and not key.startswith("bystander:")}
    nodes: list[Any] = [*stage.topology.nodes]
    names = [str(row["name"]) for node in nodes for row in node.client_list()]
    left.clients += [name for name in names if name.startswith("headrace:") and not name.startswith(FEEDERS)]
    left.log_lines_per_s = worklogs.rates(stage.folder)
    left.outcries = worklogs.outcries(stage.folder)
    left.secrets = _places_of(stage, client)


def _collect_stream(client: Any, stream: str, prefix: str, left: Left) -> None:
    keys = keys_of(stream)
    ids = {prefix + fields.get(ORIGINAL_ID, id_).decode() for id_, fields in _entries(client, stream)}
    left.ids |= ids
    groups = {row["name"].decode() for row in client.xinfo_groups(stream)} if client.exists(stream) else set()
    if GROUP in groups:
        left.pending.update((prefix + id_, owner) for id_, owner in _pending(client, stream, GROUP))
        left.owners |= {row["name"].decode() for row in client.xinfo_consumers(stream, GROUP)}
    if waiting_group(GROUP) in groups:
        left.waiting |= {prefix + id_ for id_, _ in _pending(client, stream, waiting_group(GROUP))}
    left.owners |= {name.decode() for name in client.hkeys(keys.owners(GROUP)) if name}
    left.letters += [_letter(fields, prefix) for _, fields in _entries(client, keys.dead_letters)]
    left.sink += [
        (prefix + fields[b"id"].decode(), int(fields[b"attempt"])) for _, fields in _entries(client, sink_of(stream))
    ]


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


def _letter(fields: dict[bytes, bytes], prefix: str) -> Letter:
    opened = open_letter([word for pair in fields.items() for word in pair])
    if opened is None:
        return Letter("", b"")
    original = dict(zip(opened.original[::2], opened.original[1::2], strict=True))
    return Letter(prefix + opened.about["original_id"].decode(), original.get(b"payload", b""))


def _places_of(stage: Stage, client: Any) -> list[str]:
    """Where the canary stands: in a log, in a history, in a dead letter."""
    secret = stage.canary.encode()
    files = [*stage.folder.glob("*.log"), *stage.folder.glob("*.jsonl")]
    places = [file.name for file in files if secret in file.read_bytes()]
    letters = [fields for stream in stage.streams for _, fields in _entries(client, keys_of(stream).dead_letters)]
    if any(secret in word for fields in letters for pair in fields.items() for word in pair):
        places.append("a dead letter")
    return places
